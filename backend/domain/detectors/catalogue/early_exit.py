"""Episodes are broken off early and keep the reward earned so far."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from backend.domain.detectors.run_view import BROKEN_OFF, RunView, StepFigures
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="early_exit",
    title="Early exits are rewarded",
    description="More and more episodes are broken off, and the reward does not fall.",
    formula="share of episodes ended by an unreadable or cut reply in 3 steps - in the first 3 ≥ 0.1 and ≥ 4"
    " standard errors, and these episodes earn no less than the others",
    source="effort collapse; seen with the column `consistent` of a number guessing game",
    subject=Subject.RUN,
    settings={
        "rise": ThresholdSpec(0.1, "Smallest increase in the share of early exits.", maximum=1),
        "z": ThresholdSpec(4.0, "Smallest increase in standard errors."),
        "fewest": ThresholdSpec(8, "Minimum number of early exits."),
    },
    needs=(Need.STEPS,),
)

COMPARED = 3
"""The newest steps are compared with as many first ones."""


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if len(view.steps) < 2 * COMPARED:
        return
    first, newest = view.steps[:COMPARED], view.steps[-COMPARED:]
    share, base_share, z = _compare(newest, first)
    exits = sum(figures.unparsable * figures.count for figures in newest)
    if share - base_share < thresholds["rise"] or z < thresholds["z"] or exits < thresholds["fewest"]:
        return
    rewards: dict[bool, list[float]] = {True: [], False: []}
    for row in (row for figures in newest for row in view.recent[figures.step]):
        rewards[row.stop_reason in BROKEN_OFF].append(row.reward)
    others = statistics.fmean(rewards[False] or [figures.reward for figures in first])
    if not rewards[True] or (earned := statistics.fmean(rewards[True])) < others:
        return
    # Where the rise began: from there on every step is above the base rate. A rollback goes to before it.
    rise = itertools.takewhile(lambda figures: _compare([figures], first)[2] > 1.0, reversed(view.steps))
    onset = ([view.steps[-1], *rise])[-1]
    found = [row for row in view.newest if row.stop_reason in BROKEN_OFF]
    found.sort(key=lambda row: -row.reward)
    yield view.flag(
        severity=Severity.ALERT,
        score=0.5 + (share - base_share) / 2,
        sentence=f"{share:.0%} of the episodes end with a reply that cannot be read, {base_share:.0%} at the"
        f" beginning (z = {z:.1f}); they earn {earned:.3f}, {'the others' if rewards[False] else 'all at first'}"
        f" {others:.3f}.",
        window=[onset, view.steps[-1]],
        series={"unparsable": [figures.unparsable for figures in view.steps]},
        rows=found,
    )
    for rank, row in enumerate(found[:3], 1):
        draft = row.flag(
            score=0.8,
            sentence=f"Ended after {len(row.replies)} turns by a reply that cannot be read, and kept a reward of"
            f" {row.reward:.3f}.",
            marks=row.mark_reply(),
        )
        yield replace(draft, key=f"example-{rank}", training_step=view.steps[-1].step)


def _compare(steps: Sequence[StepFigures], base: Sequence[StepFigures]) -> tuple[float, float, float]:
    """Return the share of early exits in some steps, that in the base, and their difference in standard errors.

    One exit more and one fewer are assumed, so that a base rate of 0 is not taken for certain.
    """
    count, base_count = sum(each.count for each in steps), sum(each.count for each in base)
    exits, base_exits = (sum(each.unparsable * each.count for each in part) for part in (steps, base))
    both = (exits + base_exits + 1) / (count + base_count + 2)
    error = math.sqrt(both * (1 - both) * (1 / count + 1 / base_count))
    return exits / count, base_exits / base_count, (exits / count - base_exits / base_count) / error
