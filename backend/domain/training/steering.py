"""Settings that may be changed while a run trains: taken up between two steps, recorded, and kept by a resume."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from backend.domain.training.configuration import TrainingConfiguration

SAFE = ("grpo.learning_rate", "grpo.temperature", "grpo.temperature_end", "heldout.every")
"""They change neither what was decided already nor the shape of a step."""
SAFE_BLOCKS = ("alarms", "budget", "detectors")
"""Every choice of these may be changed."""


class NotSafe(ValueError):
    """This setting cannot be changed while the run trains."""


def is_safe(name: str) -> bool:
    block, dot, _ = name.partition(".")
    return name in SAFE or (bool(dot) and block in SAFE_BLOCKS)


def safe_settings(configuration: TrainingConfiguration) -> dict[str, Any]:
    """What may be changed, with its values, as JSON has them."""
    return {name: value for name, value in _flat(configuration.resolved()) if is_safe(name)}


def with_setting(configuration: TrainingConfiguration, name: str, value: Any) -> TrainingConfiguration:
    """The configuration with another value. Raises NotSafe, or ValidationError when the value is impossible."""
    resolved = configuration.resolved()
    block, _, setting = name.partition(".")
    if not is_safe(name) or setting not in resolved.get(block, {}):
        raise NotSafe(f"{name} cannot be changed while a run trains")
    return TrainingConfiguration.model_validate({**resolved, block: {**resolved[block], setting: value}})


def with_settings(configuration: TrainingConfiguration, changes: Iterable[tuple[str, Any]]) -> TrainingConfiguration:
    """All changes in their order. One that a newer version of Proctor no longer knows is left out."""
    for name, value in changes:
        try:
            configuration = with_setting(configuration, name, value)
        except (NotSafe, ValidationError):
            continue
    return configuration


def setting_of(configuration: TrainingConfiguration, name: str) -> Any:
    """The value that a setting has, as JSON has it."""
    return safe_settings(configuration).get(name)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
