"""Reports of connection tests of model endpoints."""

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.vocabulary import CheckStatus

MAX_MODELS = 2000


class Finding(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    check: str
    """`reach`, `key`, `model`, `completion`, `seed`, `tools`, `logprobs` or `schema`."""
    status: CheckStatus
    sentence: str
    """What happened."""
    advice: str = ""
    """What to do about it."""


class ConnectionReport(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    base_url: str
    model: str
    findings: list[Finding] = Field(default_factory=list)
    models: list[str] = Field(default_factory=list)
    """Models that the endpoint lists; at most MAX_MODELS."""
    seconds: float = 0.0

    @property
    def status(self) -> CheckStatus:
        found = {finding.status for finding in self.findings}
        order = (CheckStatus.FAILED, CheckStatus.WARNED)
        return next((status for status in order if status in found), CheckStatus.PASSED)
