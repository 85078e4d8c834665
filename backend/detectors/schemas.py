"""What people send about detectors."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, FiniteFloat, model_validator

from backend.domain.detectors.settings import DetectorSettings
from backend.domain.detectors.spec import Action


class CutOffForm(BaseModel):
    """From which suspicion on a detector's flags are told in an environment."""

    environment: Annotated[str, Field(max_length=40)]
    suspicion: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    """Left empty: the default."""


class SettingForm(BaseModel):
    """Names and values of thresholds in the same order, as a form sends them; a value left empty is the default."""

    environment: Annotated[str, Field(max_length=40)]
    enabled: bool | None = None
    action: Action | None = None
    name: list[str] = Field(default=[], max_length=32)
    value: list[FiniteFloat] = Field(default=[], max_length=32)

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.name) != len(self.value):
            raise ValueError("give every threshold a number")
        return self

    def settings(self) -> DetectorSettings:
        return DetectorSettings(
            enabled=self.enabled,
            action=self.action,
            thresholds=dict(zip(self.name, self.value, strict=True)),
        )
