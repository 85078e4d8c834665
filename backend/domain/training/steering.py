"""Settings that may be changed while a run trains: taken up between two steps, recorded, and kept by a resume."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from backend.domain.training.configuration import TrainingConfiguration

LEARNING_RATE = "grpo.learning_rate"
WARM_UP_RATE = "sft.learning_rate"
PARTS = "grpo.micro_batches"
RECOMPUTES = "hardware.gradient_checkpointing"
MEMORY = frozenset({PARTS, RECOMPUTES})
"""How much memory a gradient takes. What is learned stays the same but for rounding; only the loss `bnpo`, which
averages within each part, weighs tokens otherwise. Used from the next start of the training process on."""
SAFE = (
    WARM_UP_RATE,
    LEARNING_RATE,
    "grpo.temperature",
    "grpo.temperature_end",
    "heldout.every",
    PARTS,
    RECOMPUTES,
)
"""They change neither what was decided already nor what a step plays."""
SAFE_BLOCKS = ("alarms", "budget", "detectors")
"""Every choice of these may be changed."""


class NotSafe(ValueError):
    """This setting cannot be changed while the run trains."""


class DoesNotFit(ValueError):
    """This value does not go together with the run's other choices."""


def is_safe(name: str) -> bool:
    block, dot, _ = name.partition(".")
    return name in SAFE or (bool(dot) and block in SAFE_BLOCKS)


def is_of_warm_up(name: str) -> bool:
    """Does the warm-up alone use it? Its steps are then those of the warm-up."""
    return name.startswith("sft.")


def is_used_in_warm_up(name: str) -> bool:
    """Does the warm-up look at it between its steps?"""
    return is_of_warm_up(name) or name.startswith(("alarms.", "budget."))


def when_used(name: str, *, is_over: bool) -> str:
    """From when on a run uses a change that is asked for, in words."""
    return "from its next resume on" if is_over or name in MEMORY else "from the next step on"


def safe_settings(configuration: TrainingConfiguration) -> dict[str, Any]:
    """What may be changed, with its values, as JSON has them."""
    flat = _flat(configuration.resolved())
    return {name: value for name, value in flat if is_safe(name) and _is_used(configuration, name)}


def with_setting(configuration: TrainingConfiguration, name: str, value: Any) -> TrainingConfiguration:
    """The configuration with another value. Raises NotSafe; ValidationError or DoesNotFit when it is impossible."""
    resolved = configuration.resolved()
    block, _, setting = name.partition(".")
    if not is_safe(name) or setting not in resolved.get(block, {}) or not _is_used(configuration, name):
        raise NotSafe(f"{name} cannot be changed while a run trains")
    changed = TrainingConfiguration.model_validate({**resolved, block: {**resolved[block], setting: value}})
    if name == PARTS and _episodes_of_process(changed) % changed.grpo.micro_batches:
        raise DoesNotFit(
            f"Each of {changed.hardware.processes} processes learns from {_episodes_of_process(changed)} episodes a"
            f" step, which do not divide into {changed.grpo.micro_batches} parts"
        )
    return changed


def with_settings(configuration: TrainingConfiguration, changes: Iterable[tuple[str, Any]]) -> TrainingConfiguration:
    """All changes in their order. One that a newer version of Proctor no longer knows is left out."""
    for name, value in changes:
        try:
            configuration = with_setting(configuration, name, value)
        except (NotSafe, DoesNotFit, ValidationError):
            continue
    return configuration


def setting_of(configuration: TrainingConfiguration, name: str) -> Any:
    """The value that a setting has, as JSON has it."""
    return safe_settings(configuration).get(name)


def memory_saved(configuration: TrainingConfiguration, *, is_in_warm_up: bool) -> dict[str, Any]:
    """What one click changes so that a step needs less memory: at least twice as many parts, or, where nothing more
    divides and in a warm-up, activations that are computed again. Empty where neither is left."""
    if not is_in_warm_up and (parts := _more_parts(configuration)):
        return {PARTS: parts}
    return {} if configuration.hardware.gradient_checkpointing else {RECOMPUTES: True}


def _more_parts(configuration: TrainingConfiguration) -> int | None:
    if not configuration.recipe.has_grpo:
        return None
    own, parts = _episodes_of_process(configuration), configuration.grpo.micro_batches
    return next((each for each in range(2 * parts, own + 1) if own % each == 0), None)


def _episodes_of_process(configuration: TrainingConfiguration) -> int:
    return configuration.grpo.episodes_per_step // configuration.hardware.processes


def _is_used(configuration: TrainingConfiguration, name: str) -> bool:
    """By one of the run's stages."""
    recipe = configuration.recipe
    return recipe.has_sft if is_of_warm_up(name) else recipe.has_grpo or not name.startswith(("grpo.", "heldout."))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
