"""Detectors as an environment or a run wants them: off, with other thresholds, with another consequence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.detectors.face import Action, Face


class DetectorSettings(BaseModel):
    """What is set for one detector; what is left out stays as it was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = None
    thresholds: dict[str, float] = Field(default={}, max_length=32)
    action: Action | None = None

    def unknown_thresholds(self, face: Face) -> list[str]:
        return sorted(set(self.thresholds) - set(face.thresholds))


@dataclass(frozen=True, slots=True)
class InForce:
    """A detector's settings after all layers."""

    enabled: bool
    thresholds: Mapping[str, float]
    action: Action


def in_force(face: Face, layers: Iterable[DetectorSettings] = ()) -> InForce:
    """The default, then each layer over it: the environment's before the run's. Unknown thresholds do nothing."""
    enabled, thresholds, action = True, dict(face.thresholds), face.action
    for layer in layers:
        enabled = enabled if layer.enabled is None else layer.enabled
        action = layer.action or action
        thresholds |= {name: value for name, value in layer.thresholds.items() if name in face.thresholds}
    return InForce(enabled, thresholds, action)
