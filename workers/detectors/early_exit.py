"""Episodes are broken off early, and that pays: what was gained is kept."""

import math
import statistics
from dataclasses import dataclass

from backend.domain.vocabulary import Severity, StopReason
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RolloutRow, RunView, StepFigures

FIRST = 3
"""Steps at the beginning that the base rate is taken from."""
NEWEST = 3
"""Steps that are looked at together."""
ONSET = 1.0
"""Standard errors above the base rate from which on a step belongs to the rise: the roll back goes to before it."""
SHOWN = 3
_BROKEN_OFF = {StopReason.UNPARSABLE, StopReason.TOKEN_LIMIT}


@dataclass(frozen=True, slots=True)
class Share:
    """Episodes that were broken off, of so many."""

    exits: float
    count: int

    @classmethod
    def of(cls, steps: list[StepFigures]) -> "Share":
        return cls(sum(figures.unparsable * figures.count for figures in steps), sum(each.count for each in steps))

    @property
    def value(self) -> float:
        return self.exits / self.count

    def rise(self, base: "Share") -> tuple[float, float]:
        """(how much it is above the base rate, the same in standard errors). One exit more and one fewer are assumed,
        so that a base rate of 0 is not taken for certain."""
        both = (self.exits + base.exits + 1) / (self.count + base.count + 2)
        error = math.sqrt(both * (1 - both) * (1 / self.count + 1 / base.count))
        return self.value - base.value, (self.value - base.value) / error


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    if len(view.steps) < FIRST + NEWEST:
        return []
    base, now = Share.of(view.steps[:FIRST]), Share.of(view.steps[-NEWEST:])
    rise, z = now.rise(base)
    if rise < limits["rise"] or z < limits["z"] or now.exits < limits["fewest"]:
        return []
    rows = [row for figures in view.steps[-NEWEST:] for row in view.recent[figures.step]]
    earned, others = _rewards(rows, is_exit=True), _rewards(rows, is_exit=False)
    beside = others if others is not None else statistics.fmean(figures.reward for figures in view.steps[:FIRST])
    if earned is None or earned < beside:
        return []
    last = view.steps[-1].step
    exits = sorted(filter(_is_exit, view.newest), key=lambda row: -row.reward)
    run = FlagDraft(
        detector=DETECTOR.id,
        key="run",
        severity=Severity.ALERT,
        score=bounded(0.5 + rise / 2),
        sentence=f"{now.value:.0%} of the episodes end with a reply that cannot be read, {base.value:.0%} at the"
        f" beginning (z = {z:.1f}); they earn {earned:.3f}, {'the others' if others is not None else 'all at first'}"
        f" {beside:.3f}.",
        evidence={
            "window": [_first_step(view, base), last],
            "series": {"unparsable": [figures.unparsable for figures in view.steps[-60:]]},
            "rollouts": [str(row.id) for row in exits[:5]],
        },
        training_step=last,
    )
    return [run, *(_example(row, rank, last) for rank, row in enumerate(exits[:SHOWN], 1))]


def _first_step(view: RunView, base: Share) -> int:
    """Where the rise began: from there on every step is above the base rate."""
    first = view.steps[-1].step
    for figures in reversed(view.steps):
        if Share.of([figures]).rise(base)[1] <= ONSET:
            break
        first = figures.step
    return first


def _is_exit(row: RolloutRow) -> bool:
    return row.stop_reason in _BROKEN_OFF


def _rewards(rows: list[RolloutRow], *, is_exit: bool) -> float | None:
    rewards = [row.reward for row in rows if _is_exit(row) is is_exit]
    return statistics.fmean(rewards) if rewards else None


def _example(row: RolloutRow, rank: int, step: int) -> FlagDraft:
    reply = row.replies[-1] if row.replies else ""
    return FlagDraft(
        detector=DETECTOR.id,
        key=f"example-{rank}",
        severity=Severity.WARNING,
        score=0.8,
        sentence=f"Ended after {len(row.replies)} turns by a reply that cannot be read, and kept a reward of"
        f" {row.reward:.3f}.",
        evidence={
            "rollouts": [str(row.id)],
            "spans": [{"turn": len(row.replies) - 1, "start": 0, "end": len(reply)}],
            "excerpt": reply[:80],
        },
        rollout_id=row.id,
        training_step=step,
    )


DETECTOR = run_detector("early_exit", look)
