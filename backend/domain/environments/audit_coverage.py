"""How much of a grader the audit has tested: three shares and one figure for all, from the results of a certificate.

    score = (killed · kept · executed)^(1/3)

The shares are of wrong answers that lost the reward, of right answers that kept it, and of the grader's branches that
these answers executed. Each has Wilson's 95% interval. The score is their geometric mean: it is 0 if one of them is,
and no share makes up for another one, as it would in a sum.

The score's limits are recovered from those of the shares (MOVER, Zou and Donner 2008, Statistics in Medicine 27) on
the logarithms, which add up: with t = ln of a share and l, u = ln of its limits,

    low = exp(Σ t / 3 - √(Σ (t - l)²) / 3)        high = exp(Σ t / 3 + √(Σ (u - t)²) / 3)

The formula takes the shares as independent samples. Answers derived from one task are not quite independent, and the
branches are all that the grader has: there, the interval is for the branches that it might as well have had.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.domain.statistics import wilson

_PARTS = {
    "wrong_answers_lose": ("killed", "played", "wrong answers lose"),
    "equal_answers_win": ("kept", "played", "right answers keep the reward"),
    "branches_executed": ("executed", "total", "branches of the grader are executed"),
}


FEWEST = 4
"""A share of fewer is shown, but says too little for a score: a thin wrapper of a library's grader has one branch."""


@dataclass(frozen=True, slots=True)
class CoverageShare:
    """One of the three shares, with its 95% interval."""

    check: str
    """The check that measured it."""
    label: str
    found: int
    total: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AuditCoverage:
    shares: tuple[CoverageShare, ...]
    """All shares that were measured."""
    score: float | None
    """Null unless all three were measured, each on at least `FEWEST`."""
    low: float | None
    high: float | None


def audit_coverage(results: Sequence[Mapping[str, object]]) -> AuditCoverage | None:
    """Read the coverage from a certificate's results (`CheckResult`s as JSON); None if nothing was measured."""
    shares = []
    for result in results:
        details = result.get("details")
        if result.get("check") not in _PARTS or not isinstance(details, Mapping):
            continue
        found_name, total_name, label = _PARTS[str(result["check"])]
        found, total = details.get(found_name), details.get(total_name)
        if isinstance(found, int) and isinstance(total, int) and 0 <= found <= total and total:
            limits = wilson(found, total)
            shares.append(
                CoverageShare(str(result["check"]), label, found, total, found / total, limits.low, limits.high)
            )
    if not shares:
        return None
    if len(shares) < len(_PARTS) or any(each.total < FEWEST for each in shares):
        return AuditCoverage(tuple(shares), None, None, None)
    high = math.prod(each.high for each in shares) ** (1 / 3)
    if not all(each.found for each in shares):  # a logarithm of 0: the largest score that the limits allow
        return AuditCoverage(tuple(shares), 0.0, 0.0, high)
    score = math.prod(each.share for each in shares) ** (1 / 3)
    below = math.hypot(*(math.log(each.share / each.low) for each in shares)) / 3
    above = math.hypot(*(math.log(each.high / each.share) for each in shares)) / 3
    return AuditCoverage(tuple(shares), score, score * math.exp(-below), min(1.0, score * math.exp(above)))
