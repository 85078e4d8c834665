"""Training settings as text, as in forms, commands and configuration files, parsed by the types of the fields."""

import copy
import json
import types
import typing
from collections.abc import Mapping

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from backend.domain.training.configuration import TrainingConfiguration
from backend.errors import Conflict


class UnreadableSettings(Conflict):
    """These settings were stored by a version of Proctor that this one cannot read."""


def stored_configuration(configuration: Mapping[str, object]) -> TrainingConfiguration:
    """The stored configuration of a run or a pre-flight. Raises UnreadableSettings."""
    try:
        return TrainingConfiguration.of_run(configuration)
    except ValidationError as error:
        raise UnreadableSettings from error


def nest(fields: Mapping[str, object], over: Mapping[str, object] | None = None) -> dict[str, object]:
    """Nest dotted names over a copy of other settings: `{"grpo.steps": "100"}` is `{"grpo": {"steps": "100"}}`."""
    nested: dict[str, object] = copy.deepcopy(dict(over or {}))
    for name, value in fields.items():
        *blocks, last = name.split(".")
        target = nested
        for block in blocks:
            below = target.setdefault(block, {})
            if not isinstance(below, dict):
                below = target[block] = {}
            target = below
        target[last] = value.strip() if isinstance(value, str) else value
    return nested


def flatten(settings: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Flatten to dotted names and text: `{"grpo": {"steps": 100}}` becomes `{"grpo.steps": "100"}`."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = write(value)
    return flat


def changed_settings(configuration: TrainingConfiguration, base: TrainingConfiguration) -> dict[str, str]:
    """Settings that differ from the base, by dotted name."""
    mine, theirs = flatten(configuration.resolved()), flatten(base.resolved())
    return {name: value for name, value in mine.items() if theirs.get(name) != value}


def read(model: type[BaseModel], settings: Mapping[str, object]) -> dict[str, object]:
    """Parse text by the types of the model's fields; other values and unknown names stay as they are.

    Empty text clears a field that may be empty and otherwise means its default. Lists and mappings are split unless the
    field's own validator does that.
    """
    found: dict[str, object] = {}
    for name, value in settings.items():
        info = model.model_fields.get(name)
        block = block_of(info) if info else None
        if block and isinstance(value, Mapping):
            found[name] = read(block, value)
        elif info is None or not isinstance(value, str):
            found[name] = value
        elif text := value.strip():
            is_list, is_mapping = holds_list(info.annotation), holds_mapping(info.annotation)
            found[name] = text
            if any(isinstance(rule, BeforeValidator) for rule in info.metadata):
                continue
            if text[0] in "[{" and (is_list or is_mapping):
                try:
                    found[name] = json.loads(text)
                except ValueError:
                    continue  # the field itself reports the error
            elif is_mapping:
                pairs = (part.partition("=") for part in text.split(",") if part.strip())
                found[name] = {key.strip(): each.strip() for key, _, each in pairs}
            elif is_list:
                found[name] = [part.strip() for part in text.split(",") if part.strip()]
        elif type(None) in typing.get_args(info.annotation):
            found[name] = None
        elif holds_list(info.annotation):
            found[name] = []
        elif str in members(info.annotation):
            found[name] = ""
    return found


def write(value: object) -> str:
    """Write a value as the text that `read` parses."""
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


def block_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a nested block."""
    found = [each for each in members(info.annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
    return found[0] if found else None


def members(annotation: object) -> tuple[object, ...]:
    """The types of a union except None, without their constraints; of another type: itself."""
    is_union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    parts = typing.get_args(annotation) if is_union else (annotation,)
    kept = (each for each in parts if not is_union or each is not type(None))
    return tuple(typing.get_args(each)[0] if hasattr(each, "__metadata__") else each for each in kept)


def holds_list(annotation: object) -> bool:
    return any(typing.get_origin(each) in {list, tuple, set, frozenset} for each in members(annotation))


def holds_mapping(annotation: object) -> bool:
    return any(typing.get_origin(each) is dict or each is dict for each in members(annotation))
