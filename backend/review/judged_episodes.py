"""Reads what the judged curve of a run needs: sums by step, and the episodes that were flagged, drawn or judged."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of
from backend.domain.review.judged_curve import Episode, StepSum
from backend.domain.statistics import TIE
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.review.tables import AuditSample, VerdictRecord
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run


@dataclass(frozen=True, slots=True)
class Floors:
    """What chance earns: of a run on several environments, each has its own."""

    own: uuid.UUID
    by_version: Mapping[uuid.UUID, float]
    is_mixed: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict that counts on a rollout."""

    verdict: Verdict
    is_bulk: bool


def floors_of(session: Session, run: Run) -> Floors:
    """Of a version that declares none, the lowest reward that the run was given."""
    is_mixed = bool(run.configuration.get("mix"))
    wanted = select(Task.version_id).join(Group, Group.task_id == Task.id).where(Group.run_id == run.id).distinct()
    ids = set(session.scalars(wanted)) if is_mixed else {run.version_id}
    versions = session.scalars(select(EnvironmentVersion).where(EnvironmentVersion.id.in_(ids)))
    floors = {version.id: floor_of(Manifest.model_validate(version.manifest)) for version in versions}
    lowest = 0.0
    if None in floors.values():
        lowest = session.scalar(select(func.min(Rollout.reward)).where(Rollout.run_id == run.id)) or 0.0
    known = {version: lowest if floor is None else floor for version, floor in floors.items()}
    return Floors(run.version_id, known, is_mixed)


def step_sums(session: Session, run: Run, phase: Phase, floors: Floors) -> list[StepSum]:
    """An evaluation is one step, 0."""
    sums: dict[int, StepSum] = {}
    for version_id, floor in floors.by_version.items():
        step = func.coalesce(Rollout.training_step, 0)
        gain = func.greatest(Rollout.reward - literal(floor), 0.0)
        statement = select(step, func.count(), func.sum(Rollout.reward), func.sum(gain)).where(*_completed(run, phase))
        if floors.is_mixed:
            statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
            statement = statement.where(Task.version_id == version_id)
        for number, count, reward, earned in session.execute(statement.group_by(step)):
            before = sums.get(number, StepSum(number, 0, 0.0, 0.0))
            sums[number] = StepSum(number, before.count + count, before.reward + reward, before.gain + earned)
    return [sums[number] for number in sorted(sums)]


def episodes_of(session: Session, run: Run, phase: Phase, floors: Floors) -> list[Episode]:
    """Those that anybody or anything looked at; they are few beside the run."""
    judgements = judgements_of(session, run.id)
    sampled = set(session.scalars(select(AuditSample.rollout_id).where(AuditSample.run_id == run.id)))
    flagged = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.rollout_id.is_not(None)).distinct()
    marked = {rollout_id for rollout_id in session.scalars(flagged) if rollout_id} - sampled
    again = _rescored(session, run, [each for each, judgement in judgements.items() if _needs_score(judgement)])
    rows = _rows(session, run, phase, floors, marked | sampled | judgements.keys())
    return [
        _episode(
            row,
            floors,
            judgements.get(row.id),
            again.get(row.id),
            is_flagged=row.id in marked,
            is_evidence=row.id in marked or row.id in sampled,
        )
        for row in rows
    ]


def judgements_of(session: Session, run_id: uuid.UUID) -> dict[uuid.UUID, Judgement]:
    """The newest verdict by rollout that says something: whoever was unsure changes nothing of it."""
    newest = (
        select(VerdictRecord.rollout_id, VerdictRecord.verdict, VerdictRecord.is_bulk)
        .where(VerdictRecord.run_id == run_id, VerdictRecord.rollout_id.is_not(None))
        .where(VerdictRecord.taken_back_at.is_(None), VerdictRecord.verdict != Verdict.UNSURE)
        .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.rollout_id))
    )
    return {
        rollout_id: Judgement(verdict, is_bulk)
        for rollout_id, verdict, is_bulk in session.execute(newest)
        if rollout_id
    }


def _completed(run: Run, phase: Phase) -> list[ColumnElement[bool]]:
    """Held-out rollouts without a step are the untrained policy's, whose warm-up is examined at step 0."""
    has_step = [Rollout.training_step.is_not(None)] if phase is Phase.HELDOUT else []
    return [
        Rollout.run_id == run.id,
        Rollout.phase == phase,
        Rollout.status == RolloutStatus.COMPLETED,
        Rollout.reward.is_not(None),
        *has_step,
    ]


def _rows(session: Session, run: Run, phase: Phase, floors: Floors, ids: Collection[uuid.UUID]) -> Sequence[Any]:
    if not ids:
        return []
    version = Task.version_id if floors.is_mixed else literal(None).label("version_id")
    statement = select(Rollout.id, Rollout.training_step, Rollout.reward, version)
    if floors.is_mixed:
        statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
    return session.execute(statement.where(*_completed(run, phase), Rollout.id.in_(ids))).all()


def _needs_score(judgement: Judgement) -> bool:
    return judgement.verdict in {Verdict.HACK, Verdict.BROKEN_REWARD}


def _rescored(session: Session, run: Run, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, float]:
    """What the newest re-score by another version gives each."""
    if not ids:
        return {}
    statement = (
        select(Rollout.source_id, Rollout.reward)
        .join(Run, Run.id == Rollout.run_id)
        .where(
            Run.source_run_id == run.id,
            Run.kind == RunKind.RESCORE,
            Run.version_id != run.version_id,
            Rollout.source_id.in_(ids),
            Rollout.reward.is_not(None),
        )
        .order_by(Rollout.source_id, Run.id.desc())
        .ext(distinct_on(Rollout.source_id))
    )
    return {source_id: reward for source_id, reward in session.execute(statement) if source_id and reward is not None}


def _episode(
    row: Any,
    floors: Floors,
    judgement: Judgement | None,
    again: float | None,
    *,
    is_flagged: bool,
    is_evidence: bool,
) -> Episode:
    floor = floors.by_version[row.version_id or floors.own]
    corrected = _corrected(row.reward, floor, judgement, again)
    return Episode(
        step=row.training_step or 0,
        reward=row.reward,
        gain=max(0.0, row.reward - floor),
        is_flagged=is_flagged,
        is_judged=judgement is not None,
        corrected=corrected,
        is_hack=corrected is not None and corrected < row.reward - TIE,
        is_evidence=is_evidence and judgement is not None and not judgement.is_bulk and corrected is not None,
    )


def _corrected(reward: float, floor: float, judgement: Judgement | None, again: float | None) -> float | None:
    """What a judged episode should have earned: what a repaired version gives it, else a hack the floor."""
    match judgement.verdict if judgement else None:
        case Verdict.HONEST:
            return reward
        case Verdict.HACK:
            return min(reward, floor) if again is None else again
        case Verdict.BROKEN_REWARD:
            return again
        case _:
            return None
