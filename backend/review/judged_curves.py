"""The reward of a run corrected by verdicts: by step as a curve, and for each checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Double, Row, cast, exists, func, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.tables import is_among
from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of
from backend.domain.review.judged_curve import JudgedEpisode, JudgedPoint, StepSum, judged_curve
from backend.domain.statistics import TIE
from backend.domain.training.configuration import STEPPED
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.results.rewards import FigureScope, read_rewards
from backend.review.tables import NEWEST_VERDICTS, AuditSample, VerdictRecord
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run

MOST_POINTS = 2000
"""Points in a chart; longer runs are thinned out."""
_UNDESERVED = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})

Floors = Mapping[uuid.UUID, float]
"""What chance earns, by version. A run on several environments has several."""


def floors_of(session: Session, run: Run) -> Floors:
    """Of a version that declares none, the lowest reward that the run was given."""
    played = select(Task.version_id).join(Group, Group.task_id == Task.id).where(Group.run_id == run.id).distinct()
    ids = set(session.scalars(played)) if run.configuration.get("mix") else {run.version_id}
    versions = session.scalars(select(EnvironmentVersion).where(EnvironmentVersion.id.in_(ids)))
    floors = {version.id: floor_of(Manifest.model_validate(version.manifest)) for version in versions}
    lowest = 0.0
    if None in floors.values():
        lowest = session.scalar(select(func.min(Rollout.reward)).where(Rollout.run_id == run.id)) or 0.0
    return {version: lowest if floor is None else floor for version, floor in floors.items()}


def episodes_of(session: Session, run: Run, phase: Phase, floors: Floors) -> list[JudgedEpisode]:
    """Rollouts with a flag, a verdict or in the audit sample: few compared to the run."""
    judgements = judgements_of(session, run.id)
    draws = select(AuditSample.rollout_id, AuditSample.chance, AuditSample.is_flagged)
    sampled = {row.rollout_id: row for row in session.execute(draws.where(AuditSample.run_id == run.id))}
    flagged = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.rollout_id.is_not(None)).distinct()
    marked = {rollout_id for rollout_id in session.scalars(flagged) if rollout_id}
    marked -= {rollout_id for rollout_id, row in sampled.items() if not row.is_flagged}
    ids = marked | sampled.keys() | judgements.keys()
    if not ids:
        return []
    rescored = _rescored(session, run, [id for id, given in judgements.items() if given.verdict in _UNDESERVED])
    is_mixed = bool(run.configuration.get("mix"))
    version = Task.version_id if is_mixed else literal(run.version_id)
    statement = select(Rollout.id, Rollout.training_step, Rollout.reward, version)
    if is_mixed:
        statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
    episodes = []
    rows: Sequence[Any] = session.execute(statement.where(*_completed(run, phase), is_among(Rollout.id, ids))).all()
    for rollout_id, step, reward, version_id in rows:
        floor, judgement = floors[version_id], judgements.get(rollout_id)
        corrected = None  # the reward that it deserves: by a repaired version, else the floor for a hack
        match judgement.verdict if judgement else None:
            case Verdict.HONEST:
                corrected = reward
            case Verdict.HACK:
                corrected = rescored.get(rollout_id, min(reward, floor))
            case Verdict.BROKEN_REWARD:
                corrected = rescored.get(rollout_id)
        is_selected = rollout_id in marked or rollout_id in sampled
        episodes.append(
            JudgedEpisode(
                step=step or 0,
                reward=reward,
                gain=max(0.0, reward - floor),
                is_flagged=rollout_id in marked,
                is_judged=judgement is not None,
                corrected=corrected,
                is_hack=corrected is not None and corrected < reward - TIE,
                chance=sampled[rollout_id].chance if rollout_id in sampled else None,
                is_evidence=is_selected and corrected is not None and not (judgement and judgement.is_bulk),
            )
        )
    return episodes


def judgements_of(session: Session, run_id: uuid.UUID) -> dict[uuid.UUID, Row[uuid.UUID | None, Verdict, bool]]:
    """The newest verdict other than unsure, with `is_bulk`, by rollout."""
    newest = NEWEST_VERDICTS.where(VerdictRecord.run_id == run_id, VerdictRecord.verdict != Verdict.UNSURE)
    return {row.rollout_id: row for row in session.execute(newest) if row.rollout_id}


def _completed(run: Run, phase: Phase) -> list[ColumnElement[bool]]:
    """Held-out rollouts without a step belong to the untrained policy; its warm-up is evaluated at step 0."""
    has_step = [Rollout.training_step.is_not(None)] if phase is Phase.HELDOUT else []
    return [
        Rollout.run_id == run.id,
        Rollout.phase == phase,
        Rollout.status == RolloutStatus.COMPLETED,
        Rollout.reward.is_not(None),
        *has_step,
    ]


def _rescored(session: Session, run: Run, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, float]:
    """The reward of each by the newest re-scoring with another version."""
    rescores = select(Run.id).where(
        Run.source_run_id == run.id, Run.kind == RunKind.RESCORE, Run.version_id != run.version_id
    )
    run_ids = session.scalars(rescores).all() if ids else ()
    if not run_ids:
        return {}
    statement = (
        select(Rollout.source_id, Rollout.reward)
        .where(Rollout.run_id.in_(run_ids), is_among(Rollout.source_id, ids), Rollout.reward.is_not(None))
        .order_by(Rollout.source_id, Rollout.run_id.desc())
        .ext(distinct_on(Rollout.source_id))
    )
    return {source_id: reward for source_id, reward in session.execute(statement) if source_id and reward is not None}


def has_verdicts(session: Session, run_id: uuid.UUID) -> bool:
    of_run = exists().where(
        VerdictRecord.run_id == run_id, VerdictRecord.rollout_id.is_not(None), VerdictRecord.taken_back_at.is_(None)
    )
    return bool(session.scalar(select(of_run)))


def curve_of(session: Session, run: Run, phase: Phase | None = None, floors: Floors | None = None) -> list[JudgedPoint]:
    """The curve of a training run by step. An evaluation has one point, at step 0."""
    phase = phase or (Phase.TRAIN if run.kind is RunKind.TRAINING else Phase.EVALUATION)
    floors = floors_of(session, run) if floors is None else floors
    sums: dict[int, StepSum] = {}
    for version_id, floor in floors.items():
        read = _kept_sums if run.status.is_over else _stored_sums
        for number, *added in read(session, run, phase, version_id, floor):
            before = sums.get(number, StepSum(number, 0, 0.0, 0.0))
            known = (before.count, before.reward, before.gain, before.gain_squares)
            sums[number] = StepSum(number, *(one + other for one, other in zip(known, added, strict=True)))
    return judged_curve([sums[number] for number in sorted(sums)], episodes_of(session, run, phase, floors))


Sums = Iterable[Sequence[Any]]
"""Step, number of rollouts, and the sums of reward, gain above the floor and squared gain."""


def _stored_sums(session: Session, run: Run, phase: Phase, version_id: uuid.UUID, floor: float) -> Sums:
    step = func.coalesce(Rollout.training_step, 0)
    reward = cast(Rollout.reward, Double)
    gain = func.greatest(reward - literal(floor, Double), 0.0)
    statement = select(step, func.count(), func.sum(reward), func.sum(gain), func.sum(gain * gain))
    statement = statement.where(*_completed(run, phase))
    if run.configuration.get("mix"):
        statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
        statement = statement.where(Task.version_id == version_id)
    return session.execute(statement.group_by(step)).all()


def _kept_sums(session: Session, run: Run, phase: Phase, version_id: uuid.UUID, floor: float) -> Sums:
    """The same of a run that has ended, whose rewards are kept."""
    import numpy as np

    rewards = read_rewards(session, run, FigureScope(run.id, phase))
    if run.configuration.get("mix"):
        rewards = rewards.of_versions([version_id])
    reward, steps = rewards.values[:, 0], np.repeat(rewards.groups["step"], rewards.groups["members"])
    is_counted = rewards.is_completed & ~np.isnan(reward)
    if phase is Phase.HELDOUT:
        is_counted &= steps >= 0
    reward, steps = reward[is_counted], np.maximum(steps[is_counted], 0)
    gain = np.maximum(reward - floor, 0.0)
    numbers, place, counts = np.unique(steps, return_inverse=True, return_counts=True)
    sums = (np.bincount(place, values, len(numbers)).tolist() for values in (reward, gain, gain * gain))
    return zip(numbers.tolist(), counts.tolist(), *sums, strict=True)


def chart_of(session: Session, run: Run) -> dict[str, Any]:
    """As the chart island reads it, all of it each time: a verdict moves points of the past."""
    points = curve_of(session, run)
    points = points[:: max(1, -(-len(points) // MOST_POINTS))]
    examined = select(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.heldout_reward.is_not(None))
    by_age = session.scalars(examined.order_by(Checkpoint.created_at))
    checkpoints = {each.heldout.get("training_step"): each for each in by_age}
    steps = sorted({point.step for point in points} | {step for step in checkpoints if step is not None})
    by_step = {point.step: point for point in points}
    drawn = {"as trained": "trained", "as judged": "judged", "judged at most": "high", "judged at least": "low"}
    series = {label: [getattr(by_step.get(step), name, None) for step in steps] for label, name in drawn.items()}
    if any("judged" in each.heldout for each in checkpoints.values()):
        series["held-out, as judged"] = [
            checkpoints[s].heldout.get("judged", {}).get("mean") if s in checkpoints else None for s in steps
        ]
    values = [{"label": label, "unit": "reward", "values": values} for label, values in series.items()]
    return {"x": steps, "series": values, "cursor": "", "replace": True}


def choose_best(session: Session, run_id: uuid.UUID) -> None:
    """Mark the run's best checkpoint: by held-out reward, and where there are verdicts, by that as judged.

    Detectors and reviewers see training episodes. A held-out evaluation without verdicts loses the same share of its
    reward above the floor as the training steps around it.
    """
    statement = select(Checkpoint).where(Checkpoint.run_id == run_id).order_by(Checkpoint.created_at)
    checkpoints = session.scalars(statement).all()
    examined = [each for each in checkpoints if each.heldout_reward is not None]
    if not examined:
        return
    reached = _as_judged(session, session.get_one(Run, run_id), examined) if has_verdicts(session, run_id) else {}
    for each in examined:
        heldout = {key: value for key, value in each.heldout.items() if key != "judged"}
        if each.id in reached:
            heldout["judged"] = reached[each.id]
        if each.heldout != heldout:
            each.heldout = heldout
    means = {each.id: each.heldout_reward or 0.0 for each in examined}
    means |= {id: judged["mean"] or 0.0 for id, judged in reached.items()}
    best = min(examined, key=lambda each: -means[each.id])
    for each in checkpoints:
        each.is_best = each.id == best.id
    session.flush()


def _as_judged(session: Session, run: Run, examined: Sequence[Checkpoint]) -> dict[uuid.UUID, dict[str, float | None]]:
    """By checkpoint: the held-out mean with its interval, and the undeserved share of the reward above the floor."""
    floors = floors_of(session, run)
    trained = curve_of(session, run, Phase.TRAIN, floors)
    if not trained:
        return {}
    heldout = {each.step: each for each in curve_of(session, run, Phase.HELDOUT, floors)}
    found = {}
    for each in examined:
        saved_after = each.step if each.stage in STEPPED else 0
        near = min(trained, key=lambda point: abs(point.step - saved_after))
        if point := heldout.get(each.heldout.get("training_step", -1)):
            reward, gain, share = point.trained, point.gain, max(point.share, near.share)
        else:  # its rollouts are not stored
            reward, share = each.heldout_reward or 0.0, near.share
            gain = max(0.0, reward - floors[run.version_id])
        mean, low, high = reward - share * gain, None, None
        if near.low is not None and near.high is not None and near.gain > 0:
            scale = gain / near.gain
            low, high = mean - scale * (near.judged - near.low), mean + scale * (near.high - near.judged)
        found[each.id] = {"mean": mean, "low": low, "high": high, "share": share}
    return found
