"""The random sample of rollouts that a grader grades within a budget, with a known chance for each rollout.

A rollout's size is the expected standard deviation of the change by an answer: the uncertainty √(p (1 − p)) of its
suspicion p, times its reward, divided among rollouts that look alike. Chances are proportional to sizes (Neyman
1934; Zrnic and Candès 2024, Active Statistical Inference, arXiv:2403.03208). With random numbers u, the rollouts with
the smallest priorities u / size are taken. The first priority that is not taken is the threshold τ, and every rollout
below it has the chance min(1, size · τ) (Ohlsson 1998, Journal of Official Statistics 14, 149; Duffield, Lund and
Thorup 2007, Priority sampling, Journal of the ACM 54, 32). Weights of 1 / chance keep estimates unbiased. A sample that
ends early, because the money is spent, is one with a lower threshold.
"""

import math
import uuid
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

UNFLAGGED = 0.05
"""Suspicion of a rollout that nothing flagged. A certain one is as uncertain: 1 − this."""


@dataclass(frozen=True, slots=True)
class Candidate:
    id: uuid.UUID
    number: float
    """Random, in [0, 1)."""
    reward_share: float
    """Its reward as a share of the highest one."""
    suspicion: float
    """By the flags on it and their measured precision; 0 without flags."""
    kind: Hashable
    """Rollouts of one kind look alike: one answer says much about the others."""


@dataclass(frozen=True, slots=True)
class Chosen:
    id: uuid.UUID
    size: float
    priority: float
    chance: float


def choose(candidates: Sequence[Candidate], most: int) -> list[Chosen]:
    """Return at most this many, in the order in which to grade them."""
    alike = Counter(each.kind for each in candidates)
    sized = [(each, size_of(each, alike[each.kind])) for each in candidates]
    ordered = sorted((each.number / size, size, each.id) for each, size in sized)
    threshold = ordered[most][0] if most < len(ordered) else None
    return [Chosen(id, size, priority, chance_of(size, threshold)) for priority, size, id in ordered[:most]]


def size_of(candidate: Candidate, alike: int = 1) -> float:
    suspicion = min(1 - UNFLAGGED, max(UNFLAGGED, candidate.suspicion))
    earned = 0.5 + min(1.0, max(0.0, candidate.reward_share))
    return math.sqrt(suspicion * (1 - suspicion) / alike) * earned


def chance_of(size: float, threshold: float | None) -> float:
    """None: all are taken."""
    return 1.0 if threshold is None else min(1.0, size * threshold)
