"""The face that all checks have: a `Check` looks at a `Subject` and returns a `Finding`."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import CheckStatus
from workers.environments.checks.subject import Subject

SHOWN = 5
"""Rollouts beside a finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw."""

    status: CheckStatus
    evidence: str
    """One or two sentences with numbers."""
    details: dict[str, Any] = field(default_factory=dict)
    rollouts: tuple[Rollout, ...] = ()
    """Those that show it best."""
    applies: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One question to an environment version."""

    id: str
    sentence: str
    """What the environment is held to, in plain words."""
    look: Callable[[Subject], Awaitable[Finding]]
    needs: tuple[str, ...] = ()
    """Checks without which this one makes no sense: it is skipped when one of them failed."""
    theme: str = ""
    """Given by the list of checks."""


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
