"""The two curves of a training run, as trained and as judged, and what each checkpoint reached as judged."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.review.judged_curve import JudgedPoint, judged_curve
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import Phase, RunKind
from backend.errors import NotFound
from backend.review.judged_episodes import Floors, episodes_of, floors_of, step_sums
from backend.review.tables import VerdictRecord
from backend.runs.tables import Run

MOST_POINTS = 2000
"""Of a chart; of a longer run every so many steps."""


@dataclass(frozen=True, slots=True)
class JudgedReward:
    """A mean as people judged it."""

    mean: float
    low: float | None
    high: float | None
    share: float
    """Of what was earned above the floor, how much should not have been."""

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "share": self.share}


def get_run(session: Session, run_id: uuid.UUID) -> Run:
    run = session.get(Run, run_id)
    if run is None:
        raise NotFound("There is no such run.")
    return run


def has_verdicts(session: Session, run_id: uuid.UUID) -> bool:
    of_run = exists().where(
        VerdictRecord.run_id == run_id, VerdictRecord.rollout_id.is_not(None), VerdictRecord.taken_back_at.is_(None)
    )
    return bool(session.scalar(select(of_run)))


def curve_of(session: Session, run: Run) -> list[JudgedPoint]:
    """Of a training run by step; an evaluation has one point, at step 0."""
    return _curve(session, run, _phase(run), floors_of(session, run))


def chart_of(session: Session, run: Run) -> dict[str, Any]:
    """As the chart island reads it, all of it each time: a verdict moves points of the past."""
    points = curve_of(session, run)
    points = points[:: max(1, -(-len(points) // MOST_POINTS))]
    checkpoints = {each.heldout.get("training_step"): each for each in _examined(session, run.id)}
    steps = sorted({point.step for point in points} | {step for step in checkpoints if step is not None})
    by_step = {point.step: point for point in points}
    drawn: list[dict[str, Any]] = [
        _series("as trained", [by_step[s].trained if s in by_step else None for s in steps]),
        _series("as judged", [by_step[s].judged if s in by_step else None for s in steps]),
        _series("judged at most", [by_step[s].high if s in by_step else None for s in steps]),
        _series("judged at least", [by_step[s].low if s in by_step else None for s in steps]),
    ]
    if any("judged" in each.heldout for each in checkpoints.values()):
        told = [checkpoints[s].heldout.get("judged", {}).get("mean") if s in checkpoints else None for s in steps]
        drawn.append(_series("held-out, as judged", told))
    return {"x": steps, "series": drawn, "cursor": "", "replace": True}


def choose_best(session: Session, run_id: uuid.UUID) -> None:
    """Mark the run's best checkpoint: by held-out reward, and where there are verdicts, by that as judged.

    Detectors and people look at training episodes. A held-out examination that nobody judged loses the same share of
    what it earned above the floor as the training steps around it do.
    """
    examined = _examined(session, run_id)
    if not examined:
        return
    reached = _as_judged(session, session.get_one(Run, run_id), examined) if has_verdicts(session, run_id) else {}
    for each in examined:
        rest = {key: value for key, value in each.heldout.items() if key != "judged"}
        told = {"judged": reached[each.id].as_json()} if each.id in reached else {}
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
    """The training's share goes off at least; more where verdicts on the examination itself took more."""
    share = max(share, near.share)
    mean = reward - share * gain
    if near.low is None or near.high is None or near.gain <= 0:
        return JudgedReward(mean, None, None, share)
    scale = gain / near.gain
    return JudgedReward(mean, mean - scale * (near.judged - near.low), mean + scale * (near.high - near.judged), share)


def _curve(session: Session, run: Run, phase: Phase, floors: Floors) -> list[JudgedPoint]:
    return judged_curve(step_sums(session, run, phase, floors), episodes_of(session, run, phase, floors))


def _phase(run: Run) -> Phase:
    return Phase.TRAIN if run.kind is RunKind.TRAINING else Phase.EVALUATION


def _examined(session: Session, run_id: uuid.UUID) -> Sequence[Checkpoint]:
    statement = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.heldout_reward.is_not(None))
    return session.scalars(statement.order_by(Checkpoint.created_at)).all()


def _series(label: str, values: list[float | None]) -> dict[str, Any]:
    return {"label": label, "unit": "reward", "values": values}
