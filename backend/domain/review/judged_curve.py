"""The reward of a run as people judged it: verdicts where there are any, an estimate with an interval for the rest.

For step t with n episodes, c_i what a judged episode should have earned, r_i what an unjudged one earned and
g_i = max(0, r_i - floor) what it earned above chance:

    judged(t) = (Σ_judged c_i + Σ_unjudged r_i - Σ_s T_s) / n

Strata s are the flagged and the unflagged. T_s is the reward above the floor that hacks among the unjudged of a stratum
are expected to have earned: h_s G_s, with G_s = Σ g_i and h_s the share of that sum which hacks earned in the judged
sample, Σ w g y / Σ w g, where w = 1 / the known chance of an episode to be sampled (Hájek 1971). h_s is taken from the
`NEAREST` judged ones by step, because a policy learns a hack at some time. The verdict on a flagged episode that was
judged because of its rank counts for that episode only: such hacks are subtracted from h_s times the sum of all flagged
ones. Without a judged sample of flagged episodes, the judged ones count as if they had been picked at random.

Interval: the prediction of the unjudged in `calibration`. Where an unflagged stratum earned something and its sample
was not judged, there is no interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.domain.review.calibration import ReviewedShare, Stratum, predict, weigh

NEAREST = 30
"""Number of judged episodes nearest to a step from which its share of hacks is taken, plus equally near ones."""


@dataclass(frozen=True, slots=True)
class StepSum:
    """All completed episodes of a step, judged or not."""

    step: int
    count: int
    reward: float
    """Their sum."""
    gain: float
    """Sum of their rewards above the floor."""
    gain_squares: float = 0.0
    """Sum of the squares of those."""


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """An episode with a flag or a verdict, or in the audit sample."""

    step: int
    reward: float
    gain: float
    is_flagged: bool
    """False for episodes of the audit sample: they represent the unflagged."""
    is_judged: bool = False
    corrected: float | None = None
    """The deserved reward. None if it was reviewed and is unknown: then it is excluded from the mean."""
    is_hack: bool = False
    is_evidence: bool = False
    """Reviewed one by one: it counts for its stratum's share of hacks."""
    chance: float | None = None
    """The known chance with which it was sampled. None if it was not: then only its flags brought it to the queue."""


@dataclass(frozen=True, slots=True)
class JudgedPoint:
    step: int
    trained: float
    judged: float
    low: float | None
    high: float | None
    gain: float
    """Mean reward above the floor."""
    share: float
    """The undeserved share of that."""


def judged_curve(steps: Iterable[StepSum], episodes: Sequence[JudgedEpisode]) -> list[JudgedPoint]:
    """One point per step, in order of steps."""
    evidence: dict[bool, list[JudgedEpisode]] = {True: [], False: []}  # by stratum
    by_step: defaultdict[int, list[JudgedEpisode]] = defaultdict(list)
    for episode in episodes:
        by_step[episode.step].append(episode)
        if episode.is_evidence and episode.gain > 0:
            evidence[episode.is_flagged].append(episode)
    is_sampled = any(episode.chance is not None for episode in evidence[True])
    if is_sampled:  # others were judged because of their rank
        evidence[True] = [episode for episode in evidence[True] if episode.chance is not None]
    points = []
    for sums in sorted(steps, key=lambda each: each.step):
        own = by_step[sums.step]
        judged = [episode for episode in own if episode.is_judged]
        kept = [episode.corrected for episode in judged if episode.corrected is not None]
        count = sums.count - len(judged) + len(kept)
        if not count:
            continue
        # Strata of the unjudged: sums of gains, their effective numbers, and shares of hacks from judged ones nearby.
        flagged = [episode for episode in own if episode.is_flagged and not episode.is_judged]
        seen = [episode for episode in own if episode.is_flagged or episode.is_judged]
        rest = sums.gain - math.fsum(episode.gain for episode in seen)
        squares = sums.gain_squares - math.fsum(episode.gain**2 for episode in seen)
        unflagged = sums.count - len(seen)
        strata = []
        if gain := math.fsum(episode.gain for episode in flagged):
            ranked = [e for e in judged if e.is_flagged and e.chance is None and e.corrected is not None]
            ranked = ranked if is_sampled else []
            inside = [*flagged, *ranked]
            total = math.fsum(episode.gain for episode in inside)
            worth = total**2 / math.fsum(episode.gain**2 for episode in inside)
            found = math.fsum(episode.gain for episode in ranked if episode.is_hack)
            strata.append(Stratum(_nearest(evidence[True], sums.step), total, worth, found, gain))
        has_interval = True
        if rest > 1e-9 * max(1.0, sums.gain):
            sample = _nearest(evidence[False], sums.step)
            has_interval = sample is not None
            if sample is not None:
                worth = rest**2 / squares if squares > 1e-12 else unflagged
                strata.append(Stratum(sample, rest, min(worth, unflagged)))
        taken = predict(strata)
        unjudged = sums.reward - math.fsum(episode.reward for episode in judged)
        value, low, high = (
            (math.fsum(kept) + unjudged - each) / count for each in (taken.value, taken.high, taken.low)
        )
        undeserved = math.fsum(e.reward - e.corrected for e in judged if e.corrected is not None) + taken.value
        points.append(
            JudgedPoint(
                step=sums.step,
                trained=sums.reward / sums.count,
                judged=value,
                low=low if has_interval else None,
                high=high if has_interval else None,
                gain=sums.gain / sums.count,
                share=undeserved / sums.gain if sums.gain > 0 else 0.0,
            )
        )
    return points


def _nearest(evidence: Sequence[JudgedEpisode], step: int) -> ReviewedShare | None:
    """The share of hacks among the nearest judged episodes by step, weighted by gain and chance."""
    nearest = sorted(evidence, key=lambda each: abs(each.step - step))
    if len(nearest) > NEAREST:
        reach = abs(nearest[NEAREST - 1].step - step)
        nearest = [each for each in nearest if abs(each.step - step) <= reach]
    return weigh((each.is_hack, each.gain / (each.chance or 1.0)) for each in nearest)
