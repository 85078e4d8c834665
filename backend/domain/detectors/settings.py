"""Settings of detectors: of an environment, and thresholds of a single run on top of them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, FiniteFloat, model_serializer, model_validator

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Action, DetectorSpec
from backend.domain.text import split_list

_THRESHOLD = re.compile(r"(?P<detector>[a-z_]{1,60})\.(?P<name>[a-z_]{1,60})=(?P<value>[^=\s]{1,30})")


class Threshold(BaseModel, extra="forbid", frozen=True):
    """A threshold of one detector. In JSON, in forms and on the command line it is the text `paid_exit.reward=0.6`."""

    detector: str
    name: str
    value: FiniteFloat

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: object) -> object:
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
        if self.detector not in SPECS:
            raise ValueError(f"there is no detector {self.detector}")
        if problem := SPECS[self.detector].problem_with(self.name, self.value):
            raise ValueError(problem.rstrip("."))
        return self

    @model_serializer
    def __str__(self) -> str:
        return f"{self.detector}.{self.name}={self.value:.12g}"


def _each_once(found: list[Threshold]) -> list[Threshold]:
    counts = Counter((each.detector, each.name) for each in found)
    if twice := [".".join(name) for name, count in counts.items() if count > 1]:
        raise ValueError(f"given more than once: {', '.join(twice)}")
    return found


Thresholds = Annotated[list[Threshold], BeforeValidator(split_list), Field(max_length=100), AfterValidator(_each_once)]
"""Thresholds of one run."""


class DetectorSettings(BaseModel, extra="forbid", frozen=True):
    """Settings of one detector. Missing values keep the value of the layer below."""

    enabled: bool | None = None
    thresholds: dict[str, FiniteFloat] = Field(default={}, max_length=32)
    action: Action | None = None

    def problems(self, spec: DetectorSpec) -> list[str]:
        found = (spec.problem_with(name, value) for name, value in sorted(self.thresholds.items()))
        return [problem for problem in found if problem]


class DetectorChanges(BaseModel, extra="forbid", frozen=True):
    """Changes to the settings of one detector. Null restores the default; missing fields stay unchanged."""

    enabled: bool | None = None
    thresholds: dict[str, FiniteFloat | None] = Field(default={}, max_length=32)
    action: Action | None = None

    def over(self, known: DetectorSettings) -> DetectorSettings:
        named = self.model_dump(include=self.model_fields_set - {"thresholds"})
        thresholds = {name: value for name, value in (known.thresholds | self.thresholds).items() if value is not None}
        return known.model_copy(update={**named, "thresholds": thresholds})


@dataclass(frozen=True, slots=True)
class ActiveSettings:
    """The settings of a detector that apply, after all layers."""

    enabled: bool
    thresholds: Mapping[str, float]
    action: Action


def resolve_settings(spec: DetectorSpec, layers: Iterable[DetectorSettings] = ()) -> ActiveSettings:
    """Apply each layer on top of the defaults. Unknown thresholds are ignored."""
    enabled, thresholds, action = True, dict(spec.thresholds), spec.action
    for layer in layers:
        enabled = enabled if layer.enabled is None else layer.enabled
        action = layer.action or action
        thresholds |= {name: value for name, value in layer.thresholds.items() if name in spec.thresholds}
    return ActiveSettings(enabled, thresholds, action)


def override_thresholds(
    settings: Mapping[str, ActiveSettings], thresholds: Iterable[Threshold]
) -> dict[str, ActiveSettings]:
    own: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for each in thresholds:
        own[each.detector][each.name] = each.value
    return {
        name: replace(force, thresholds={**force.thresholds, **own[name]}) if name in own else force
        for name, force in settings.items()
    }
