"""Settings that can be changed during training: applied between two steps, recorded, and kept on resume."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from backend.domain.training.configuration import TrainingConfiguration

LEARNING_RATE = "grpo.learning_rate"
WARM_UP_RATE = "sft.learning_rate"
PARTS = "grpo.micro_batches"
RECOMPUTES = "hardware.gradient_checkpointing"
MEMORY = frozenset({PARTS, RECOMPUTES})
"""Settings that change memory use and, apart from rounding, not the result, except for the loss `bnpo`, which averages
within each micro-batch. They apply when the training process starts again."""
SAFE = (WARM_UP_RATE, LEARNING_RATE, "grpo.temperature", "grpo.temperature_end", "heldout.every", PARTS, RECOMPUTES)
"""Settings that do not change which tasks a step plays."""
SAFE_BLOCKS = ("alarms", "budget", "detectors")
"""Blocks whose settings can all be changed."""


class NotSafe(ValueError):
    """This setting cannot be changed during training."""


class DoesNotFit(ValueError):
    """This value does not fit the other settings of the run."""


def is_safe(name: str) -> bool:
    block, dot, _ = name.partition(".")
    return name in SAFE or (bool(dot) and block in SAFE_BLOCKS)


def is_of_warm_up(name: str) -> bool:
    """Whether only the warm-up uses the setting. Steps of its changes are then steps of the warm-up."""
    return name.startswith("sft.")


def is_used_in_warm_up(name: str) -> bool:
    """Return whether the warm-up applies changes of the setting between its steps."""
    return is_of_warm_up(name) or name.startswith(("alarms.", "budget."))


def when_used(name: str, *, is_over: bool) -> str:
    return "from the next resume" if is_over or name in MEMORY else "from the next step"


def safe_settings(configuration: TrainingConfiguration) -> dict[str, Any]:
    recipe = configuration.recipe
    return {
        name: value
        for block, settings in configuration.resolved().items()
        for name, value in (
            (f"{block}.{each}", settings[each]) for each in (settings if isinstance(settings, dict) else ())
        )
        if is_safe(name)
        and (recipe.has_sft if is_of_warm_up(name) else recipe.has_grpo or not name.startswith(("grpo.", "heldout.")))
    }


def with_setting(configuration: TrainingConfiguration, name: str, value: Any) -> TrainingConfiguration:
    """Return the configuration with another value. Raises NotSafe, ValidationError or DoesNotFit."""
    resolved = configuration.resolved()
    block, _, setting = name.partition(".")
    if name not in safe_settings(configuration):
        raise NotSafe(f"{name} cannot be changed during training")
    changed = TrainingConfiguration.model_validate({**resolved, block: {**resolved[block], setting: value}})
    own = changed.grpo.episodes_per_step // changed.hardware.processes
    if name == PARTS and own % changed.grpo.micro_batches:
        raise DoesNotFit(
            f"Each of {changed.hardware.processes} processes learns from {own} episodes per"
            f" step, which cannot be divided into {changed.grpo.micro_batches} micro-batches"
        )
    return changed


def with_settings(configuration: TrainingConfiguration, changes: Iterable[tuple[str, Any]]) -> TrainingConfiguration:
    """Apply changes in order. Changes of settings that this version of Proctor does not know are skipped."""
    for name, value in changes:
        try:
            configuration = with_setting(configuration, name, value)
        except (NotSafe, DoesNotFit, ValidationError):
            continue
    return configuration


def memory_saved(configuration: TrainingConfiguration, *, is_in_warm_up: bool) -> dict[str, Any]:
    """Changes that reduce the memory of a step: at least twice as many micro-batches, or, in a warm-up or if that is
    impossible, gradient checkpointing. Empty if neither is possible."""
    if not is_in_warm_up and configuration.recipe.has_grpo:
        own = configuration.grpo.episodes_per_step // configuration.hardware.processes
        for parts in range(2 * configuration.grpo.micro_batches, own + 1):
            if own % parts == 0:
                return {PARTS: parts}
    return {} if configuration.hardware.gradient_checkpointing else {RECOMPUTES: True}
