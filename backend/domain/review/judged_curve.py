"""The reward of a run as people judged it: verdicts where there are any, an estimate with an interval for the rest.

For step t with n episodes, c_i what a judged episode should have earned, r_i what an unjudged one earned and
g_i = max(0, r_i - floor) what it earned above chance:

    judged(t) = (Σ_judged c_i + Σ_unjudged r_i - Σ_s h_s G_s) / n,    G_s = Σ g_i over the unjudged of stratum s

Strata s are the flagged and the unflagged. h_s is the share of hacks among the judged episodes of the stratum that
earned more than the floor: of the unflagged the audit sample, of the flagged the reviewed ones,
as if they had been picked at random. It is taken from the `NEAREST` judged ones by step, because a policy learns a hack
at some time. This is the stratified estimator of a total (Cochran 1977, Sampling Techniques, §5.3) with the correction
of a hack bounded by what it earned above the floor.

Interval: Wilson's (1927) 95% limits of each h_s, put together by their distances from it (MOVER: Zou and Donner 2008,
Statistics in Medicine 27, 1693): judged - √Σ((u_s - h_s) G_s)² / n to judged + √Σ((h_s - l_s) G_s)² / n. Where an
unflagged stratum earned something and its sample was not reviewed, there is no interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from backend.domain.statistics import CONFIDENCE

_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
NEAREST = 30
"""Number of judged episodes nearest to a step from which its share of hacks is taken, plus equally near ones."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share of a sample with Wilson's 95% limits; of an empty sample from 0 to 1."""

    found: int
    looked_at: int
    low: float = 0.0
    high: float = 1.0

    @property
    def value(self) -> float | None:
        return self.found / self.looked_at if self.looked_at else None


@lru_cache(4096)
def wilson(found: int, looked_at: int) -> Proportion:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), Wilson 1927. In closed form: the import of scipy.stats takes
    longer than a page may."""
    if not looked_at:
        return Proportion(0, 0)
    share, squared = found / looked_at, _Z**2 / looked_at
    reach = _Z * math.sqrt(share * (1 - share) / looked_at + squared / (4 * looked_at))
    low, high = (share + squared / 2 - reach) / (1 + squared), (share + squared / 2 + reach) / (1 + squared)
    return Proportion(found, looked_at, low if found else 0.0, high if found < looked_at else 1.0)


@dataclass(frozen=True, slots=True)
class StepSum:
    """All completed episodes of a step, judged or not."""

    step: int
    count: int
    reward: float
    """Their sum."""
    gain: float
    """Sum of their rewards above the floor."""


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
    evidence: dict[bool, list[tuple[int, bool]]] = {True: [], False: []}  # (step, is_hack) by stratum
    by_step: defaultdict[int, list[JudgedEpisode]] = defaultdict(list)
    for episode in episodes:
        by_step[episode.step].append(episode)
        if episode.is_evidence and episode.gain > 0:
            evidence[episode.is_flagged].append((episode.step, episode.is_hack))
    points = []
    for sums in sorted(steps, key=lambda each: each.step):
        own = by_step[sums.step]
        judged = [episode for episode in own if episode.is_judged]
        kept = [episode.corrected for episode in judged if episode.corrected is not None]
        count = sums.count - len(judged) + len(kept)
        if not count:
            continue
        flagged = math.fsum(episode.gain for episode in own if episode.is_flagged and not episode.is_judged)
        rest = sums.gain - math.fsum(episode.gain for episode in own if episode.is_flagged or episode.is_judged)
        gains = {True: flagged, False: rest if rest > 1e-9 * max(1.0, sums.gain) else 0.0}  # of the unjudged
        shares = {stratum: _share(evidence[stratum], sums.step) for stratum, gain in gains.items() if gain > 0}
        hacks = {stratum: share.value or 0.0 for stratum, share in shares.items()}
        taken = math.fsum(hacks[stratum] * gains[stratum] for stratum in shares)
        unjudged = sums.reward - math.fsum(episode.reward for episode in judged)
        value = (math.fsum(kept) + unjudged - taken) / count
        low = high = None
        if False not in shares or shares[False].looked_at:
            below = math.hypot(*((share.high - hacks[each]) * gains[each] for each, share in shares.items()))
            above = math.hypot(*((hacks[each] - share.low) * gains[each] for each, share in shares.items()))
            low, high = value - below / count, value + above / count
        undeserved = math.fsum(e.reward - e.corrected for e in judged if e.corrected is not None) + taken
        share_undeserved = undeserved / sums.gain if sums.gain > 0 else 0.0
        trained, gain = sums.reward / sums.count, sums.gain / sums.count
        points.append(JudgedPoint(sums.step, trained, value, low, high, gain, share_undeserved))
    return points


def _share(evidence: Sequence[tuple[int, bool]], step: int) -> Proportion:
    """Share of hacks among the nearest judged episodes by step."""
    nearest = sorted(evidence, key=lambda each: abs(each[0] - step))
    if len(nearest) > NEAREST:
        reach = abs(nearest[NEAREST - 1][0] - step)
        nearest = [each for each in nearest if abs(each[0] - step) <= reach]
    return wilson(sum(is_hack for _, is_hack in nearest), len(nearest))
