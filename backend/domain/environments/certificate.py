"""The certificate: what was checked about one environment version, what was found, and the evidence."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.domain.vocabulary import CheckStatus


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its outcome."""

    check: str
    """Its id, e.g. `reset_deterministic`."""
    sentence: str
    """What it holds the environment to, in plain words."""
    status: CheckStatus
    evidence: str
    """What was seen, in one or two sentences with numbers."""
    details: dict[str, Any] = field(default_factory=dict)
    """Figures behind the evidence."""
    seconds: float = 0.0
    theme: str = ""
    """What it is about, e.g. `determinism`."""
    episodes: int = 0
    """Begun for this check; those that an earlier check played are not counted again."""
    rollouts: list[str] = field(default_factory=list)
    """Ids of the rollouts that show it best."""
    applies: bool = True
    """False when the environment has nothing to be held to here, e.g. no levels."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def certificate_status(results: Sequence[CheckResult]) -> CheckStatus:
    """A certificate fails with its worst check; one that could not be looked at only warns."""
    statuses = {result.status for result in results if result.applies}
    if CheckStatus.FAILED in statuses or not statuses:
        return CheckStatus.FAILED
    return CheckStatus.WARNED if statuses & {CheckStatus.WARNED, CheckStatus.SKIPPED} else CheckStatus.PASSED
