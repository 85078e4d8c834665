"""How a check is declared: `@check(…)` above the function that inspects a `Subject` and returns a `Finding`.

A check is declared once, next to its implementation. Certificates, their page and the command line show what it
declares. A new check needs its function in one of the topic files and its line in `docs/certificate.md`.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of, gold_bounds, reward_range
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import Estimate, estimate_mean
from backend.domain.vocabulary import CheckStatus
from workers.environments.checks.subject import Subject

TOLERANCE = 1e-6
FLOOR_MARGIN = 0.05
"""Of the reward's range, that a policy which does not try may lie above the floor."""
SHOWN = 5
"""Maximum number of rollouts shown with a finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    status: CheckStatus
    evidence: str
    """One or two sentences with numbers."""
    details: dict[str, Any] = field(default_factory=dict)
    rollouts: tuple[Rollout, ...] = ()
    """Rollouts that show it best."""
    applies: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One question to an environment version."""

    id: str
    theme: str
    """Section of the certificate."""
    label: str
    sentence: str
    """The condition that the environment must meet."""
    advice: str
    """How an author can fix a failure."""
    look: Callable[[Subject], Awaitable[Finding]]
    needs: tuple[str, ...] = ()
    """Checks that must not fail for this one to make sense; otherwise it is skipped."""


def check(
    id: str, *, theme: str, label: str, sentence: str, advice: str, needs: tuple[str, ...] = ()
) -> Callable[[Callable[[Subject], Awaitable[Finding]]], Check]:
    """Declare the function below as a check."""

    def declare(look: Callable[[Subject], Awaitable[Finding]]) -> Check:
        return Check(id, theme, label, sentence, advice, look, needs)

    return declare


def passed(evidence: str, rollouts: Iterable[Rollout] = (), /, **details: Any) -> Finding:
    return Finding(CheckStatus.PASSED, evidence, details, tuple(rollouts)[:SHOWN])


def warned(evidence: str, rollouts: Iterable[Rollout] = (), /, **details: Any) -> Finding:
    return Finding(CheckStatus.WARNED, evidence, details, tuple(rollouts)[:SHOWN])


def failed(evidence: str, rollouts: Iterable[Rollout] = (), /, **details: Any) -> Finding:
    return Finding(CheckStatus.FAILED, evidence, details, tuple(rollouts)[:SHOWN])


def skipped(evidence: str, **details: Any) -> Finding:
    """Something is missing that the author could give: a warning."""
    return Finding(CheckStatus.SKIPPED, evidence, details)


def does_not_apply(evidence: str, **details: Any) -> Finding:
    """There is nothing to hold the environment to: no warning."""
    return Finding(CheckStatus.SKIPPED, evidence, details, applies=False)


def listed(names: Iterable[object], limit: int = 5) -> str:
    """Names in a sentence; beyond the limit, how many more."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more


def clipped(value: object, limit: int = 60) -> str:
    """A value in a sentence."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def floor_limit(manifest: Manifest) -> float | None:
    """The floor and its margin, which needs a range."""
    floor, span = floor_of(manifest), reward_range(manifest)
    return floor if floor is None or span is None else floor + FLOOR_MARGIN * (span[1] - span[0])


def success_bounds(manifest: Manifest) -> list[float] | None:
    """By level: the reward that counts as success, half of the way from the floor to the gold bound."""
    floor, gold = floor_limit(manifest), gold_bounds(manifest)
    return None if floor is None or gold is None else [(floor + bound) / 2 for bound in gold]


def by_level(rollouts: Sequence[Rollout]) -> dict[int, Estimate]:
    """Mean reward by level, in the order of levels."""
    rewards = defaultdict(list)
    for rollout in rollouts:
        rewards[rollout.task.level].append(rollout.reward or 0.0)
    estimates = {level: estimate_mean(rewards[level]) for level in sorted(rewards)}
    return {level: estimate for level, estimate in estimates.items() if estimate}


def figures(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "count": estimate.count}
