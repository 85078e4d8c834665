"""What a file says of the run that its rollouts are from."""

from dataclasses import dataclass
from typing import Any


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

    @property
    def as_json(self) -> dict[str, Any]:
        named = ("id", "name", "environment", "version", "content_hash", "policy", "proctor", "where")
        weights = dict(zip(self.columns, self.weights, strict=True))
        return {**{name: getattr(self, name) for name in named}, "weights": weights}
