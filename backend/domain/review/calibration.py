"""Rates that detectors and judges estimate, corrected by verdicts, with 95% intervals.

**Prediction-powered inference.** A detector or a judge sorts all rollouts of a run into strata, such as flagged and not
flagged, and reviewers judge a random sample in which each rollout has a known chance π. A rate is

    θ = Σ_s (Σ_reviewed y + M_s h_s) / N,    h_s = Σ_reviewed w y / Σ_reviewed w,    w = 1 / π

with M_s the number of unreviewed rollouts of stratum s. For predictions with few values, this post-stratified estimator
is what PPI++ arrives at with its best weight (Angelopoulos, Duchi and Zrnic 2023, PPI++: Efficient Prediction-Powered
Inference, arXiv:2311.01453; Cochran 1977, Sampling Techniques, §5A.9). h_s is the ratio estimator for unequal chances
(Hájek 1971), so choosing rollouts that are expected to matter more does not bias it (Zrnic and Candès 2024, Active
Statistical Inference, arXiv:2403.03208).

Its interval predicts the unreviewed rollouts. With x = n h_s hits among n verdicts, the share has two confidence
distributions: Beta(x + a, n − x + 1 − a) for the lower limit and Beta(x + 1 − b, n − x + b) for the upper one, where a
= ½ min(1, x) and b = ½ min(1, n − x). These are the limits of Jeffreys' prior, except that no hit has the lower limit 0
and no miss the upper limit 1 (Brown, Cai and DasGupta 2001, Statistical Science 16, 101). With 0 for ½, they would be
the exact ones of Clopper and Pearson (1934, Biometrika 26, 404), which cover too often. The hits among m unreviewed are
drawn from Binomial(m, share). The lower limit is the 2.5% quantile of the sum over strata of lower draws, the upper one
the 97.5% quantile of upper draws: melding (Fay, Proschan and Brittain 2015, Biometrics 71, 146), with an effective
number of verdicts as in Bayer, Fay and Graubard (2023, Confidence Intervals for Prevalence Estimates from Complex
Surveys with Imperfect Assays, arXiv:2205.13494). It is n = (Σw)² / Σw² (Kish 1965, Survey Sampling, §11.7), and m that
of the unreviewed. Unlike normal limits, these hold with few verdicts and stay in [0, 1]. The 2,000 draws of a share are
one of each of its 2,000 equally likely parts, in random order (Latin hypercube sampling, McKay, Beckman and Conover
1979, Technometrics 21, 239): independent draws move the limits, and some cells then cover 0.4 points less.

If a stratum has no hit among its verdicts, its upper draws must allow for a share that is hardly ever reached, and the
upper limit is too low with a much smaller probability than 2.5%: u, the share of upper draws above it when the share of
that stratum is 0. The lower limit is then the 5% − u quantile, and vice versa without a miss. So a tail is added to the
attainable probability of the other tail instead of being doubled (Blaker 2000, Canadian Journal of Statistics 28, 783,
for one share; applied to melding here). The two errors exclude each other: where the stratum's share is so high that
the upper limit is missed, the lower one is far below. If another stratum has no miss, both tails grow, and the interval
covers less in the worst case.

**Rogan–Gladen.** Without verdicts on the run itself, but with sensitivity and specificity known from verdicts on other
runs, the apparent rate p is corrected to (p + specificity − 1) / (sensitivity + specificity − 1) (Rogan and Gladen
1978, American Journal of Epidemiology 107, 71). It rises with p and specificity and falls with sensitivity, so its
lower limit is a quantile over lower draws of p and specificity and upper draws of sensitivity, and vice versa. Draws
that are no better than chance count as 0 or 1, and a share on which all verdicts agree is treated as above, unless
several of them widen both sides. A rate above a half is one minus the rate of the negatives. A rate below depends on
the specificity most, and a single share is not smoothed by others: without a false positive its limit is the exact one,
as in the modified interval of Brown, Cai and DasGupta (2001, §4.1.2), and a sensitivity of 1 lends only half of its
tail. Lang and Reiczigel's (2014, Preventive Veterinary Medicine 113, 13) adjusted limits
are wider: `benchmarks/calibration.py` shows both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from backend.domain.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPLIT = 0.5
"""Of Jeffreys' prior. With 0, limits are exact."""
DRAWS = 2000
"""Draws from each confidence distribution. Their order has a fixed seed."""

Draws = tuple["NDArray[np.float64]", "NDArray[np.float64]"]
"""For the lower limit, and for the upper one."""


@dataclass(frozen=True, slots=True)
class ReviewedShare:
    """The reviewed rollouts of a sample: their share of hits, and the number of equally likely ones they are worth."""

    share: float
    count: float

    @property
    def is_extreme(self) -> bool:
        """Whether all verdicts agree."""
        return not 0.0 < self.share < 1.0

    def draw(self, dice: np.random.Generator, *, has_exact_ends: bool = False) -> Draws:
        """Return draws from the lower and from the upper confidence distribution. No lower one is above its upper.

        `has_exact_ends`: where all verdicts agree, the limit is the exact one.
        """
        hits, misses = self.share * self.count, max(0.0, (1 - self.share) * self.count)
        at_low, at_high = SPLIT * min(1.0, hits), SPLIT * min(1.0, misses)
        if has_exact_ends:
            at_low, at_high = at_low * min(1.0, misses), at_high * min(1.0, hits)
        order = dice.permutation(DRAWS)
        lower = _beta_quantiles(hits + at_low, misses + 1 - at_low)
        upper = _beta_quantiles(hits + 1 - at_high, misses + at_high)
        return lower[order], upper[order]

    @property
    def value(self) -> float:
        return self.share

    @property
    def low(self) -> float:
        """Limit of its 95% interval."""
        from scipy.special import betaincinv

        hits = self.share * self.count
        if not hits:
            return 0.0
        shape = hits + SPLIT * min(1.0, hits)
        return min(self.share, float(betaincinv(shape, self.count + 1 - shape, (1 - CONFIDENCE) / 2)))

    @property
    def high(self) -> float:
        """Limit of its 95% interval."""
        return 1 - ReviewedShare(1 - self.share, self.count).low


@lru_cache(maxsize=512)
def _beta_quantiles(hits: float, misses: float) -> NDArray[np.float64]:
    """Return the middles of `DRAWS` equally likely parts of Beta(hits, misses), interpolated on the logits."""
    import numpy as np
    from scipy.special import betaincinv, expit, logit

    if hits <= 0.0 or misses <= 0.0:
        return np.full(DRAWS, float(hits > 0.0))
    grid = np.linspace(-9.0, 9.0, 181)
    parts = (np.arange(DRAWS) + 0.5) / DRAWS
    quantiles: NDArray[np.float64] = np.interp(logit(parts), grid, betaincinv(hits, misses, expit(grid)))
    return quantiles


def weigh(verdicts: Iterable[tuple[bool, float]]) -> ReviewedShare | None:
    """Return the share of hits among `(is_hit, weight)`; None without any. A weight is 1 / chance, times an amount."""
    known = [each for each in verdicts if each[1] > 0]
    total = math.fsum(weight for _, weight in known)
    if not total:
        return None
    hits = math.fsum(weight for is_hit, weight in known if is_hit)
    return ReviewedShare(min(1.0, hits / total), total**2 / math.fsum(weight**2 for _, weight in known))


@dataclass(frozen=True, slots=True)
class Stratum:
    """The part of a population that a sample represents."""

    evidence: ReviewedShare | None
    """None if no rollout of the sample was reviewed: then the share can be anything."""
    rest: float
    """Amount outside the reviewed sample: the number of rollouts, or the sum of their rewards."""
    rest_count: float
    """Effective number of rollouts behind it, (Σ amount)² / Σ amount²."""
    found: float = 0.0
    """Hits in the rest that were reviewed outside the sample."""
    unreviewed: float | None = None
    """The unreviewed part of the rest. Default: all of it."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """A corrected amount or rate with its 95% interval."""

    value: float
    low: float
    high: float

    def scaled(self, total: float) -> Corrected:
        """Return it as a share of a total, within [0, 1]."""
        return Corrected(*(min(1.0, max(0.0, each / total)) for each in (self.value, self.low, self.high)))


def predict(strata: Sequence[Stratum], known: float = 0.0) -> Corrected:
    """Return the amount of hits: `known`, those of reviewed rollouts, and those predicted of unreviewed ones."""
    import numpy as np

    dice = np.random.default_rng(0)
    value, unknown, is_extreme = known, 0.0, False
    draws, attainable = (np.zeros(DRAWS), np.zeros(DRAWS)), (np.zeros(DRAWS), np.zeros(DRAWS))
    for stratum in strata:
        most = stratum.rest if stratum.unreviewed is None else stratum.unreviewed
        if most <= 0.0:
            continue
        if stratum.evidence is None:
            unknown += most
            continue
        size = max(1, round(stratum.rest_count))
        expected = min(most, max(0.0, stratum.rest * stratum.evidence.share - stratum.found))
        for total, total_attainable, shares in zip(draws, attainable, stratum.evidence.draw(dice), strict=True):
            hits = np.clip(stratum.rest * dice.binomial(size, shares) / size - stratum.found, 0.0, most)
            total += hits
            total_attainable += expected if stratum.evidence.is_extreme else hits
        value += expected
        is_extreme |= stratum.evidence.is_extreme
    low, high = _limits(draws, attainable if is_extreme else None)
    return Corrected(value, min(value, known + low), max(value, known + high + unknown))


def rogan_gladen(positive: int, count: int, sensitivity: ReviewedShare, specificity: ReviewedShare) -> Corrected | None:
    """Correct a rate of positives by shares that were measured elsewhere; None if the test is no better than chance."""
    youden = sensitivity.share + specificity.share - 1
    if youden <= 0.0 or not count:
        return None
    value = min(1.0, max(0.0, (positive / count + specificity.share - 1) / youden))
    if value <= 0.5:
        low, high = _limits_of_rare(ReviewedShare(positive / count, count), sensitivity, specificity)
    else:  # the same for the share of negatives
        above, below = _limits_of_rare(ReviewedShare(1 - positive / count, count), specificity, sensitivity)
        low, high = 1 - below, 1 - above
    return Corrected(value, min(value, low), max(value, high))


def _limits_of_rare(
    apparent: ReviewedShare, sensitivity: ReviewedShare, specificity: ReviewedShare
) -> tuple[float, float]:
    """Return the limits of a rate of at most a half, which depends on the specificity more than on the sensitivity."""
    import numpy as np

    dice = np.random.default_rng(0)
    shares = (apparent, sensitivity, specificity)
    drawn = [share.draw(dice, has_exact_ends=share is specificity) for share in shares]
    fixed = [(np.full(DRAWS, s.share),) * 2 if s.is_extreme else d for s, d in zip(shares, drawn, strict=True)]

    def rates(positives: Draws, true: Draws, false: Draws) -> Draws:
        limits = []
        for side, unknown in enumerate((0.0, 1.0)):
            informed = true[1 - side] + false[side] - 1
            rate = (positives[side] + false[side] - 1) / np.maximum(informed, 1e-12)
            limits.append(np.where(informed > 0, np.clip(rate, 0.0, 1.0), unknown))
        return limits[0], limits[1]

    # Shares at the ends that only widen the lower side, and only the upper one. With both, the limits may err together.
    widened = {bool(share.share) is not (share is sensitivity) for share in shares if share.is_extreme}
    attainable = rates(*fixed) if len(widened) == 1 else None
    return _limits(rates(*drawn), attainable, strength=0.5 if sensitivity.is_extreme else 1.0)


def _limits(draws: Draws, attainable: Draws | None, *, strength: float = 1.0) -> tuple[float, float]:
    """Return quantiles of lower and of upper draws.

    `attainable`: with the shares on which all verdicts agree fixed. `strength`: the part of an unattainable tail that
    the other side gets.
    """
    import numpy as np

    tail = (1 - CONFIDENCE) / 2
    lower, upper = draws
    low, high = np.quantile(lower, tail), np.quantile(upper, 1 - tail)
    if attainable is not None:
        above = min(tail, float(np.mean(attainable[1] > high)))
        below = min(tail, float(np.mean(attainable[0] < low)))
        low = np.quantile(lower, tail + strength * (tail - above))
        high = np.quantile(upper, 1 - tail - strength * (tail - below))
    return float(low), float(high)
