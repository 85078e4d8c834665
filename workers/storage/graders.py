"""Storage of the graders' tasks: the grader, rollouts, grades, the work's progress, and notices."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import orjson
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.spec import FlagDraft
from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.prompts import RolloutFacts
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings, read_settings
from backend.domain.ids import new_id
from backend.domain.notifications.notices import MOST_EXAMPLES, NoticeKind
from backend.domain.policies.prices import sum_of_costs
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import GradeStatus, PolicyKind, RunStatus, Severity
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.graders import budgets
from backend.graders.flags import raise_flags
from backend.graders.tables import Grade, Grader, GraderRun
from backend.notifications import outbox
from backend.notifications.tables import Notice
from backend.policies.service import secret_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from workers.graders.graders import MAX_RAW, GradeResult, GraderResult, stored_quotes
from workers.storage.detectors import store_flags

CHUNK = 64
"""Rollouts read at once."""
MAX_TOKEN_COUNT = 2**31 - 1
"""The largest number of tokens that a column holds."""
MAX_REFERENCE = 20_000
REFERENCE = "reference"
"""The field of an observation, or of its metadata, with the correct answer for judges."""


class GraderIsGone(Conflict):
    """The grader or its policy was deleted."""


@dataclass(frozen=True, slots=True)
class LoadedGrader:
    """A grader with everything needed to call its model."""

    id: uuid.UUID
    name: str
    settings: JudgeSettings | QuestionSettings
    policy_kind: PolicyKind
    policy: Mapping[str, Any]
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class RolloutToGrade:
    rollout_id: uuid.UUID
    facts: RolloutFacts

    @property
    def seed(self) -> int:
        """Return a seed that is the same each time."""
        return self.rollout_id.int & 0x3FFFFFFF


def load_grader(grader_id: uuid.UUID) -> LoadedGrader:
    """Raises GraderIsGone."""
    with transaction() as session:
        grader = session.get(Grader, grader_id, options=[joinedload(Grader.policy)])
        if grader is None or grader.deleted_at is not None or grader.policy.deleted_at is not None:
            raise GraderIsGone
        policy = grader.policy
        settings = read_settings(grader.settings)
        return LoadedGrader(grader.id, grader.name, settings, policy.kind, policy.configuration, secret_of(policy))


def load_rollouts(ids: Sequence[uuid.UUID]) -> list[RolloutToGrade]:
    """Load these rollouts as graders see them, in the given order."""
    version = joinedload(Rollout.group).joinedload(Group.task).joinedload(Task.version)
    statement = (
        select(Rollout)
        .options(
            *(undefer(column) for column in (Rollout.messages, Rollout.opening, Rollout.steps)),
            joinedload(Rollout.run),
            version.joinedload(EnvironmentVersion.environment),
        )
        .where(Rollout.id.in_(ids))
    )
    loaded = {}
    with transaction() as session:
        for rollout in session.scalars(statement):
            task = rollout.group.task
            # the reference of the last observation that has one; the opening observation counts, too
            observations = [*(step.get("observation") or {} for step in reversed(rollout.steps)), rollout.opening]
            places = [fields for each in observations for fields in (each, each.get("metadata"))]
            found = (each[REFERENCE] for each in places if isinstance(each, Mapping) and each.get(REFERENCE))
            reference = next(found, "")
            text = reference if isinstance(reference, str) else orjson.dumps(reference).decode()
            facts = RolloutFacts(
                messages=rollout.messages,
                split=str(task.split),
                index=task.index,
                level=task.level,
                arguments=task.arguments,
                environment=task.version.environment.name,
                columns=dict(zip(rollout.run.columns, rollout.columns or (), strict=False)),
                reward=rollout.reward,
                reference=text[:MAX_REFERENCE],
                stop_reason=str(rollout.stop_reason or ""),
            )
            loaded[rollout.id] = RolloutToGrade(rollout.id, facts)
    return [loaded[id] for id in ids if id in loaded]


async def iterate_rollouts(ids: Sequence[uuid.UUID]) -> AsyncIterator[RolloutToGrade]:
    """Yield rollouts one by one, read in chunks."""
    for start in range(0, len(ids), CHUNK):
        for rollout in await asyncio.to_thread(load_rollouts, ids[start : start + CHUNK]):
            yield rollout


def is_budget_spent(work_id: uuid.UUID, unstored: float) -> bool:
    """Whether the budget allows no further request. `unstored`: cost of grades that are not stored yet."""
    with transaction() as session:
        work = session.get(GraderRun, work_id)
        return work is None or bool(budgets.why_to_stop(session, work, unstored))


def end_sample(work_id: uuid.UUID) -> str | None:
    """Why a budget ended before its sample, if it did."""
    with transaction() as session:
        work = session.get(GraderRun, work_id, with_for_update=True)
        return (budgets.end_sample(session, work) if work and work.is_sampled else "") or None


def store_grades(
    run_id: uuid.UUID,
    grader: LoadedGrader,
    grades: Sequence[tuple[RolloutToGrade, GradeResult]],
    *,
    raises_flags: bool,
) -> None:
    """One row per rollout. A failed grade is replaced, a completed one stays. Deleted rollouts are skipped."""
    same = ("score", "spread", "answer", "confidence", "reason", "dropped", "tokens_in", "tokens_out", "cost")
    rows = []
    for case, result in grades:
        has_score = result.score is not None
        replies = result.exchanges[-1].replies if result.exchanges else []
        is_unreadable = not has_score and not result.verdicts and bool(replies)
        rows.append(
            {name: getattr(result, name) for name in same}
            | {
                "id": new_id(),
                "grader_id": grader.id,
                "run_id": run_id,
                "rollout_id": case.rollout_id,
                "status": GradeStatus.COMPLETED if has_score else GradeStatus.FAILED,
                "verdicts": orjson.loads(json_text(result.verdicts)),
                "citations": orjson.loads(json_text(stored_quotes(result.citations))),
                "error_message": result.error or None,
                "raw": plain_text(replies[-1])[:MAX_RAW] if is_unreadable else None,
            }
        )
    with transaction() as session:
        ids = {row["rollout_id"] for row in rows}
        existing = set(session.scalars(select(Rollout.id).where(Rollout.id.in_(ids))))
        if kept := [row for row in rows if row["rollout_id"] in existing]:
            new = insert(Grade)
            keys = {"id", "grader_id", "run_id", "rollout_id"}
            statement = new.on_conflict_do_update(
                index_elements=["grader_id", "rollout_id"],
                set_={name: new.excluded[name] for name in kept[0] if name not in keys},
                where=Grade.status == GradeStatus.FAILED,
            )
            session.execute(statement, kept)
            announce(session, topic_of("graders", run_id))
        if raises_flags and (row := session.get(Grader, grader.id)):
            raise_flags(session, run_id, row, rollout_ids=existing)


def add_usage(work: GraderRun, usage: Sequence[GraderResult]) -> None:
    """Add the usage that belongs to no grade."""
    work.tokens_in = min(work.tokens_in + sum(each.tokens_in for each in usage), MAX_TOKEN_COUNT)
    work.tokens_out = min(work.tokens_out + sum(each.tokens_out for each in usage), MAX_TOKEN_COUNT)
    work.cost = sum_of_costs([work.cost, *(each.cost for each in usage)])


def store_canaries(
    work_id: uuid.UUID, grader: LoadedGrader, report: CanaryReport, usage: Sequence[GraderResult]
) -> None:
    """Keep the report. An injectable grader is flagged on its run, and people are notified once."""
    with transaction() as session:
        work = session.get(GraderRun, work_id, with_for_update=True)
        if work is None:
            return
        work.canaries = report.model_dump(mode="json")
        add_usage(work, usage)
        announce(session, topic_of("graders", work.run_id))
        run = session.get(Run, work.run_id)
        if not report.is_injectable or run is None:
            return
        if grader.settings.kind is GraderKind.JUDGE:
            scores = ", ".join(f"{each.name} {each.score:.2f}" for each in report.results if each.score is not None)
            sentence = (
                f"The judge {grader.name} is injectable: a bad answer that demands full marks scored higher than the "
                f"same answer without the demand ({scores}). Do not train on its scores."
            )
        else:
            sentence = (
                f"The grader {grader.name} is injectable: it gives the answer that the data demands, and the opposite "
                "answer if that is demanded. Its answers raise no flags."
            )
        warning = FlagDraft(
            detector="injectable_judge",
            key=str(grader.id),
            severity=Severity.WARNING,
            score=1.0,
            sentence=sentence,
            evidence={"canaries": work.canaries["results"]},
        )
        if store_flags(session, run.id, [warning]):
            outbox.announce(
                session,
                kind=NoticeKind.JUDGING,
                title=f"{grader.name} is injectable: {run.name}",
                text=sentence,
                path=f"/runs/{run.id}/flags",
                run_id=run.id,
                evidence={"detector": warning.detector, **warning.evidence},
            )


def is_stop_requested(work_id: uuid.UUID) -> bool:
    with transaction() as session:
        work = session.get(GraderRun, work_id)
        return work is None or work.stop_requested


def end_work(session: Session, work_id: uuid.UUID, status: RunStatus, reason: str | None) -> None:
    """Record how the work ended, and notify people of flags that are new since the last notice."""
    work = session.get(GraderRun, work_id, with_for_update=True)
    if work is None:
        return
    work.status, work.reason, work.ended_at, work.stop_requested = status, reason, datetime.now(UTC), False
    announce(session, topic_of("graders", work.run_id))
    grader, run = session.get(Grader, work.grader_id), session.get(Run, work.run_id)
    if grader is None or run is None or grader.kind is GraderKind.JUDGE:
        return
    detector = grader.kind.detector(grader.name)
    last_notice = select(func.max(Notice.created_at)).where(
        Notice.run_id == run.id,
        Notice.kind == NoticeKind.JUDGING,
        Notice.evidence["grader"].astext == str(grader.id),
    )
    unannounced = select(Flag).where(
        Flag.run_id == run.id,
        Flag.detector == detector,
        Flag.rollout_id.is_not(None),
        Flag.evidence["answered_by"].astext == grader.name,
        Flag.created_at > func.coalesce(last_notice.scalar_subquery(), work.created_at),
    )
    flags = session.scalars(unannounced.order_by(Flag.score.desc(), Flag.id)).all()
    if not flags:
        return
    rollouts = "1 rollout" if len(flags) == 1 else f"{len(flags):,} rollouts"
    outbox.announce(
        session,
        kind=NoticeKind.JUDGING,
        title=f"{grader.name} flags {rollouts} of {run.name}",
        text=f"The most suspicious one: {flags[0].sentence} Open the review queue to judge them.",
        path=f"/review?{urlencode({'run': str(run.id), 'detector': detector})}",
        run_id=run.id,
        evidence={
            "grader": str(grader.id),
            "detector": detector,
            "flagged": len(flags),
            "seen": flags[0].sentence,
            "rollouts": [str(flag.rollout_id) for flag in flags[:MOST_EXAMPLES]],
        },
    )
