"""The jobs `graders.run` (grade a run's rollouts) and `graders.try` (grade a few and store nothing).

A repeated job continues from the stored grades: completed ones stay, failed ones are tried again.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, graders_topic
from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.domain.detectors.flags import FlagDraft
from backend.domain.graders.evidence import Finding, FoundPattern, Quote, SuspectedRollout
from backend.domain.graders.prompts import ContrastMember
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings
from backend.domain.text import json_text
from backend.domain.vocabulary import RunStatus, Severity
from backend.graders.flags import MAX_REASON, flag_evidence
from backend.graders.schemas import GraderExchange, TriedPattern, TriedRollout
from backend.graders.selection import ContrastGroup, contrast_groups, count_of, rollouts_to_grade, without_grade
from backend.graders.tables import GraderRun
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from workers.graders.batches import A, C, GradingBatch, TooManyFailures
from workers.graders.judges import Judge, make_judge
from workers.graders.questions import Questioner, make_questioner
from workers.graders.results import ContrastResult, GradeResult, stored_quotes
from workers.storage import graders
from workers.storage.graders import LoadedGrader, RolloutToGrade
from workers.tasks.detectors import record_flags
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext


def run(context: JobContext) -> None:
    """The body of `graders.run`."""
    batch = _claim(context)
    if batch is not None:
        run_async(batch.go())


def try_out(context: JobContext) -> None:
    """The body of `graders.try`. The page reads the result from the job's row."""
    grader = graders.load_grader(uuid.UUID(context.arguments["grader_id"]))
    rollouts = graders.load_rollouts([uuid.UUID(each) for each in context.arguments["rollout_ids"]])
    if rollouts:
        tried = run_async(_try(grader, rollouts))
        result: dict[str, Any] = {"rollouts": [each.model_dump(mode="json") for each in tried]}
    else:
        result = {"error": "The rollouts were deleted.", "rollouts": []}
    with transaction() as session:
        keep_answer(session, context.job_id, orjson.loads(json_text(result)))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The job failed for good: record it, so that nobody waits for it."""
    if "grader_run_id" in context.arguments:
        graders.end_work(session, uuid.UUID(context.arguments["grader_run_id"]), RunStatus.FAILED, error)
    else:
        keep_answer(session, context.job_id, {"error": error, "rollouts": []})


def _open(grader: LoadedGrader) -> Judge | Questioner:
    if isinstance(grader.settings, JudgeSettings):
        return make_judge(grader.settings, grader.policy_kind, grader.policy, grader.secret)
    return make_questioner(grader.settings, grader.policy_kind, grader.policy, grader.secret)


async def _try(grader: LoadedGrader, rollouts: Sequence[RolloutToGrade]) -> list[TriedRollout]:
    model = _open(grader)
    try:
        if grader.kind is GraderKind.CONTRAST and isinstance(model, Questioner):
            members = [ContrastMember(each.facts, is_high=place == 0) for place, each in enumerate(rollouts)]
            return [_tried(rollouts[0], await model.contrast(members))]
        return [_tried(each, await model.grade(each.facts, seed=each.seed)) for each in rollouts]
    finally:
        await model.aclose()


def _tried(rollout: RolloutToGrade, result: GradeResult | ContrastResult) -> TriedRollout:
    verdicts = result.verdicts if isinstance(result, GradeResult) else []
    tried = TriedRollout(
        rollout_id=rollout.rollout_id,
        error=result.error,
        dropped=result.dropped,
        seconds=result.seconds,
        tokens_in=result.tokens_in,
        tokens_out=result.tokens_out,
        cost=result.cost,
        exchanges=[
            GraderExchange(
                messages=exchange.prompt.messages,
                replies=exchange.replies,
                verdict=verdicts[place] if place < len(verdicts) else {},
            )
            for place, exchange in enumerate(result.exchanges)
        ],
    )
    if isinstance(result, ContrastResult):
        tried.patterns = [
            TriedPattern(
                name=pattern.name,
                description=pattern.description,
                suspicion=pattern.suspicion,
                citations=[Quote(**each) for rollout in evidence for each in stored_quotes(rollout.quotes)],
            )
            for pattern, evidence in result.patterns
        ]
        return tried
    tried.score, tried.spread = result.score, result.spread
    tried.answer, tried.confidence, tried.reason = result.answer, result.confidence, result.reason
    tried.citations = [Quote(**each) for each in stored_quotes(result.citations)]
    return tried


def _claim(context: JobContext) -> "_Batch[Any, Any] | None":
    """The rest of the work; None if it was finished, stopped or handed to another job."""
    work_id = uuid.UUID(context.arguments["grader_run_id"])
    with transaction() as session:
        work = session.get(GraderRun, work_id, with_for_update=True)
        if work is None or work.job_id != context.job_id or work.status.is_over:
            return None
        of_run, grader_id = session.get_one(Run, work.run_id), work.grader_id
        work.status, work.reason = RunStatus.RUNNING, None
        work.started_at = work.started_at or datetime.now(UTC)
    grader = graders.load_grader(grader_id)
    with transaction() as session:
        work = session.get_one(GraderRun, work_id, with_for_update=True)
        batch: _Batch[Any, Any]
        if isinstance(grader.settings, QuestionSettings) and grader.kind is GraderKind.CONTRAST:
            groups = contrast_groups(session, of_run, grader.settings.each, work.where, work.cluster or "")
            compared = {Finding.model_validate(each).key for each in work.findings}
            work.total = len({group.key for group in groups} | compared)
            missing_groups = [group for group in groups if group.key not in compared]
            batch = _ContrastBatch(work_id, of_run.id, grader, missing_groups)
        else:
            rollouts = rollouts_to_grade(session, of_run, grader.settings, work.where)
            work.total = count_of(session, rollouts)
            batch = _RolloutBatch(work_id, of_run.id, grader, session.scalars(without_grade(rollouts, grader_id)).all())
        announce(session, graders_topic(of_run.id))
    return batch


class _Batch(GradingBatch[C, A], Generic[C, A]):
    """One attempt at the work of a grader on a run."""

    what = "grades"

    def __init__(self, work_id: uuid.UUID, run_id: uuid.UUID, grader: LoadedGrader, total: int) -> None:
        super().__init__(total, grader.concurrency)
        self.work_id, self.run_id, self.grader = work_id, run_id, grader
        self.is_injectable = False
        """A canary manipulated it: its answers raise no flags."""

    def open(self) -> None:
        self.model = _open(self.grader)

    async def aclose(self) -> None:
        await self.model.aclose()

    async def prepare(self) -> None:
        """Run the canaries. Raises TooManyFailures if the model cannot be reached."""
        canaries = await self.model.canaries()
        self.is_injectable = canaries.report.is_injectable
        await asyncio.to_thread(graders.store_canaries, self.work_id, self.grader, canaries.report, canaries.usage)
        if canaries.problem:
            raise TooManyFailures(f"The model cannot be reached: {canaries.problem}")

    def should_stop(self) -> bool:
        with transaction() as session:
            work = session.get(GraderRun, self.work_id)
            return work is None or work.stop_requested

    def end(self, status: RunStatus, reason: str | None) -> None:
        with transaction() as session:
            graders.end_work(session, self.work_id, status, reason)


class _RolloutBatch(_Batch[RolloutToGrade, GradeResult]):
    """Grades each rollout separately."""

    def __init__(
        self, work_id: uuid.UUID, run_id: uuid.UUID, grader: LoadedGrader, missing: Sequence[uuid.UUID]
    ) -> None:
        super().__init__(work_id, run_id, grader, len(missing))
        self._missing = missing

    def cases(self) -> AsyncIterator[RolloutToGrade]:
        return graders.iterate_rollouts(self._missing)

    async def grade(self, case: RolloutToGrade) -> GradeResult:
        return await self.model.grade(case.facts, seed=case.seed)

    def store(self, batch: list[tuple[RolloutToGrade, GradeResult]]) -> None:
        results = [(case.rollout_id, result) for case, result in batch]
        raises_flags = self.grader.kind is not GraderKind.JUDGE and not self.is_injectable
        graders.store_grades(self.run_id, self.grader, results, raises_flags=raises_flags)


@dataclass(frozen=True, slots=True)
class _LoadedGroup:
    group: ContrastGroup
    ids: tuple[uuid.UUID, ...]
    members: tuple[ContrastMember, ...]


class _ContrastBatch(_Batch[_LoadedGroup, ContrastResult]):
    """Compares the rollouts of each group."""

    model: Questioner

    def __init__(
        self, work_id: uuid.UUID, run_id: uuid.UUID, grader: LoadedGrader, missing: Sequence[ContrastGroup]
    ) -> None:
        super().__init__(work_id, run_id, grader, len(missing))
        self._missing = missing

    async def cases(self) -> AsyncIterator[_LoadedGroup]:
        for group in self._missing:
            rollouts = await asyncio.to_thread(graders.load_rollouts, [*group.high, *group.low])
            members = tuple(ContrastMember(each.facts, is_high=each.rollout_id in group.high) for each in rollouts)
            if len({each.is_high for each in members}) == 2:
                yield _LoadedGroup(group, tuple(each.rollout_id for each in rollouts), members)

    async def grade(self, case: _LoadedGroup) -> ContrastResult:
        return await self.model.contrast(case.members, seed=uuid.UUID(case.group.key).int & 0x3FFFFFFF)

    def store(self, batch: list[tuple[_LoadedGroup, ContrastResult]]) -> None:
        """A failed comparison is no finding: it is tried again."""
        with transaction() as session:
            work = session.get(GraderRun, self.work_id, with_for_update=True)
            if work is None:
                return
            graders.add_usage(work, [result for _, result in batch])
            findings = [_finding(loaded, result) for loaded, result in batch if not result.error]
            work.findings = [
                *work.findings,
                *(orjson.loads(json_text(each.model_dump(mode="json"))) for each in findings),
            ]
            ids = [id for loaded, _ in batch for id in loaded.ids]
            statement = select(Rollout.id, Rollout.training_step).where(Rollout.id.in_(ids))
            steps = {row.id: row.training_step for row in session.execute(statement)}
            announce(session, graders_topic(self.run_id))
        if not self.is_injectable:
            drafts = [draft for loaded, result in batch for draft in self._flags(loaded, result, steps)]
            record_flags(self.run_id, drafts)

    def _flags(
        self, loaded: _LoadedGroup, result: ContrastResult, steps: dict[uuid.UUID, int | None]
    ) -> list[FlagDraft]:
        settings = self.model.settings
        return [
            FlagDraft(
                detector=settings.kind.detector(self.grader.name),
                key=f"{loaded.ids[suspect.position]}/{self.grader.id}",
                severity=Severity.WARNING,
                score=pattern.suspicion,
                sentence=f"{pattern.name}: {pattern.description[:MAX_REASON]}",
                evidence=flag_evidence(self.grader.name, settings, stored_quotes(suspect.quotes)),
                rollout_id=loaded.ids[suspect.position],
                training_step=steps.get(loaded.ids[suspect.position]),
                cluster=pattern.name.lower(),
            )
            for pattern, evidence in result.patterns
            if pattern.suspicion >= settings.flags_from
            for suspect in evidence
        ]


def _finding(loaded: _LoadedGroup, result: ContrastResult) -> Finding:
    return Finding(
        key=loaded.group.key,
        label=loaded.group.label,
        high=list(loaded.group.high),
        low=list(loaded.group.low),
        patterns=[
            FoundPattern(
                name=pattern.name,
                description=pattern.description,
                suspicion=pattern.suspicion,
                rollouts=[
                    SuspectedRollout(
                        rollout_id=loaded.ids[suspect.position],
                        quotes=[Quote(**each) for each in stored_quotes(suspect.quotes)],
                    )
                    for suspect in evidence
                ],
            )
            for pattern, evidence in result.patterns
        ],
        dropped=result.dropped,
    )
