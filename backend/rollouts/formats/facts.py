"""What a file says of the run that its rollouts are from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Venue:
    """Where rollouts were played."""

    environment: str
    version: int
    content_hash: str
    weights: Mapping[str, float]
    """Of its own reward columns."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    id: str
    name: str
    kind: str
    environment: str
    version: int
    content_hash: str
    policy: str
    model: str
    """The policy's model at its endpoint; else its name."""
    columns: tuple[str, ...]
    weights: tuple[float, ...]
    sampling: dict[str, Any]
    tasks: int
    group_size: int
    seed: int
    created_at: str
    """ISO 8601."""
    started_at: str
    ended_at: str
    proctor: str
    """Its version."""
    where: str = ""
    """The filter that the rollouts passed."""
    venues: Mapping[str, Venue] = field(default_factory=dict)
    """Of a training run on several environments each one, by its version's id."""

    def venue(self, version_id: object) -> Venue:
        """Where a task of this version is played; a run on one environment plays all of them there."""
        weights = dict(zip(self.columns, self.weights, strict=True))
        own = Venue(self.environment, self.version, self.content_hash, weights)
        return self.venues.get(str(version_id), own)

    @property
    def as_json(self) -> dict[str, Any]:
        named = ("id", "name", "environment", "version", "content_hash", "policy", "proctor", "where")
        weights = dict(zip(self.columns, self.weights, strict=True))
        others = [
            {"environment": each.environment, "version": each.version, "weights": dict(each.weights)}
            for each in self.venues.values()
        ]
        told = {**{name: getattr(self, name) for name in named}, "weights": weights}
        return told | {"environments": others} if others else told
