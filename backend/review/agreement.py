"""How far a grader agrees with reviewers, and reviewers with each other."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.vocabulary import Verdict

FEWEST = 2
"""Minimum number of verdicts of each kind."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """The score of a grader and the verdict of a reviewer on one rollout."""

    rollout_id: uuid.UUID
    score: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Agreement:
    """Honest rollouts should score high, hacks and broken rewards low."""

    count: int
    honest: int
    auc: float
    """Probability that an honest rollout scores higher than another one; 0.5 is chance."""
    threshold: float
    """Lowest score that counts as good, where the scores agree most with the verdicts."""
    accuracy: float
    """Accuracy at that threshold. It is slightly too high, because both come from the same verdicts."""
    kappa: float
    """Cohen's kappa at that threshold: 0 is chance, 1 is perfect agreement."""
    disagreements: list[Opinion]
    """Farthest from the threshold first."""


def agreement(opinions: Sequence[Opinion]) -> Agreement | None:
    """Measure the agreement, or return None if there are too few verdicts of a kind. `unsure` does not count.

    AUC is Mann and Whitney's U over all pairs; ties count half.
    """
    import numpy as np
    from scipy.stats import mannwhitneyu

    known = [opinion for opinion in opinions if opinion.verdict is not Verdict.UNSURE]
    scores = np.array([opinion.score for opinion in known], dtype=float)
    is_good = np.array([opinion.verdict is Verdict.HONEST for opinion in known], dtype=bool)
    good, bad = scores[is_good], scores[~is_good]
    if min(len(good), len(bad)) < FEWEST:
        return None
    values = np.unique(scores)
    cuts = np.concatenate(([values[0]], (values[1:] + values[:-1]) / 2, [values[-1] + 1e-6]))
    accuracies = ((scores[None, :] >= cuts[:, None]) == is_good[None, :]).mean(axis=1)
    best = np.flatnonzero(accuracies == accuracies.max())
    chosen = int(best[len(best) // 2])  # the middle of equally good ones
    threshold = float(cuts[chosen])
    is_high = scores >= threshold
    wrong = [known[place] for place in np.flatnonzero(is_high != is_good)]
    return Agreement(
        count=len(known),
        honest=len(good),
        auc=float(mannwhitneyu(good, bad).statistic) / (len(good) * len(bad)),
        threshold=threshold,
        accuracy=float(accuracies[chosen]),
        kappa=cohens_kappa(list(zip(is_high.tolist(), is_good.tolist(), strict=True))) or 0.0,
        disagreements=sorted(wrong, key=lambda opinion: -abs(opinion.score - threshold)),
    )


def cohens_kappa(pairs: Sequence[tuple[object, object]]) -> float | None:
    """(observed - chance) / (1 - chance) over pairs of ratings; None if chance alone explains all.

    Cohen, A coefficient of agreement for nominal scales, 1960.
    """
    if not pairs:
        return None
    observed = sum(first == second for first, second in pairs) / len(pairs)
    firsts, seconds = (Counter(ratings) for ratings in zip(*pairs, strict=True))
    chance = sum(firsts[rating] * seconds[rating] for rating in firsts) / len(pairs) ** 2
    return (observed - chance) / (1 - chance) if chance < 1 else None
