"""Episodes are broken off early and keep the reward earned so far."""

import math
import statistics
from dataclasses import dataclass

from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RolloutRow, RunView, StepFigures
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.vocabulary import Severity, StopReason

SPEC = DetectorSpec(
    id="early_exit",
    title="Early exits are rewarded",
    description="More and more episodes are broken off, and the reward does not fall.",
    formula="share of episodes ended by an unreadable or cut reply in 3 steps - in the first 3 ≥ 0.1 and ≥ 4"
    " standard errors, and these episodes earn no less than the others",
    source="effort collapse; seen with the column `consistent` of a number guessing game",
    subject=Subject.RUN,
    settings={
        "rise": Setting(0.1, "Smallest increase in the share of early exits.", maximum=1),
        "z": Setting(4.0, "Smallest increase in standard errors."),
        "fewest": Setting(8, "Minimum number of early exits."),
    },
    needs=(Need.STEPS,),
)

FIRST = 3
"""Steps at the beginning that the base rate is taken from."""
NEWEST = 3
"""Steps that are tested together."""
ONSET = 1.0
"""Standard errors above the base rate from which on a step belongs to the rise: the roll back goes to before it."""
SHOWN = 3
_BROKEN_OFF = {StopReason.UNPARSABLE, StopReason.TOKEN_LIMIT}


@dataclass(frozen=True, slots=True)
class Share:
    """The number of early exits among a number of episodes."""

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


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    if len(view.steps) < FIRST + NEWEST:
        return []
    base, now = Share.of(view.steps[:FIRST]), Share.of(view.steps[-NEWEST:])
    rise, z = now.rise(base)
    if rise < thresholds["rise"] or z < thresholds["z"] or now.exits < thresholds["fewest"]:
        return []
    rows = [row for figures in view.steps[-NEWEST:] for row in view.recent[figures.step]]
    earned, others = _rewards(rows, is_exit=True), _rewards(rows, is_exit=False)
    beside = others if others is not None else statistics.fmean(figures.reward for figures in view.steps[:FIRST])
    if earned is None or earned < beside:
        return []
    last = view.steps[-1].step
    exits = sorted(filter(_is_exit, view.newest), key=lambda row: -row.reward)
    run = FlagDraft(
        detector=SPEC.id,
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
        detector=SPEC.id,
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


DETECTOR = RunDetector(SPEC, find)
