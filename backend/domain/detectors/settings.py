"""Detectors as an environment or a run wants them: off, with other thresholds, with another consequence."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from backend.domain.detectors.spec import Action, Face
from backend.domain.detectors.thresholds import Threshold, problem_of


class DetectorSettings(BaseModel):
    """What is set for one detector; what is left out stays as it was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = None
    thresholds: dict[str, FiniteFloat] = Field(default={}, max_length=32)
    action: Action | None = None

    def problems(self, face: Face) -> list[str]:
        """What is wrong with the thresholds, in words for a person."""
        found = (problem_of(face, name, value) for name, value in sorted(self.thresholds.items()))
        return [problem for problem in found if problem]


class DetectorChanges(BaseModel):
    """What to change of what is set; null is the default again, what is left out stays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = None
    thresholds: dict[str, FiniteFloat | None] = Field(default={}, max_length=32)
    action: Action | None = None

    def over(self, known: DetectorSettings) -> DetectorSettings:
        named = self.model_dump(include=self.model_fields_set - {"thresholds"})
        thresholds = {
            name: value for name, value in {**known.thresholds, **self.thresholds}.items() if value is not None
        }
        return known.model_copy(update={**named, "thresholds": thresholds})


@dataclass(frozen=True, slots=True)
class InForce:
    """A detector's settings after all layers."""

    enabled: bool
    thresholds: Mapping[str, float]
    action: Action


def in_force(face: Face, layers: Iterable[DetectorSettings] = ()) -> InForce:
    """The default, then each layer over it. Unknown thresholds do nothing."""
    enabled, thresholds, action = True, dict(face.thresholds), face.action
    for layer in layers:
        enabled = enabled if layer.enabled is None else layer.enabled
        action = layer.action or action
        thresholds |= {name: value for name, value in layer.thresholds.items() if name in face.thresholds}
    return InForce(enabled, thresholds, action)


def tuned(settings: Mapping[str, InForce], thresholds: Iterable[Threshold]) -> dict[str, InForce]:
    """Settings with a run's own thresholds over them."""
    own: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for each in thresholds:
        own[each.detector][each.name] = each.value
    return {
        name: replace(force, thresholds={**force.thresholds, **own[name]}) if name in own else force
        for name, force in settings.items()
    }
