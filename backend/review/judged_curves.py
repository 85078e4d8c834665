"""The reward of a run corrected by verdicts: by step as a curve, and for each checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, exists, func, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of
from backend.domain.review.judged_curve import JudgedEpisode, JudgedPoint, StepSum, judged_curve
from backend.domain.statistics import TIE
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.review.tables import AuditSample, VerdictRecord
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run

_UNDESERVED = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})


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


def episodes_of(session: Session, run: Run, phase: Phase, floors: Floors) -> list[JudgedEpisode]:
    """Rollouts with a flag, a verdict or in the audit sample: few compared to the run."""
    judgements = judgements_of(session, run.id)
    sampled = set(session.scalars(select(AuditSample.rollout_id).where(AuditSample.run_id == run.id)))
    flagged = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.rollout_id.is_not(None)).distinct()
    marked = {rollout_id for rollout_id in session.scalars(flagged) if rollout_id} - sampled
    selected = marked | sampled
    ids = selected | judgements.keys()
    if not ids:
        return []
    rescored = _rescored(session, run, [id for id, given in judgements.items() if given.verdict in _UNDESERVED])
    version = Task.version_id if floors.is_mixed else literal(floors.own)
    statement = select(Rollout.id, Rollout.training_step, Rollout.reward, version)
    if floors.is_mixed:
        statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
    episodes = []
    rows: Sequence[Any] = session.execute(statement.where(*_completed(run, phase), Rollout.id.in_(ids))).all()
    for rollout_id, step, reward, version_id in rows:
        floor, judgement = floors.by_version[version_id], judgements.get(rollout_id)
        corrected = None  # the reward that it deserves: by a repaired version, else the floor for a hack
        match judgement.verdict if judgement else None:
            case Verdict.HONEST:
                corrected = reward
            case Verdict.HACK:
                corrected = rescored.get(rollout_id, min(reward, floor))
            case Verdict.BROKEN_REWARD:
                corrected = rescored.get(rollout_id)
        was_reviewed = judgement is not None and not judgement.is_bulk
        episodes.append(
            JudgedEpisode(
                step=step or 0,
                reward=reward,
                gain=max(0.0, reward - floor),
                is_flagged=rollout_id in marked,
                is_judged=judgement is not None,
                corrected=corrected,
                is_hack=corrected is not None and corrected < reward - TIE,
                is_evidence=rollout_id in selected and was_reviewed and corrected is not None,
            )
        )
    return episodes


def judgements_of(session: Session, run_id: uuid.UUID) -> dict[uuid.UUID, Judgement]:
    """The newest verdict other than unsure, by rollout."""
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


MOST_POINTS = 2000
"""Points in a chart; longer runs are thinned out."""


@dataclass(frozen=True, slots=True)
class JudgedReward:
    """A mean as people judged it."""

    mean: float
    low: float | None
    high: float | None
    share: float
    """Share of the reward above the floor that was undeserved."""


def has_verdicts(session: Session, run_id: uuid.UUID) -> bool:
    of_run = exists().where(
        VerdictRecord.run_id == run_id, VerdictRecord.rollout_id.is_not(None), VerdictRecord.taken_back_at.is_(None)
    )
    return bool(session.scalar(select(of_run)))


def curve_of(session: Session, run: Run) -> list[JudgedPoint]:
    """The curve of a training run by step. An evaluation has one point, at step 0."""
    phase = Phase.TRAIN if run.kind is RunKind.TRAINING else Phase.EVALUATION
    return _curve(session, run, phase, floors_of(session, run))


def chart_of(session: Session, run: Run) -> dict[str, Any]:
    """As the chart island reads it, all of it each time: a verdict moves points of the past."""
    points = curve_of(session, run)
    points = points[:: max(1, -(-len(points) // MOST_POINTS))]
    checkpoints = {each.heldout.get("training_step"): each for each in _examined(session, run.id)}
    steps = sorted({point.step for point in points} | {step for step in checkpoints if step is not None})
    by_step = {point.step: point for point in points}
    series = {
        "as trained": [by_step[s].trained if s in by_step else None for s in steps],
        "as judged": [by_step[s].judged if s in by_step else None for s in steps],
        "judged at most": [by_step[s].high if s in by_step else None for s in steps],
        "judged at least": [by_step[s].low if s in by_step else None for s in steps],
    }
    if any("judged" in each.heldout for each in checkpoints.values()):
        series["held-out, as judged"] = [
            checkpoints[s].heldout.get("judged", {}).get("mean") if s in checkpoints else None for s in steps
        ]
    drawn = [{"label": label, "unit": "reward", "values": values} for label, values in series.items()]
    return {"x": steps, "series": drawn, "cursor": "", "replace": True}


def choose_best(session: Session, run_id: uuid.UUID) -> None:
    """Mark the run's best checkpoint: by held-out reward, and where there are verdicts, by that as judged.

    Detectors and reviewers see training episodes. A held-out evaluation without verdicts loses the same share of its
    reward above the floor as the training steps around it.
    """
    examined = _examined(session, run_id)
    if not examined:
        return
    reached = _as_judged(session, session.get_one(Run, run_id), examined) if has_verdicts(session, run_id) else {}
    for each in examined:
        rest = {key: value for key, value in each.heldout.items() if key != "judged"}
        told = {"judged": asdict(reached[each.id])} if each.id in reached else {}
        if each.heldout != rest | told:
            each.heldout = rest | told

    def rank(each: Checkpoint) -> tuple[float, float]:
        mean = reached[each.id].mean if each.id in reached else each.heldout_reward or 0.0
        return -mean, each.created_at.timestamp()

    best = min(examined, key=rank)
    for each in session.scalars(select(Checkpoint).where(Checkpoint.run_id == run_id)):
        each.is_best = each.id == best.id
    session.flush()


def _as_judged(session: Session, run: Run, examined: Sequence[Checkpoint]) -> dict[uuid.UUID, JudgedReward]:
    floors = floors_of(session, run)
    trained = _curve(session, run, Phase.TRAIN, floors)
    if not trained:
        return {}
    heldout = {each.step: each for each in _curve(session, run, Phase.HELDOUT, floors)}
    found = {}
    for each in examined:
        step, saved_after = each.heldout.get("training_step"), each.step if each.stage == Stage.GRPO else 0
        near = min(trained, key=lambda point: abs(point.step - saved_after))
        if step in heldout:
            found[each.id] = _lowered(heldout[step].trained, heldout[step].gain, heldout[step].share, near)
        else:  # its rollouts are not stored
            reward = each.heldout_reward or 0.0
            found[each.id] = _lowered(reward, max(0.0, reward - floors.by_version[floors.own]), 0.0, near)
    return found


def _lowered(reward: float, gain: float, share: float, near: JudgedPoint) -> JudgedReward:
    """Subtract the undeserved share of training, or of verdicts on the evaluation itself if that is larger."""
    share = max(share, near.share)
    mean = reward - share * gain
    if near.low is None or near.high is None or near.gain <= 0:
        return JudgedReward(mean, None, None, share)
    scale = gain / near.gain
    return JudgedReward(mean, mean - scale * (near.judged - near.low), mean + scale * (near.high - near.judged), share)


def _curve(session: Session, run: Run, phase: Phase, floors: Floors) -> list[JudgedPoint]:
    return judged_curve(step_sums(session, run, phase, floors), episodes_of(session, run, phase, floors))


def _examined(session: Session, run_id: uuid.UUID) -> Sequence[Checkpoint]:
    statement = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.heldout_reward.is_not(None))
    return session.scalars(statement.order_by(Checkpoint.created_at)).all()
