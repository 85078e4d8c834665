"""Choices of a training run as texts, as forms, commands and files write them, read by the types of the fields."""

import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from backend.domain.training.configuration import TrainingConfiguration
from backend.errors import Conflict


def nest(fields: Mapping[str, str]) -> dict[str, Any]:
    """`{"grpo.steps": "100"}` as `{"grpo": {"steps": "100"}}`."""
    nested: dict[str, Any] = {}
    for name, text in fields.items():
        *blocks, last = name.split(".")
        target = nested
        for block in blocks:
            below = target.setdefault(block, {})
            if not isinstance(below, dict):
                below = target[block] = {}
            target = below
        target[last] = text.strip()
    return nested


def read(model: type[BaseModel], choices: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as what the fields hold: an empty one is nothing where a field may be empty and else the default; lists and
    mappings are taken apart where the field does not do so itself. What is no text, and names that are not known, stay.
    """
    found: dict[str, Any] = {}
    for name, value in choices.items():
        info = model.model_fields.get(name)
        block = block_of(info) if info else None
        if block and isinstance(value, Mapping):
            found[name] = read(block, value)
        elif info is None or not isinstance(value, str):
            found[name] = value
        elif value.strip():
            takes_apart = any(isinstance(rule, BeforeValidator) for rule in info.metadata)
            found[name] = value.strip() if takes_apart else _value(info.annotation, value.strip())
        elif is_optional(info):
            found[name] = None
        elif holds_many(info.annotation):
            found[name] = []
        elif str in members(info.annotation):
            found[name] = ""
    return found


def _value(annotation: Any, text: str) -> Any:
    if text[0] in "[{" and (holds_many(annotation) or holds_names(annotation)):
        try:
            return json.loads(text)
        except ValueError:
            return text  # the field itself says what is wrong
    if holds_names(annotation):
        pairs = (part.partition("=") for part in text.split(",") if part.strip())
        return {name.strip(): value.strip() for name, _, value in pairs}
    return [part.strip() for part in text.split(",") if part.strip()] if holds_many(annotation) else text


def write(value: Any) -> str:
    """A value as the text that `read` takes."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.12g}"
        case list() if not any(isinstance(each, dict | list) for each in value):
            return ",".join(map(write, value))
        case list() | dict():
            return json.dumps(value)
        case _:
            return str(value)


def flatten(choices: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"grpo": {"steps": 100}}` as `{"grpo.steps": "100"}`."""
    flat: dict[str, str] = {}
    for name, value in choices.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = write(value)
    return flat


def changed_choices(configuration: TrainingConfiguration, base: TrainingConfiguration) -> dict[str, str]:
    """What differs from the base, by dotted name."""
    mine, theirs = flatten(configuration.resolved()), flatten(base.resolved())
    return {name: value for name, value in mine.items() if theirs.get(name) != value}


def is_choice(name: str) -> bool:
    """Is this the name of a form's field that belongs to the configuration?"""
    return name.partition(".")[0] in TrainingConfiguration.model_fields


class ChoicesUnreadable(Conflict):
    """The stored choices are of a version of Proctor that this one does not read."""


def stored_choices(configuration: Mapping[str, Any]) -> TrainingConfiguration:
    """Of a run or a pre-flight."""
    try:
        return TrainingConfiguration.of_run(configuration)
    except ValidationError as error:
        raise ChoicesUnreadable from error


def block_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a nested block."""
    found = [each for each in members(info.annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
    return found[0] if found else None


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union without None, and without their rules; the type itself otherwise."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        parts: Iterable[Any] = (each for each in typing.get_args(annotation) if each is not type(None))
    else:
        parts = (annotation,)
    return tuple(typing.get_args(each)[0] if hasattr(each, "__metadata__") else each for each in parts)


def is_optional(info: FieldInfo) -> bool:
    return type(None) in typing.get_args(info.annotation)


def holds_many(annotation: Any) -> bool:
    return any(typing.get_origin(each) in {list, tuple, set, frozenset} for each in members(annotation))


def holds_names(annotation: Any) -> bool:
    """A mapping from names to values."""
    return any(typing.get_origin(each) is dict or each is dict for each in members(annotation))
