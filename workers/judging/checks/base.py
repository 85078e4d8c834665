"""The face that all checks have: a `Check` looks at a `Subject` and returns a `Finding`."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from backend.domain.vocabulary import CheckStatus
from workers.judging.checks.subject import Subject


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw."""

    status: CheckStatus
    evidence: str
    """One or two sentences with numbers."""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """One question to an environment version."""

    id: str
    sentence: str
    """What the environment is held to, in plain words."""
    look: Callable[[Subject], Awaitable[Finding]]
    needs: tuple[str, ...] = ()
    """Checks without which this one makes no sense: it is skipped when one of them failed."""


def passed(evidence: str, **details: Any) -> Finding:
    return Finding(CheckStatus.PASSED, evidence, details)


def warned(evidence: str, **details: Any) -> Finding:
    return Finding(CheckStatus.WARNED, evidence, details)


def failed(evidence: str, **details: Any) -> Finding:
    return Finding(CheckStatus.FAILED, evidence, details)


def skipped(evidence: str, **details: Any) -> Finding:
    return Finding(CheckStatus.SKIPPED, evidence, details)


def listed(names: Iterable[object], limit: int = 5) -> str:
    """Names in a sentence; beyond the limit, how many more."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more
