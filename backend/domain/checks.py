"""The certificate: what was checked about one environment version, what was found, and the evidence."""

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
    """Figures and ids behind the evidence."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def certificate_status(results: list[CheckResult]) -> CheckStatus:
    """A certificate fails with its worst check; a skipped check only warns."""
    statuses = {result.status for result in results}
    if CheckStatus.FAILED in statuses or not statuses:
        return CheckStatus.FAILED
    return CheckStatus.WARNED if statuses & {CheckStatus.WARNED, CheckStatus.SKIPPED} else CheckStatus.PASSED
