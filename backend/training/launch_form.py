"""The form of the launch page, derived from the training settings: sections, fields, options and limits."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from backend.domain.training.blocks import Block, Card, setting_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.training.setting_texts import block_of, holds_list, holds_mapping, members, write

SECTIONS: Mapping[str, tuple[str, str]] = {
    "": ("Recipe", "Stages of the run."),
    "mix": ("Further environments", "Train on several environments at the same time."),
    "machine": ("Machine", "How much of the machine the run uses."),
}
"""Title and help of the sections that are no block."""
ACRONYMS: Mapping[str, str] = {"sft": "SFT", "grpo": "GRPO", "adam": "Adam", "beta2": "β₂", "is": "", "kl": "KL"}


@dataclass(frozen=True, slots=True)
class LaunchOption:
    """One value of a field that has few."""

    value: str
    label: str
    note: str = ""
    refused: str = ""
    """Why it cannot be selected; empty if it can."""


@dataclass(frozen=True, slots=True)
class LaunchField:
    """One input of the form."""

    name: str
    """Dotted, as in the configuration: `grpo.steps`."""
    label: str
    help: str
    value: str
    kind: str
    """`number`, `select`, `cards`, `check`, `area` or `text`"""
    options: tuple[LaunchOption, ...] = ()
    minimum: str = ""
    maximum: str = ""
    step: str = "any"
    is_basic: bool = False
    is_changed: bool = False
    """It differs from the preset or the default."""
    is_large: bool = False
    may_be_empty: bool = False
    only: str = ""
    """The settings with which it has an effect, as in `Setting.only`."""
    hint: str = ""
    """The help if it is short, else its first sentence."""
    more: str = ""
    """The rest of a long help text."""


@dataclass(frozen=True, slots=True)
class LaunchSection:
    """A block of the configuration."""

    name: str
    title: str
    help: str
    only: str = ""
    fields: list[LaunchField] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FormContext:
    """Inputs of the form in addition to the configuration."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Text that a refused form sent, by dotted name."""
    base: Mapping[str, str] = field(default_factory=dict)
    """Values of the preset, by dotted name."""
    offered: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Lists to select ids from, by name: (id, text)."""
    not_offered: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why no worker supports a value, by field and value."""


def launch_sections(configuration: TrainingConfiguration, context: FormContext | None = None) -> list[LaunchSection]:
    """The sections of the form with the values of the configuration."""
    context, sections = context or FormContext(), dict[str, LaunchSection]()
    for name, info in TrainingConfiguration.model_fields.items():
        value = getattr(configuration, name)
        if isinstance(value, Block):
            help_text = " ".join((type(value).__doc__ or "").split())
            sections[name] = LaunchSection(
                name, value.title, help_text, value.only, list(_fields(value, name, context))
            )
        else:
            section = setting_of(info).section
            sections.setdefault(section, LaunchSection(section, *SECTIONS[section])).fields.append(
                _field(name, info, value, context)
            )
    return list(sections.values())


def _fields(block: BaseModel, prefix: str, context: FormContext) -> Iterator[LaunchField]:
    for name, info in type(block).model_fields.items():
        value = getattr(block, name)
        if block_of(info) and isinstance(value, BaseModel):
            yield from _fields(value, f"{prefix}.{name}", context)
        else:
            yield _field(f"{prefix}.{name}", info, value, context)


def _field(name: str, info: FieldInfo, value: object, context: FormContext) -> LaunchField:
    values = value if isinstance(value, list) else [value]
    texts = [write(each.model_dump(mode="json") if isinstance(each, BaseModel) else each) for each in values]
    shown, setting = context.given.get(name, ",".join(texts)), setting_of(info)
    words = [ACRONYMS.get(word, word) for word in name.rpartition(".")[2].split("_")]
    label = " ".join(word for word in words if word)
    kinds, options = set(members(info.annotation)), tuple(_options(name, info, shown, context))
    if setting.cards:
        kind = "cards"
    elif options:
        kind = "select"
    elif kinds == {bool}:
        kind = "check"
    elif kinds <= {int, float}:
        kind = "number"
    else:
        kind = "area" if holds_mapping(info.annotation) else "text"
    minimum = maximum = ""
    for rule in info.metadata:
        match rule:
            case Ge(ge=bound) | Gt(gt=bound):
                minimum = minimum or write(bound)
            case Le(le=bound) | Lt(lt=bound):
                maximum = maximum or write(bound)
    text = " ".join((info.description or "").split())
    hint = text if len(text) <= 110 else text.partition(". ")[0].rstrip(".") + "."
    return LaunchField(
        name=name,
        label=setting.label or label[0].upper() + label[1:],
        help=text,
        hint=hint,
        more=text[len(hint) :].strip(),
        value=shown,
        kind=kind,
        options=options,
        minimum=minimum,
        maximum=maximum,
        step="1" if kinds == {int} else "any",
        is_basic=setting.is_basic,
        is_changed=name in context.base and context.base[name] != shown,
        is_large=setting.is_wide,
        may_be_empty=type(None) in typing.get_args(info.annotation),
        only=setting.only,
    )


def _options(name: str, info: FieldInfo, shown: str, context: FormContext) -> Iterator[LaunchOption]:
    setting = setting_of(info)
    if setting.chosen_from:
        known = dict(context.offered.get(setting.chosen_from, ()))
        yield LaunchOption("", "None")
        if shown and shown not in known:
            yield LaunchOption(shown, shown)
        yield from (LaunchOption(key, text) for key, text in known.items())
        return
    cards = {card.value: card for card in setting.cards}
    for each in () if holds_list(info.annotation) else members(info.annotation):
        if typing.get_origin(each) is Literal:
            values = [str(value) for value in typing.get_args(each)]
        elif isinstance(each, type) and issubclass(each, StrEnum):
            values = [str(value) for value in each]
        else:
            continue
        for value in values:
            card = cards.get(value) or Card(value, value.replace("_", " "), "")
            yield LaunchOption(value, card.label, card.note, context.not_offered.get((name, value), ""))
