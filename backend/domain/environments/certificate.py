"""The certificate of an environment version: its checks with their results and evidence."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.domain.vocabulary import CheckStatus


@dataclass(slots=True)
class CheckResult:
    check: str
    """Its id, e.g. `reset_deterministic`."""
    sentence: str
    """The condition that the environment must meet."""
    status: CheckStatus
    evidence: str
    """The observation in one or two sentences with numbers."""
    details: dict[str, object] = field(default_factory=dict)
    """Figures behind the evidence."""
    seconds: float = 0.0
    theme: str = ""
    """Section of the certificate, e.g. `determinism`."""
    episodes: int = 0
    """Episodes started for this check; episodes of earlier checks are not counted again."""
    rollouts: list[str] = field(default_factory=list)
    """Ids of the rollouts that show it best."""
    label: str = ""
    """Its name for people."""
    advice: str = ""
    """How an author can fix a failure or warning."""
    example: str = ""
    """Code that meets the condition, for a failure or warning."""
    applies: bool = True
    """False if there is nothing to check, e.g. no levels."""


def certificate_status(results: Sequence[CheckResult]) -> CheckStatus:
    """Return the worst status of the checks; a skipped check only warns."""
    statuses = {result.status for result in results if result.applies}
    if CheckStatus.FAILED in statuses or not statuses:
        return CheckStatus.FAILED
    return CheckStatus.WARNED if statuses & {CheckStatus.WARNED, CheckStatus.SKIPPED} else CheckStatus.PASSED
