"""Rates that detectors and judges estimate, corrected by verdicts, with 95% intervals.

**Prediction-powered inference.** A detector or a judge sorts all rollouts of a run into strata, such as flagged and not
flagged, and reviewers judge a random sample in which each rollout has a known chance π. A rate is

    θ = Σ_s (Σ_reviewed y + M_s h_s) / N,    h_s = Σ_reviewed w y / Σ_reviewed w,    w = 1 / π

with M_s the number of unreviewed rollouts of stratum s. For predictions with few values, this post-stratified estimator
is what PPI++ arrives at with its best weight (Angelopoulos, Duchi and Zrnic 2023, PPI++: Efficient Prediction-Powered
Inference, arXiv:2311.01453; Cochran 1977, Sampling Techniques, §5A.9). h_s is the ratio estimator for unequal chances
(Hájek 1971), so choosing rollouts that are expected to matter more does not bias it (Zrnic and Candès 2024, Active
Statistical Inference, arXiv:2403.03208).

Its interval predicts the unreviewed rollouts: h_s is drawn from Beta(n h + 1/3, n (1 − h) + 1/3), the hits among m
unreviewed from Binomial(m, h_s), and the limits are the 2.5% and 97.5% quantiles of the sum. n = (Σw)² / Σw² is the
effective number of verdicts (Kish 1965, Survey Sampling, §11.7), and m that of the unreviewed. The prior is Kerman's
(2011, Neutral noninformative and informative conjugate beta and gamma prior distributions, Electronic Journal of
Statistics 5, 1450); prediction by a posterior is Ghosh and Meeden's (1997, Bayesian Methods for Finite Population
Sampling). Unlike normal limits, it holds with few verdicts, and it cannot leave [0, 1].

**Rogan–Gladen.** Without verdicts on the run itself, but with sensitivity and specificity known from verdicts on other
runs, the apparent rate p is corrected to (p + specificity − 1) / (sensitivity + specificity − 1) (Rogan and Gladen
1978, American Journal of Epidemiology 107, 71). Its limits are the quantiles of the same expression over draws of all
three shares from such posteriors. Lang and Reiczigel's (2014, Preventive Veterinary Medicine 113, 13) adjusted limits
are wider: in `benchmarks/calibration.py` they cover 98% rather than 95%.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.domain.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PRIOR = 1 / 3
"""Both parameters of the prior of a share."""
DRAWS = 2000
"""Draws from the posterior, with a fixed seed."""


@dataclass(frozen=True, slots=True)
class ReviewedShare:
    """The reviewed rollouts of a sample: their share of hits, and the number of equally likely ones they are worth."""

    share: float
    count: float

    def draw(self, dice: np.random.Generator) -> NDArray[np.float64]:
        hits = self.share * self.count
        return dice.beta(hits + PRIOR, max(0.0, self.count - hits) + PRIOR, DRAWS)

    @property
    def value(self) -> float:
        return self.share

    @property
    def low(self) -> float:
        """Limit of its 95% interval."""
        from scipy.special import betaincinv

        hits = self.share * self.count
        limit = betaincinv(hits + PRIOR, max(0.0, self.count - hits) + PRIOR, (1 - CONFIDENCE) / 2)
        return min(self.share, float(limit))

    @property
    def high(self) -> float:
        """Limit of its 95% interval."""
        return 1 - ReviewedShare(1 - self.share, self.count).low


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
    value, unknown, draws = known, 0.0, np.zeros(DRAWS)
    for stratum in strata:
        most = stratum.rest if stratum.unreviewed is None else stratum.unreviewed
        if most <= 0.0:
            continue
        if stratum.evidence is None:
            unknown += most
            continue
        size = max(1, round(stratum.rest_count))
        hits = stratum.rest * dice.binomial(size, stratum.evidence.draw(dice)) / size
        draws += np.clip(hits - stratum.found, 0.0, most)
        value += min(most, max(0.0, stratum.rest * stratum.evidence.share - stratum.found))
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Corrected(value, min(value, known + float(low)), max(value, known + float(high) + unknown))


def rogan_gladen(positive: int, count: int, sensitivity: ReviewedShare, specificity: ReviewedShare) -> Corrected | None:
    """Correct a rate of positives by shares that were measured elsewhere; None if the test is no better than chance."""
    import numpy as np

    youden = sensitivity.share + specificity.share - 1
    if youden <= 0.0 or not count:
        return None
    dice = np.random.default_rng(0)
    apparent, true, false = (
        each.draw(dice) for each in (ReviewedShare(positive / count, count), sensitivity, specificity)
    )
    informed = true + false - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where(informed > 0, (apparent + false - 1) / informed, dice.integers(0, 2, DRAWS))
    low, high = np.quantile(np.clip(rates, 0.0, 1.0), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    value = min(1.0, max(0.0, (positive / count + specificity.share - 1) / youden))
    return Corrected(value, min(value, float(low)), max(value, float(high)))
