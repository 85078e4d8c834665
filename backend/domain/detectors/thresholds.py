"""Thresholds of detectors for one run, as texts hold them, and what is wrong with one."""

import re
from collections import Counter
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    model_serializer,
    model_validator,
)

from backend.domain.detectors.catalogue import FACES
from backend.domain.detectors.spec import SUSPICION, Face

MOST_THRESHOLDS = 100
_THRESHOLD = re.compile(r"(?P<detector>[a-z_]{1,60})\.(?P<name>[a-z_]{1,60})=(?P<value>[^=\s]{1,30})")


def problem_of(face: Face, name: str, value: float) -> str | None:
    """What is wrong with a threshold, in words for a person."""
    if name not in face.thresholds:
        return f"{face.id} has no threshold {name}; it has {', '.join(face.thresholds)}."
    if name == SUSPICION and not 0 <= value <= 1:
        return f"{name} is a number from 0 to 1."
    return None


class Threshold(BaseModel):
    """Of one detector. In JSON, in forms and on the command line it is the text `paid_exit.reward=0.6`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detector: str
    name: str
    value: FiniteFloat

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _THRESHOLD.fullmatch(value.strip())
        if match is None:
            raise ValueError(
                f"write a threshold as detector.name=number, e.g. paid_exit.reward=0.6, not {value[:60]!r}"
            )
        return match.groupdict()

    @model_validator(mode="after")
    def _known(self) -> "Threshold":
        if self.detector not in FACES:
            raise ValueError(f"there is no detector {self.detector}")
        if problem := problem_of(FACES[self.detector], self.name, self.value):
            raise ValueError(problem.rstrip("."))
        return self

    @model_serializer
    def __str__(self) -> str:
        return f"{self.detector}.{self.name}={self.value:.12g}"


def _parts(value: Any) -> Any:
    """A text, also as a part of a list, holds several, set apart by commas or blanks."""
    if value is None:
        return []
    if isinstance(value, str):
        return [part for part in re.split(r"[,\s]+", value) if part]
    if isinstance(value, list):
        return [part for each in value for part in (_parts(each) if isinstance(each, str) else [each])]
    return value


def _each_once(found: list[Threshold]) -> list[Threshold]:
    counts = Counter((each.detector, each.name) for each in found)
    if twice := [".".join(name) for name, count in counts.items() if count > 1]:
        raise ValueError(f"given more than once: {', '.join(twice)}")
    return found


Thresholds = Annotated[
    list[Threshold], BeforeValidator(_parts), Field(max_length=MOST_THRESHOLDS), AfterValidator(_each_once)
]
"""Of several detectors, for one run."""
