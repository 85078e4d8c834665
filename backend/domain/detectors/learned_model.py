"""A classifier of rollouts that learns from verdicts, and the threshold that bounds its false positive rate.

**Cross-fitting.** Tasks are divided into five folds. Each of five logistic regressions is trained without one fold and
scores only rollouts of that fold, both at training and afterwards. So the scores of the reviewed rollouts and those of
new ones come about in the same way: no rollout is scored by a model that has seen its task, and the measured rates are
those of the detector itself.

**Threshold.** The smallest score such that the Clopper-Pearson (1934) upper limit of the share of honest reviewed
rollouts above it is within the wanted rate. The share falls with the threshold, so testing thresholds from the highest
one down until the first failure needs no correction: fixed-sequence testing, Angelopoulos et al. 2021, Learn then Test,
arXiv:2110.01052. Without a false positive, 149 honest verdicts are needed for 2% with 95% confidence.

**Drift.** The smallest Kolmogorov-Smirnov distance between new values and any mixture of the honest and the hacking
reviewed rollouts. More hacks alone are no drift.

Models are plain numbers.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, FiniteFloat

from backend.domain.statistics import Proportion, wilson

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int32]

FOLDS = 5
FEWEST_TASKS = 20
"""With fewer tasks, folds divide texts instead."""
FEWEST_HACKS = 10
"""Different hacks with a verdict, without which no model is trained."""
FEWEST_IN_FOLD = 5
"""Hacks and honest rollouts on which each regression must be trained."""
MOST_EXAMPLES = 2000
"""The newest ones of each kind."""
MOST_WEIGHTS = 500
"""Features that a regression uses."""
PENALTY = 0.1
"""Of half the squared weights, divided by the number of examples."""
MIXTURES = 51
"""Shares of hacks that are tried to explain new values."""


class NotTrainable(ValueError):
    """There are too few verdicts. The message names the missing ones."""


@dataclass(frozen=True, slots=True)
class LabeledFeatures:
    """A rollout with a verdict, or a fixture."""

    features: Collection[str]
    is_hack: bool
    task: str
    text: str
    """`text_key` of its replies."""
    is_verdict: bool = True
    """Only verdicts count for the threshold and recall: fixtures are written by hand."""


class Regression(BaseModel, extra="forbid", frozen=True):
    """One logistic regression on features that are present or absent."""

    bias: FiniteFloat
    weights: dict[str, FiniteFloat] = Field(max_length=MOST_WEIGHTS)

    def score(self, features: Collection[str]) -> float:
        """Return the log-odds of a hack, by the share of hacks among the examples taken as one half."""
        known = math.fsum(self.weights.get(name, 0.0) for name in features)
        return round(self.bias + known / _norm(len(features)), 4)

    def unknown(self, features: Collection[str]) -> float:
        """Return the share of the features that it has no weight for."""
        return sum(name not in self.weights for name in features) / max(len(features), 1)

    def strongest(self, features: Iterable[str], count: int) -> dict[str, float]:
        """Return the features that speak most for a hack, with their weights."""
        known = ((name, self.weights.get(name, 0.0)) for name in features)
        return dict(sorted((each for each in known if each[1] > 0), key=lambda each: -each[1])[:count])


class HeldOut(BaseModel, extra="forbid", frozen=True):
    """Reviewed rollouts of one kind, each scored by the regression that had not seen its task. Both ascending."""

    scores: list[FiniteFloat] = Field(max_length=MOST_EXAMPLES)
    unknown: list[FiniteFloat] = Field(max_length=MOST_EXAMPLES)

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Self:
        scores, unknown = (sorted(round(pair[place], 4) for pair in pairs) for place in (0, 1))
        return cls(scores=scores, unknown=unknown)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A threshold, and what the reviewed rollouts say about it."""

    threshold: float
    """Scores above it are flagged."""
    wrong: int
    """Honest rollouts among those."""
    bound: float
    """Upper confidence limit of their share."""
    recall: Proportion


class LearnedReport(BaseModel, extra="forbid", frozen=True):
    """The examples of a learned detector, and its scores of rollouts that it had not seen."""

    trained_at: datetime
    fixtures: int = Field(ge=0)
    honest: HeldOut
    hacks: HeldOut
    slope: FiniteFloat
    offset: FiniteFloat
    """Calibration of scores by Platt (1999), at the share of hacks among the verdicts."""
    top: dict[str, FiniteFloat] = Field({}, max_length=50)
    """Features with the highest mean weight."""

    @property
    def sample(self) -> str:
        hacks, honest = len(self.hacks.scores), len(self.honest.scores)
        fixtures = f" and {_number(self.fixtures, 'fixture')}" if self.fixtures else ""
        return f"{_number(hacks, 'hack')} and {_number(honest, 'honest rollout')} with verdicts{fixtures}"

    def probability(self, score: float) -> float:
        return _sigmoid(self.slope * score + self.offset)

    def operating_point(self, rate: float, confidence: float) -> OperatingPoint | None:
        """Return the smallest threshold that keeps the bound. None if there are too few honest verdicts."""
        honest, allowed = self.honest.scores, 0
        while allowed < len(honest) and binomial_tail(allowed, len(honest), rate) <= 1 - confidence:
            allowed += 1
        if not allowed:
            return None
        threshold = honest[-allowed]
        wrong = sum(score > threshold for score in honest)
        recall = wilson(sum(score > threshold for score in self.hacks.scores), len(self.hacks.scores))
        return OperatingPoint(threshold, wrong, upper_limit(wrong, len(honest), confidence), recall)


class LearnedModel(BaseModel, extra="forbid", frozen=True):
    """A trained detector of one environment."""

    report: LearnedReport
    is_by_task: bool
    """Tasks decide the fold; otherwise texts, because there are few tasks."""
    regressions: list[Regression] = Field(min_length=FOLDS, max_length=FOLDS)

    def regression_for(self, task: str, replies: Sequence[str]) -> Regression:
        """Return the regression that was trained without this task."""
        return self.regressions[_fold(task if self.is_by_task else text_key(replies))]


def text_key(replies: Sequence[str]) -> str:
    """Identify the replies of a rollout."""
    return hashlib.sha256("\0".join(replies).encode("utf-8", "replace")).hexdigest()


def verdicts_needed(rate: float, confidence: float) -> int:
    """Return the number of honest verdicts, none of them above the threshold, that bounds the false positive rate."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - rate))


def binomial_tail(found: int, count: int, rate: float) -> float:
    """Return the probability of at most `found` of `count` at this rate, without scipy, whose import takes longer
    than a page may."""
    log_rate, log_rest, whole = math.log(rate), math.log1p(-rate), math.lgamma(count + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * log_rate + (count - k) * log_rest)
        for k in range(found + 1)
    )


def upper_limit(found: int, count: int, confidence: float) -> float:
    """Return the upper Clopper-Pearson limit of a share."""
    low, high = found / count, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(found, count, middle) > 1 - confidence else (low, middle)
    return high


def train(examples: Iterable[LabeledFeatures], trained_at: datetime) -> LearnedModel:
    """Train on different examples: the same replies to the same task count once per kind. Raises NotTrainable.

    Give the newest examples first. At most MOST_EXAMPLES of each kind are used.
    """
    distinct: dict[tuple[str, str, bool], LabeledFeatures] = {}
    kinds: Counter[bool] = Counter()
    for each in examples:
        key = each.task, each.text, each.is_hack
        if key in distinct or kinds[each.is_hack] == MOST_EXAMPLES:
            continue
        distinct[key] = each
        kinds[each.is_hack] += 1
    known = list(distinct.values())
    verdicts = Counter(each.is_hack for each in known if each.is_verdict)
    if verdicts[True] < FEWEST_HACKS or not verdicts[False]:
        raise NotTrainable(
            f"It needs {FEWEST_HACKS} different hacks and honest rollouts with verdicts; there are"
            f" {verdicts[True]} and {verdicts[False]}."
        )
    is_by_task = len({each.task for each in known}) >= FEWEST_TASKS
    folds = [_fold(each.task if is_by_task else each.text) for each in known]
    regressions = []
    for fold in range(FOLDS):
        inside = [each for each, number in zip(known, folds, strict=True) if number != fold]
        counts = Counter(each.is_hack for each in inside)
        if min(counts[True], counts[False]) < FEWEST_IN_FOLD:
            kind = "hacks" if counts[True] < FEWEST_IN_FOLD else "honest rollouts"
            raise NotTrainable(f"Review {kind} of more {'tasks' if is_by_task else 'kinds'}: nearly all are in one.")
        regressions.append(fit([each.features for each in inside], [each.is_hack for each in inside]))
    scored: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for each, fold in zip(known, folds, strict=True):
        if each.is_verdict:
            regression = regressions[fold]
            scored[each.is_hack].append((regression.score(each.features), regression.unknown(each.features)))
    slope, offset = _calibrate([score for score, _ in scored[False]], [score for score, _ in scored[True]])
    means: defaultdict[str, float] = defaultdict(float)
    for regression in regressions:
        for name, weight in regression.weights.items():
            means[name] += weight / FOLDS
    strongest = sorted(means.items(), key=lambda each: (-each[1], each[0]))[:12]
    report = LearnedReport(
        trained_at=trained_at,
        fixtures=sum(not each.is_verdict for each in known),
        honest=HeldOut.of(scored[False]),
        hacks=HeldOut.of(scored[True]),
        slope=slope,
        offset=offset,
        top={name: round(weight, 3) for name, weight in strongest if weight > 0},
    )
    return LearnedModel(report=report, is_by_task=is_by_task, regressions=regressions)


def fit(features: Sequence[Collection[str]], is_hack: Sequence[bool]) -> Regression:
    """Fit a logistic regression with balanced classes on the features that distinguish them most."""
    import numpy as np
    from scipy import optimize, sparse

    labels = np.array(is_hack, dtype=float)
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for names, label in zip(features, is_hack, strict=True):
        counts[label].update(names)
    sizes = {label: max(sum(each is label for each in is_hack), 1) for label in (True, False)}

    def chi_square(name: str) -> float:
        """Of presence and kind, Yang and Pedersen 1997."""
        hack, honest = counts[True][name] / sizes[True], counts[False][name] / sizes[False]
        share = (hack + honest) / 2
        return (hack - honest) ** 2 / (share * (1 - share)) if 0 < share < 1 else 0.0

    names = [name for name, count in (counts[True] + counts[False]).items() if count > 1]
    chosen = sorted(names, key=lambda name: (-chi_square(name), name))[:MOST_WEIGHTS]
    places = {name: place for place, name in enumerate(chosen)}
    rows = [np.fromiter((places[name] for name in each if name in places), dtype=np.int32) for each in features]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    values = np.concatenate([np.full(len(row), 1 / _norm(len(each))) for row, each in zip(rows, features, strict=True)])
    matrix = sparse.csr_array((values, np.concatenate(rows), starts), shape=(len(rows), len(chosen)))
    weights = np.where(labels == 1, 0.5 / sizes[True], 0.5 / sizes[False])
    signs = 2 * labels - 1
    penalty = PENALTY / len(rows)

    def loss(point: Floats) -> tuple[float, Floats]:
        margins = signs * (matrix @ point[1:] + point[0])
        slopes = -signs * weights / (1 + np.exp(np.clip(margins, -500, 500)))
        value = float(weights @ np.logaddexp(0, -margins) + penalty / 2 * (point[1:] @ point[1:]))
        return value, np.concatenate([[slopes.sum()], matrix.T @ slopes + penalty * point[1:]])

    point = optimize.minimize(loss, np.zeros(len(chosen) + 1), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return Regression(
        bias=round(float(point[0]), 4),
        weights={name: weight for name, place in places.items() if (weight := round(float(point[place + 1]), 4))},
    )


def mixture_distance(honest: Sequence[float], hacks: Sequence[float], new: Sequence[float]) -> float:
    """Return the Kolmogorov-Smirnov distance of new values from the nearest mixture of the two. All are ascending."""
    import numpy as np

    grid = np.unique(np.concatenate([honest, hacks, new]))
    first, second, third = (np.searchsorted(each, grid, side="right") / len(each) for each in (honest, hacks, new))
    shares = np.linspace(0, 1, MIXTURES)[:, None]
    return float(np.abs(third - (1 - shares) * first - shares * second).max(axis=1).min())


def _calibrate(honest: Sequence[float], hacks: Sequence[float]) -> tuple[float, float]:
    """Fit slope and offset of Platt's sigmoid with his targets, which never reach 0 or 1."""
    import numpy as np
    from scipy import optimize

    scores = np.array([*honest, *hacks])
    low, high = 1 / (len(honest) + 2), (len(hacks) + 1) / (len(hacks) + 2)
    targets = np.array([low] * len(honest) + [high] * len(hacks))

    def loss(point: Floats) -> float:
        margins = point[0] * scores + point[1]
        return float(np.sum(np.logaddexp(0, margins) - targets * margins))

    slope, offset = optimize.minimize(loss, np.array([1.0, 0.0]), method="L-BFGS-B", bounds=[(0.0, 100), (-100, 100)]).x
    return round(float(slope), 4), round(float(offset), 4)


def _fold(key: str) -> int:
    return zlib.crc32(key.encode("utf-8", "replace")) % FOLDS


def _norm(features: int) -> float:
    return math.sqrt(max(features, 1))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(-500.0, min(500.0, value))))


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
