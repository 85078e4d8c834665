"""How far a judge agrees with people, its scores beside their newest verdicts; and people with each other."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.vocabulary import Verdict

FEWEST = 2
"""Verdicts of each kind without which nothing is said."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """The score of a judge and the verdict of a person on one rollout."""

    rollout_id: uuid.UUID
    score: float
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        """In a person's eyes the reward was earned."""
        return self.verdict is Verdict.HONEST


@dataclass(frozen=True, slots=True)
class Agreement:
    """Honest rollouts should score high, hacks and broken rewards low."""

    count: int
    honest: int
    auc: float
    """The chance that an honest rollout scores higher than another one; a half is a coin's."""
    threshold: float
    """Where the judge's scores agree most with people; from there on it says good."""
    accuracy: float
    """At that threshold: found on the same verdicts, so a little too high."""
    kappa: float
    """Cohen's: agreement beyond chance, at that threshold. 0 is chance, 1 is always."""
    disagreements: list[Opinion]
    """The farthest from the threshold first."""


def agreement(opinions: Sequence[Opinion]) -> Agreement | None:
    """None where people have not judged enough of both kinds. `unsure` is no opinion."""
    known = [opinion for opinion in opinions if opinion.verdict is not Verdict.UNSURE]
    honest = sum(opinion.is_good for opinion in known)
    if min(honest, len(known) - honest) < FEWEST:
        return None
    threshold, accuracy = _best_threshold(known)
    wrong = [opinion for opinion in known if (opinion.score >= threshold) != opinion.is_good]
    return Agreement(
        count=len(known),
        honest=honest,
        auc=_auc(known),
        threshold=threshold,
        accuracy=accuracy,
        kappa=_kappa(known, threshold),
        disagreements=sorted(wrong, key=lambda opinion: -abs(opinion.score - threshold)),
    )


def _auc(known: Sequence[Opinion]) -> float:
    """Mann and Whitney's U over all pairs; ties count a half."""
    from scipy.stats import mannwhitneyu

    good = [opinion.score for opinion in known if opinion.is_good]
    bad = [opinion.score for opinion in known if not opinion.is_good]
    return float(mannwhitneyu(good, bad).statistic) / (len(good) * len(bad))


def _best_threshold(known: Sequence[Opinion]) -> tuple[float, float]:
    """(threshold, accuracy); of equally good ones the middle."""
    import numpy as np

    scores = np.array([opinion.score for opinion in known])
    is_good = np.array([opinion.is_good for opinion in known])
    values = np.unique(scores)
    cuts = np.concatenate(([values[0]], (values[1:] + values[:-1]) / 2, [values[-1] + 1e-6]))
    accuracies = ((scores[None, :] >= cuts[:, None]) == is_good[None, :]).mean(axis=1)
    best = np.flatnonzero(accuracies == accuracies.max())
    chosen = int(best[len(best) // 2])
    return float(cuts[chosen]), float(accuracies[chosen])


def _kappa(known: Sequence[Opinion], threshold: float) -> float:
    return cohens_kappa([(opinion.score >= threshold, opinion.is_good) for opinion in known]) or 0.0


def cohens_kappa(pairs: Sequence[tuple[object, object]]) -> float | None:
    """(observed - by chance) / (1 - by chance) over pairs of ratings; None where chance alone explains all.

    Cohen, A coefficient of agreement for nominal scales, 1960.
    """
    if not pairs:
        return None
    observed = sum(first == second for first, second in pairs) / len(pairs)
    firsts, seconds = (Counter(said) for said in zip(*pairs, strict=True))
    by_chance = sum(firsts[word] * seconds[word] for word in firsts) / len(pairs) ** 2
    return (observed - by_chance) / (1 - by_chance) if by_chance < 1 else None
