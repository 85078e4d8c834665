"""Reward columns: each is a small method of the environment; `openenv.yaml` has its weight."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Observation

_MANIFEST = Path(__file__).resolve().parent.parent / "openenv.yaml"


def column(method: Callable[[Any], float]) -> Callable[[Any], float]:
    """Mark a method as a reward column: its name is the column's name, what it returns is this step's value."""
    method.is_column = True
    return method


def _read_columns() -> dict[str, dict[str, Any]]:
    """The manifest's columns by name, each with its weight."""
    columns = yaml.safe_load(_MANIFEST.read_text(encoding="utf-8"))["proctor"]["rewards"]
    return {name: spec if isinstance(spec, dict) else {"weight": spec} for name, spec in columns.items()}


class RewardedEnvironment(Environment):
    """Sends every column of every step in `metadata["rewards"]` and their weighted sum as the reward.

    Call `begin_rewards()` in `reset` and return `self.rewarded(observation)` from `step`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    _COLUMNS = _read_columns()

    def begin_rewards(self) -> None:
        """Forget the last episode's columns."""
        self._so_far: dict[str, float] = {}

    def rewarded(self, observation: Observation) -> Observation:
        """Fill in this step's columns and reward."""
        values = {name: float(getattr(self, name)()) for name in self._column_names()}
        observation.metadata["rewards"] = values
        observation.reward = sum(self._gain(name, value) for name, value in values.items())
        return observation

    def _gain(self, name: str, value: float) -> float:
        """This step's contribution to the weighted sum. The rewards of all steps add up to the episode's."""
        spec = self._COLUMNS.get(name, {"weight": 0.0})
        before = self._so_far.get(name)
        match spec.get("over_episode", "sum"):
            case "sum":
                after = (before or 0.0) + value
            case "last":
                after = value
            case _:
                after = value if before is None else max(before, value)
        self._so_far[name] = after
        return float(spec["weight"]) * (after - (before or 0.0))

    @classmethod
    def _column_names(cls) -> list[str]:
        if "_names" not in cls.__dict__:
            cls._names = [name for name in dir(cls) if getattr(getattr(cls, name), "is_column", False)]
        return cls._names
