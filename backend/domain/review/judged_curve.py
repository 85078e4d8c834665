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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from backend.domain.statistics import CONFIDENCE

_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
NEAREST = 30
"""Judged episodes that a step's share of hacks is taken from, and all others of the same distance."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a sample with Wilson's 95% limits; of an empty sample from 0 to 1."""

    found: int
    looked_at: int
    low: float = 0.0
    high: float = 1.0

    @property
    def value(self) -> float | None:
        return self.found / self.looked_at if self.looked_at else None


def wilson(found: int, looked_at: int) -> Share:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), Wilson 1927. In closed form: the import of scipy.stats takes
    longer than a page may."""
    if not looked_at:
        return Share(0, 0)
    share, squared = found / looked_at, _Z**2 / looked_at
    reach = _Z * math.sqrt(share * (1 - share) / looked_at + squared / (4 * looked_at))
    low, high = (share + squared / 2 - reach) / (1 + squared), (share + squared / 2 + reach) / (1 + squared)
    return Share(found, looked_at, low if found else 0.0, high if found < looked_at else 1.0)


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
class Episode:
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
    """One step, as trained and as judged."""

    step: int
    trained: float
    judged: float
    low: float | None
    high: float | None
    gain: float
    """Mean reward above the floor."""
    share: float
    """How much of that should not have been."""


@dataclass(slots=True)
class _Strata:
    """Evidence on the flagged (True) and the unflagged (False): (step, is_hack) of each."""

    seen: dict[bool, list[tuple[int, bool]]] = field(default_factory=lambda: {True: [], False: []})
    known: dict[tuple[int, int], Share] = field(default_factory=dict)

    def share(self, is_flagged: bool, step: int) -> Share:
        nearest = sorted(self.seen[is_flagged], key=lambda each: abs(each[0] - step))
        if len(nearest) > NEAREST:
            reach = abs(nearest[NEAREST - 1][0] - step)
            nearest = [each for each in nearest if abs(each[0] - step) <= reach]
        key = sum(is_hack for _, is_hack in nearest), len(nearest)
        if key not in self.known:
            self.known[key] = wilson(*key)
        return self.known[key]


def judged_curve(steps: Iterable[StepSum], episodes: Sequence[Episode]) -> list[JudgedPoint]:
    """One point a step, in order of steps."""
    strata = _Strata()
    by_step: defaultdict[int, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_step[episode.step].append(episode)
        if episode.is_evidence and episode.gain > 0:
            strata.seen[episode.is_flagged].append((episode.step, episode.is_hack))
    points = (_point(each, by_step[each.step], strata) for each in sorted(steps, key=lambda each: each.step))
    return [point for point in points if point is not None]


def _point(all_of: StepSum, episodes: Sequence[Episode], strata: _Strata) -> JudgedPoint | None:
    judged = [episode for episode in episodes if episode.is_judged]
    kept = [episode.corrected for episode in judged if episode.corrected is not None]
    count = all_of.count - len(judged) + len(kept)
    if not count:
        return None
    unjudged = all_of.reward - math.fsum(episode.reward for episode in judged)
    gains = _unjudged_gains(all_of, episodes)
    shares = {is_flagged: strata.share(is_flagged, all_of.step) for is_flagged, gain in gains.items() if gain > 0}
    taken = math.fsum((share.value or 0.0) * gains[each] for each, share in shares.items())
    value = (math.fsum(kept) + unjudged - taken) / count
    low, high = _limits(value, count, gains, shares)
    trained = all_of.reward / all_of.count
    undeserved = math.fsum(e.reward - e.corrected for e in judged if e.corrected is not None) + taken
    share = undeserved / all_of.gain if all_of.gain > 0 else 0.0
    return JudgedPoint(all_of.step, trained, value, low, high, all_of.gain / all_of.count, share)


def _unjudged_gains(all_of: StepSum, episodes: Sequence[Episode]) -> dict[bool, float]:
    flagged = math.fsum(episode.gain for episode in episodes if episode.is_flagged and not episode.is_judged)
    rest = all_of.gain - math.fsum(episode.gain for episode in episodes if episode.is_flagged or episode.is_judged)
    return {True: flagged, False: rest if rest > 1e-9 * max(1.0, all_of.gain) else 0.0}


def _limits(
    value: float, count: int, gains: Mapping[bool, float], shares: Mapping[bool, Share]
) -> tuple[float | None, float | None]:
    if (unflagged := shares.get(False)) is not None and not unflagged.looked_at:
        return None, None
    below = math.hypot(*((share.high - (share.value or 0.0)) * gains[each] for each, share in shares.items()))
    above = math.hypot(*(((share.value or 0.0) - share.low) * gains[each] for each, share in shares.items()))
    return value - below / count, value + above / count
