"""The jobs `graders.run` (grade a run's rollouts) and `graders.try` (grade a few and store nothing).

A retried job continues from the stored grades: completed ones stay, failed ones are tried again.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, topic_of
from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.domain.detectors.spec import FlagDraft
from backend.domain.graders.canaries import CanaryReport, demands
from backend.domain.graders.evidence import FoundPattern, GroupFinding, SuspectedRollout
from backend.domain.graders.prompts import ContrastMember
from backend.domain.graders.settings import GraderKind, QuestionSettings
from backend.domain.text import json_text
from backend.domain.vocabulary import RunStatus, Severity
from backend.graders.flags import MAX_REASON, flag_evidence
from backend.graders.schemas import GraderExchange, TriedPattern, TriedRollout
from backend.graders.selection import (
    ContrastGroup,
    contrast_groups,
    count_of,
    rollouts_to_grade,
    sampled_rollouts,
    without_grade,
)
from backend.graders.tables import GraderRun
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from workers.graders.graders import (
    C,
    ContrastResult,
    GradeResult,
    GradingPaused,
    Questioner,
    R,
    grade_cases,
    make_grader,
    stored_quotes,
)
from workers.rollouts.limits import unless_stopped
from workers.storage import graders
from workers.storage.detectors import record_flags
from workers.storage.graders import LoadedGrader, RolloutToGrade
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

_LoadedGroup = tuple[ContrastGroup, list[RolloutToGrade], list[ContrastMember]]


@dataclass(frozen=True, slots=True)
class GraderWork:
    """The rest of a grader's work on a run."""

    id: uuid.UUID
    run_id: uuid.UUID
    grader: LoadedGrader
    rollouts: Sequence[uuid.UUID] = ()
    """Rollouts without a grade."""
    groups: Sequence[ContrastGroup] = ()
    """Contrasts: groups that were not compared yet."""
    is_sampled: bool = False
    """A budget chose the rollouts, and may end before them."""
    canaries: CanaryReport | None = None
    """Budgets: of an earlier part of this work, because canaries cost money."""


def run(context: JobContext) -> None:
    """The body of `graders.run`."""
    work = _claim(context)
    if work is None:
        return
    reason: str | None
    try:
        is_through = run_async(unless_stopped(_grade(work), partial(graders.is_stop_requested, work.id)))
    except GradingPaused as error:
        status, reason = RunStatus.PAUSED, f"Paused after too many failures. {error}"
    else:
        if is_through:
            status, reason = RunStatus.COMPLETED, graders.end_sample(work.id)
        else:
            status, reason = RunStatus.STOPPED, "Stopped on request."
    with transaction() as session:
        graders.end_work(session, work.id, status, reason)


def try_out(context: JobContext) -> None:
    """The body of `graders.try`. The page reads the result from the job's row."""
    grader = graders.load_grader(uuid.UUID(context.arguments["grader_id"]))
    rollouts = graders.load_rollouts([uuid.UUID(each) for each in context.arguments["rollout_ids"]])
    result: dict[str, object] = {"error": "The rollouts were deleted.", "rollouts": []}
    if rollouts:
        result = {"rollouts": [each.model_dump(mode="json") for each in run_async(_try(grader, rollouts))]}
    with transaction() as session:
        keep_answer(session, context.job_id, orjson.loads(json_text(result)))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The job failed for good: record it, so that no page waits for it."""
    if "grader_run_id" in context.arguments:
        graders.end_work(session, uuid.UUID(context.arguments["grader_run_id"]), RunStatus.FAILED, error)
    else:
        keep_answer(session, context.job_id, {"error": error, "rollouts": []})


async def _try(grader: LoadedGrader, rollouts: Sequence[RolloutToGrade]) -> list[TriedRollout]:
    results: list[GradeResult | ContrastResult]
    async with aclosing(make_grader(grader.settings, grader.policy_kind, grader.policy, grader.secret)) as model:
        if grader.settings.kind is GraderKind.CONTRAST and isinstance(model, Questioner):
            members = [ContrastMember(each.facts, is_high=place == 0) for place, each in enumerate(rollouts)]
            results = [await model.contrast(members)]
        else:
            results = [await model.grade(each.facts, seed=each.seed) for each in rollouts]
    tried = []
    for rollout, result in zip(rollouts, results, strict=False):  # a contrast has one result
        values = {name: getattr(result, name) for name in TriedRollout.model_fields if hasattr(result, name)}
        values["rollout_id"] = rollout.rollout_id
        verdicts = result.verdicts if isinstance(result, GradeResult) else []
        values["exchanges"] = [
            GraderExchange(
                messages=exchange.prompt.messages,
                replies=exchange.replies,
                verdict=verdicts[place] if place < len(verdicts) else {},
            )
            for place, exchange in enumerate(result.exchanges)
        ]
        if isinstance(result, ContrastResult):
            values["patterns"] = [
                TriedPattern(
                    name=pattern.name,
                    description=pattern.description,
                    suspicion=pattern.suspicion,
                    citations=[quote for suspect in evidence for quote in suspect.quotes],
                )
                for pattern, evidence in result.patterns
            ]
        else:
            values["citations"] = stored_quotes(result.citations)
        tried.append(TriedRollout.model_validate(values))
    return tried


def _claim(context: JobContext) -> GraderWork | None:
    """None if the work was finished, stopped or handed to another job."""
    work_id = uuid.UUID(context.arguments["grader_run_id"])
    with transaction() as session:
        work = session.get(GraderRun, work_id, with_for_update=True)
        if work is None or work.job_id != context.job_id or work.status.is_over:
            return None
        run, grader_id = session.get_one(Run, work.run_id), work.grader_id
        work.status, work.reason = RunStatus.RUNNING, None
        work.started_at = work.started_at or datetime.now(UTC)
    grader = graders.load_grader(grader_id)
    with transaction() as session:
        work = session.get_one(GraderRun, work_id, with_for_update=True)
        announce(session, topic_of("graders", run.id))
        if isinstance(grader.settings, QuestionSettings) and grader.settings.kind is GraderKind.CONTRAST:
            among = sampled_rollouts(work) if work.is_sampled else None
            groups = contrast_groups(session, run, grader.settings.each, work.where, work.cluster or "", among)
            if work.is_sampled:  # the sample ends at the first group that is not compared
                places = {each: place for place, each in enumerate(session.scalars(sampled_rollouts(work)))}
                groups.sort(key=lambda group: places[group.high[0]])
            compared = {GroupFinding.model_validate(each).key for each in work.findings}
            work.total = len({group.key for group in groups} | compared)
            missing = [group for group in groups if group.key not in compared]
            rest = GraderWork(work_id, run.id, grader, groups=missing, is_sampled=work.is_sampled)
        else:
            if work.is_sampled:
                rollouts = sampled_rollouts(work)
            else:
                rollouts = rollouts_to_grade(session, run, grader.settings, work.where)
            work.total = count_of(session, rollouts)
            ungraded = session.scalars(without_grade(rollouts, grader_id)).all()
            rest = GraderWork(work_id, run.id, grader, rollouts=ungraded, is_sampled=work.is_sampled)
        if work.is_sampled and work.canaries and isinstance(grader.settings, QuestionSettings):
            known = CanaryReport.model_validate(work.canaries)
            rest = replace(rest, canaries=known if len(known.results) == len(demands(grader.settings)) else None)
        return rest


async def _grade(work: GraderWork) -> bool:
    """Run the canaries, then grade. An injectable grader raises no flags."""
    grader, missing = work.grader, len(work.rollouts) + len(work.groups)
    if not missing:
        return True
    async with aclosing(make_grader(grader.settings, grader.policy_kind, grader.policy, grader.secret)) as model:
        report = work.canaries
        if report is None:
            report, usage, problem = await model.run_canaries()
            await asyncio.to_thread(graders.store_canaries, work.id, grader, report, usage)
            if problem:
                raise GradingPaused(f"The model cannot be reached: {problem}")
        raises_flags = grader.settings.kind is not GraderKind.JUDGE and not report.is_injectable
        limit = (grader.policy.get("limits") or {}).get("concurrency") or missing  # of the endpoint
        concurrency = min(grader.settings.concurrency, int(limit), missing)
        received = stored = 0.0  # cost of the grades

        async def affordable(cases: AsyncIterator[C]) -> AsyncIterator[C]:
            async for case in cases:
                unstored = received - stored
                if work.is_sampled and await asyncio.to_thread(graders.is_budget_spent, work.id, unstored):
                    return
                yield case

        async def received_from(request: Awaitable[R]) -> R:
            nonlocal received
            result = await request
            received += result.cost or 0.0
            return result

        def stored_as(store: Callable[[list[tuple[C, R]]], None]) -> Callable[[list[tuple[C, R]]], None]:
            def store_batch(batch: list[tuple[C, R]]) -> None:
                nonlocal stored
                store(batch)
                stored += sum(result.cost or 0.0 for _, result in batch)

            return store_batch

        if work.groups and isinstance(model, Questioner):
            await grade_cases(
                affordable(_load_groups(work.groups)),
                lambda case: received_from(model.contrast(case[2], seed=uuid.UUID(case[0].key).int & 0x3FFFFFFF)),
                stored_as(partial(_store_contrasts, work, model.settings, raises_flags=raises_flags)),
                concurrency=concurrency,
            )
        else:
            await grade_cases(
                affordable(graders.iterate_rollouts(work.rollouts)),
                lambda case: received_from(model.grade(case.facts, seed=case.seed)),
                stored_as(partial(graders.store_grades, work.run_id, grader, raises_flags=raises_flags)),
                concurrency=concurrency,
            )
    return True


async def _load_groups(groups: Sequence[ContrastGroup]) -> AsyncIterator[_LoadedGroup]:
    for group in groups:
        rollouts = await asyncio.to_thread(graders.load_rollouts, [*group.high, *group.low])
        members = [ContrastMember(each.facts, is_high=each.rollout_id in group.high) for each in rollouts]
        if len({each.is_high for each in members}) == 2:
            yield group, rollouts, members


def _store_contrasts(
    work: GraderWork,
    settings: QuestionSettings,
    batch: Sequence[tuple[_LoadedGroup, ContrastResult]],
    *,
    raises_flags: bool,
) -> None:
    """Store findings and raise flags. A failed comparison is no finding: it is tried again."""
    findings: list[dict[str, object]] = []
    drafts: list[FlagDraft] = []
    detector = settings.kind.detector(work.grader.name)
    for (group, rollouts, _), result in batch:
        patterns = []
        for pattern, evidence in result.patterns:
            suspects = []
            for suspect in evidence:
                rollout_id, quotes = rollouts[suspect.position].rollout_id, stored_quotes(suspect.quotes)
                suspects.append(SuspectedRollout(rollout_id=rollout_id, quotes=suspect.quotes))
                if pattern.suspicion >= settings.flags_from:
                    draft = FlagDraft(
                        detector=detector,
                        key=f"{rollout_id}/{work.grader.id}",
                        severity=Severity.WARNING,
                        score=pattern.suspicion,
                        sentence=f"{pattern.name}: {pattern.description[:MAX_REASON]}",
                        evidence=flag_evidence(work.grader.name, settings, quotes),
                        rollout_id=rollout_id,
                        cluster=pattern.name.lower(),
                    )
                    drafts.append(draft)
            found = {"name": pattern.name, "description": pattern.description, "suspicion": pattern.suspicion}
            patterns.append(FoundPattern.model_validate({**found, "rollouts": suspects}))
        if not result.error:
            finding = GroupFinding(
                key=group.key,
                label=group.label,
                high=list(group.high),
                low=list(group.low),
                patterns=patterns,
                dropped=result.dropped,
            )
            findings.append(orjson.loads(json_text(finding.model_dump(mode="json"))))
    with transaction() as session:
        row = session.get(GraderRun, work.id, with_for_update=True)
        if row is None:
            return
        graders.add_usage(row, [result for _, result in batch])
        row.findings = [*row.findings, *findings]
        ids = [draft.rollout_id for draft in drafts]
        statement = select(Rollout.id, Rollout.training_step).where(Rollout.id.in_(ids))
        steps = {row.id: row.training_step for row in session.execute(statement)}
        announce(session, topic_of("graders", work.run_id))
    if raises_flags:
        record_flags(work.run_id, [replace(draft, training_step=steps.get(draft.rollout_id)) for draft in drafts])
