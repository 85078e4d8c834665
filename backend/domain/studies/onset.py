"""Find the checkpoint at which a pattern began: a bisection over checkpoints in the order of training.

Checkpoints are named by their index; `BASE` is the policy that GRPO started from. The functions keep no state: the next
checkpoint follows from the sampled ones, so that a study can continue from its rows. scipy is imported where it
is used, because it loads slowly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from backend.domain.statistics import Proportion, wilson

ALPHA = 0.01
"""One-sided level of each test. A study makes about log2(checkpoints) + 3 tests."""
MIN_EFFECT = 0.05
"""A share that exceeds the base rate by less than this is not an onset, even if it is significant."""
FEW_CHECKPOINTS = 3
"""With fewer checkpoints than this, the interval is coarse."""
BASE = -1


class OnsetOutcome(StrEnum):
    """How the search for an onset ended."""

    FOUND = "found"
    """A checkpoint before the onset is at the base rate."""
    AT_THE_FIRST = "at_the_first"
    """The first checkpoint exceeds the base rate; only the starting policy is before it."""
    NOT_SEEN = "not_seen"
    """No sampled checkpoint exceeds the base rate."""


@dataclass(frozen=True, slots=True)
class OnsetConclusion:
    """The result of a finished bisection."""

    outcome: OnsetOutcome
    honest: int
    """Last sampled index before the onset that is at the base rate, or BASE. Without an onset: the last sampled one."""
    hacking: int | None
    """First sampled index above the base rate."""
    is_monotone: bool
    """No index sampled after the onset is back at the base rate."""


def p_value(base: Proportion, sample: Proportion) -> float:
    """Fisher's exact test, one-sided: the probability of this many more than the base by chance."""
    from scipy.stats import fisher_exact

    table = [[each.found, each.looked_at - each.found] for each in (sample, base)]
    return float(fisher_exact(table, alternative="greater").pvalue)


def exceeds_base_rate(base: Proportion, sample: Proportion) -> bool:
    """Whether the share is significantly above the base rate, and by at least MIN_EFFECT."""
    effect = (sample.value or 0.0) - (base.value or 0.0)
    return effect >= MIN_EFFECT - 1e-12 and p_value(base, sample) <= ALPHA


def min_detectable_share(base: Proportion, rollouts: int) -> float | None:
    """The smallest share of this number of rollouts that exceeds the base rate; None if no share does."""
    counts = range(rollouts + 1)
    least = bisect_left(counts, True, key=lambda flagged: exceeds_base_rate(base, wilson(flagged, rollouts)))
    return least / rollouts if rollouts and least in counts else None


def next_checkpoint(count: int, sampled: Mapping[int, bool], hint: int | None = None) -> int | None:
    """The next of `count` checkpoints to sample, or None if the search has finished.

    `sampled` maps each sampled index to whether it exceeds the base rate. The last checkpoint comes first. If it does
    not exceed, the one at `hint` is next, near the rollouts that people reviewed, because a pattern can disappear
    again. Then the interval is bisected, and finally both neighbors of the result are checked: a contradicting neighbor
    moves the onset or shows that the share is not monotone.
    """
    if not count:
        return None
    if count - 1 not in sampled:
        return count - 1
    above = [index for index, is_above in sampled.items() if is_above]
    if not above:
        return hint if hint is not None and hint not in sampled else None
    high = min(above)
    low = max((index for index, is_above in sampled.items() if not is_above and index < high), default=BASE)
    if high - low > 1:
        return (low + high) // 2
    neighbors = (index for index in (low - 1, high + 1) if 0 <= index < count and index not in sampled)
    return next(neighbors, None)


def max_checkpoints(count: int) -> int:
    """Maximum number of checkpoints that are sampled if the share is monotone, without the starting policy."""
    return min(count, math.ceil(math.log2(count + 1)) + 3) if count else 0


def conclude_onset(sampled: Mapping[int, bool]) -> OnsetConclusion:
    """The result of a finished search."""
    above = [index for index, is_above in sampled.items() if is_above]
    below = [index for index, is_above in sampled.items() if not is_above]
    if not above:
        return OnsetConclusion(OnsetOutcome.NOT_SEEN, max(below, default=BASE), None, is_monotone=True)
    high = min(above)
    low = max((index for index in below if index < high), default=BASE)
    outcome = OnsetOutcome.AT_THE_FIRST if low == BASE else OnsetOutcome.FOUND
    return OnsetConclusion(outcome, low, high, is_monotone=not any(index > high for index in below))


def nearest(steps: Sequence[int], step: int) -> int | None:
    """Index of the checkpoint saved closest to this step; None without checkpoints."""
    return min(range(len(steps)), key=lambda index: abs(steps[index] - step)) if steps else None


def caveats(base: Proportion, steps: Sequence[int], sampled: Mapping[int, tuple[Proportion, bool]]) -> list[str]:
    """Sentences that a reader needs along with the interval. `steps` are the training steps of all checkpoints."""
    if not steps:
        return ["No GRPO checkpoint has its weights, so nothing could be sampled."]
    conclusion = conclude_onset({index: is_above for index, (_, is_above) in sampled.items()})
    sentences = []
    if len(steps) < FEW_CHECKPOINTS:
        noun = "checkpoint" if len(steps) == 1 else "checkpoints"
        sentences.append(f"The run has only {len(steps)} {noun}, so the interval is coarse.")
    if conclusion.outcome is OnsetOutcome.AT_THE_FIRST:
        sentences.append("No checkpoint is before the onset, only the policy that GRPO started from.")
    if conclusion.outcome is OnsetOutcome.NOT_SEEN:
        detectable = min_detectable_share(base, min((count.looked_at for count, _ in sampled.values()), default=0))
        limit = f" A share below {100 * detectable:.1f}% would not be detected." if detectable is not None else ""
        sentences.append(
            f"No sampled checkpoint shows the pattern more often than the starting policy.{limit} It may need the"
            " training tasks, have disappeared again, or be too rare for this number of rollouts."
        )
    if not conclusion.is_monotone and conclusion.hacking is not None:
        after = [
            str(steps[index])
            for index, (_, is_above) in sorted(sampled.items())
            if not is_above and index > conclusion.hacking
        ]
        sentences.append(
            f"The share is not monotone: step {', '.join(after)} is back at the base rate. The onset may be a chance"
            " result, or the pattern comes and goes."
        )
    if base.found and base.low > MIN_EFFECT:
        sentences.append(
            f"The starting policy already shows the pattern in {100 * (base.value or 0):.1f}% of its rollouts: the"
            " onset is where it increased, not where it began."
        )
    return sentences
