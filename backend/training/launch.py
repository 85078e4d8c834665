"""The launch form: every choice of a training run with its help, drawn from the configuration's own description."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from backend.domain.training import TrainingConfiguration


@dataclass(frozen=True, slots=True)
class LaunchField:
    """One input of the form."""

    name: str
    """Dotted, as in the configuration: `grpo.steps`."""
    label: str
    help: str
    value: str
    kind: str
    """`number`, `select` or `text`"""
    choices: tuple[str, ...] = ()
    minimum: str = ""
    maximum: str = ""


@dataclass(frozen=True, slots=True)
class LaunchSection:
    """A block of the configuration."""

    name: str
    title: str
    help: str
    fields: list[LaunchField] = field(default_factory=list)


TITLES = {
    "": "Recipe",
    "model": "Model",
    "sft": "Warm-up (SFT)",
    "gate": "Gate",
    "grpo": "Reinforcement (GRPO)",
    "heldout": "Held-out examination",
    "checkpoints": "Saved states",
}
_WORDS = {"sft": "SFT", "grpo": "GRPO", "adam": "Adam", "beta2": "beta₂"}


def launch_sections(
    configuration: TrainingConfiguration, given: Mapping[str, str] | None = None
) -> list[LaunchSection]:
    """The form's sections with the configuration's values; `given` are texts that a refused form sent."""
    given = given or {}
    sections = [LaunchSection("", TITLES[""], "Which stages, and how much of the machine.")]
    for name, info in TrainingConfiguration.model_fields.items():
        value = getattr(configuration, name)
        if isinstance(value, BaseModel):
            section = LaunchSection(name, TITLES.get(name, name.capitalize()), type(value).__doc__ or "")
            section.fields.extend(_fields_of(value, name + ".", given))
            sections.append(section)
        else:
            sections[0].fields.append(_field(name, info, value, given))
    return sections


def _fields_of(block: BaseModel, prefix: str, given: Mapping[str, str]) -> Iterator[LaunchField]:
    for name, info in type(block).model_fields.items():
        yield _field(prefix + name, info, getattr(block, name), given)


def _field(name: str, info: FieldInfo, value: Any, given: Mapping[str, str]) -> LaunchField:
    choices = _choices(info.annotation)
    kind = "select" if choices else "number" if _is_number(info.annotation) else "text"
    return LaunchField(
        name=name,
        label=_label(name),
        help=" ".join((info.description or "").split()),
        value=given.get(name, _text(value)),
        kind=kind,
        choices=choices,
        minimum=_bound(info, Ge, Gt),
        maximum=_bound(info, Le, Lt),
    )


def _label(name: str) -> str:
    words = [_WORDS.get(word, word) for word in name.rpartition(".")[2].split("_")]
    text = " ".join(words)
    return text[0].upper() + text[1:]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ",".join(_text(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union without None; the type itself otherwise."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return tuple(each for each in typing.get_args(annotation) if each is not type(None))
    return (annotation,)


def _choices(annotation: Any) -> tuple[str, ...]:
    for each in _members(annotation):
        if typing.get_origin(each) is Literal:
            return tuple(str(choice) for choice in typing.get_args(each))
        if isinstance(each, type) and issubclass(each, StrEnum):
            return tuple(str(choice) for choice in each)
    return ()


def _is_number(annotation: Any) -> bool:
    bare = [typing.get_args(each)[0] if hasattr(each, "__metadata__") else each for each in _members(annotation)]
    return all(each in {int, float} for each in bare)


def _bound(info: FieldInfo, *kinds: type) -> str:
    for rule in info.metadata:
        for kind, attribute in ((Ge, "ge"), (Gt, "gt"), (Le, "le"), (Lt, "lt")):
            if kind in kinds and isinstance(rule, kind):
                return _text(getattr(rule, attribute))
    return ""


def launch_command(environment: str, preset: str | None, choices: Mapping[str, Any]) -> str:
    """The command that starts the same run."""
    parts = ["proctor train", environment]
    if preset:
        parts.append(f"--preset {preset}")
    parts.extend(f"--set {name}={value}" for name, value in flatten(choices).items())
    return " ".join(parts)


def flatten(choices: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"grpo": {"steps": 100}}` as `{"grpo.steps": "100"}`."""
    flat: dict[str, str] = {}
    for name, value in choices.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = _text(value)
    return flat


def changed_choices(configuration: TrainingConfiguration, base: TrainingConfiguration) -> dict[str, str]:
    """What differs from the base, by dotted name."""
    mine, theirs = flatten(configuration.resolved()), flatten(base.resolved())
    return {name: value for name, value in mine.items() if theirs.get(name) != value}
