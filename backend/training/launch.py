"""The launch page: settings with their help, a summary of the run, and what is wrong with the settings."""

import shlex
import typing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal
from urllib.parse import urlencode

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.ids import new_id
from backend.domain.runs.capabilities import not_offered
from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.blocks import Block, Card, setting_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.training.presets import PRESETS, Preset, find_preset
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.training import queries
from backend.training.choices import (
    block_of,
    changed_choices,
    flatten,
    holds_many,
    holds_names,
    is_optional,
    members,
    stored_choices,
    write,
)
from backend.training.example_files import list_example_files
from backend.training.preflight import findings_at_once
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.tables import Preflight
from backend.training.workers import offers

Offered = Mapping[str, Sequence[tuple[str, str]]]
"""Lists to pick ids from, by name: (id, text)."""
LONG_HELP = 110
"""Characters beyond which only the first sentence is shown before one asks for more."""
SECTIONS: Mapping[str, tuple[str, str]] = {
    "": ("Recipe", "Stages of the run."),
    "mix": ("Further environments", "Train on several environments at the same time."),
    "machine": ("Machine", "How much of the machine the run uses."),
}
"""Title and help of the sections that are no block."""
ACRONYMS: Mapping[str, str] = {"sft": "SFT", "grpo": "GRPO", "adam": "Adam", "beta2": "β₂", "is": "", "kl": "KL"}
NotOffered = Mapping[tuple[str, str], str]
"""Choices by field and value that no worker can carry out, with the reason."""


@dataclass(frozen=True, slots=True)
class LaunchOption:
    """One value of a field that has few."""

    value: str
    label: str
    note: str = ""
    refused: str = ""
    """Why it cannot be chosen; empty: it can."""


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
    """`model.source=base|checkpoint;adapter.kind!=full`: counts only where one of them holds."""

    @property
    def hint(self) -> str:
        """What it does: the help itself where it is short, else its first sentence."""
        return self.help if len(self.help) <= LONG_HELP else self.help.partition(". ")[0].rstrip(".") + "."

    @property
    def more(self) -> str:
        """The rest of a long help."""
        return self.help[len(self.hint) :].strip()


@dataclass(frozen=True, slots=True)
class LaunchSection:
    """A block of the configuration."""

    name: str
    title: str
    help: str
    only: str = ""
    fields: list[LaunchField] = field(default_factory=list)

    @property
    def basic(self) -> list[LaunchField]:
        return [each for each in self.fields if each.is_basic]

    @property
    def further(self) -> list[LaunchField]:
        return [each for each in self.fields if not each.is_basic]

    @property
    def changed(self) -> int:
        """How many of the folded choices differ from the preset or the default."""
        return sum(each.is_changed for each in self.further)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the form knows beside the configuration's own description."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Texts that a refused form sent."""
    base: Mapping[str, str] = field(default_factory=dict)
    """Values of the preset, by dotted name."""
    offered: Offered = field(default_factory=dict)
    not_offered: NotOffered = field(default_factory=dict)


def launch_sections(configuration: TrainingConfiguration, around: Surroundings | None = None) -> list[LaunchSection]:
    """The form's sections with the configuration's values, those that most people need first."""
    around = around or Surroundings()
    sections: dict[str, LaunchSection] = {}
    for name, info in TrainingConfiguration.model_fields.items():
        value = getattr(configuration, name)
        if isinstance(value, BaseModel):
            _section(sections, name, type(value)).fields.extend(_fields_of(value, name + ".", around))
        else:
            section = setting_of(info).section
            _section(sections, section).fields.append(_field(name, info, value, around))
    return list(sections.values())


def _section(sections: dict[str, LaunchSection], name: str, block: type[BaseModel] | None = None) -> LaunchSection:
    if name not in sections:
        if block is not None and issubclass(block, Block):
            sections[name] = LaunchSection(name, block.title, " ".join((block.__doc__ or "").split()), block.only)
        else:
            sections[name] = LaunchSection(name, *SECTIONS[name])
    return sections[name]


def _fields_of(block: BaseModel, prefix: str, around: Surroundings) -> Iterator[LaunchField]:
    for name, info in type(block).model_fields.items():
        value = getattr(block, name)
        if block_of(info) and isinstance(value, BaseModel):
            yield from _fields_of(value, f"{prefix}{name}.", around)
        else:
            yield _field(prefix + name, info, value, around)


def _field(name: str, info: FieldInfo, value: Any, around: Surroundings) -> LaunchField:
    shown = around.given.get(name, _shown(value))
    setting = setting_of(info)
    options = tuple(_options(name, info, shown, around))
    return LaunchField(
        name=name,
        label=setting.label or _label(name),
        help=" ".join((info.description or "").split()),
        value=shown,
        kind=_kind(info, has_options=bool(options)),
        options=options,
        minimum=_bound(info, Ge, Gt),
        maximum=_bound(info, Le, Lt),
        step="1" if set(members(info.annotation)) == {int} else "any",
        is_basic=setting.is_basic,
        is_changed=name in around.base and around.base[name] != shown,
        is_large=setting.is_wide,
        may_be_empty=is_optional(info),
        only=setting.only,
    )


def _kind(info: FieldInfo, *, has_options: bool) -> str:
    if setting_of(info).cards:
        return "cards"
    if has_options:
        return "select"
    kinds = set(members(info.annotation))
    if kinds == {bool}:
        return "check"
    if kinds <= {int, float}:
        return "number"
    return "area" if holds_names(info.annotation) else "text"


def _options(name: str, info: FieldInfo, shown: str, around: Surroundings) -> Iterator[LaunchOption]:
    setting = setting_of(info)
    if setting.chosen_from:
        yield LaunchOption("", "None")
        known = around.offered.get(setting.chosen_from, ())
        if shown and shown not in {key for key, _ in known}:
            yield LaunchOption(shown, shown)
        yield from (LaunchOption(key, text) for key, text in known)
        return
    cards = {card.value: card for card in setting.cards}
    for value in _values(info.annotation):
        refused = around.not_offered.get((name, value), "")
        card = cards.get(value) or Card(value, value.replace("_", " "), "")
        yield LaunchOption(value, card.label, card.note, refused)


def _values(annotation: Any) -> tuple[str, ...]:
    if holds_many(annotation):
        return ()
    for each in members(annotation):
        if typing.get_origin(each) is Literal:
            return tuple(str(choice) for choice in typing.get_args(each))
        if isinstance(each, type) and issubclass(each, StrEnum):
            return tuple(str(choice) for choice in each)
    return ()


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return write(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def _label(name: str) -> str:
    words = [ACRONYMS.get(word, word) for word in name.rpartition(".")[2].split("_")]
    text = " ".join(word for word in words if word)
    return text[0].upper() + text[1:]


def _bound(info: FieldInfo, *kinds: type) -> str:
    for rule in info.metadata:
        for kind, attribute in ((Ge, "ge"), (Gt, "gt"), (Le, "le"), (Lt, "lt")):
            if kind in kinds and isinstance(rule, kind):
                return write(getattr(rule, attribute))
    return ""


def launch_command(
    environment: str, preset: str | None, choices: Mapping[str, Any], options: Mapping[str, str] | None = None
) -> str:
    """The command that starts the same run. `options`: such as `--name`, left out where empty."""
    parts = ["proctor train", shlex.quote(environment)]
    if preset:
        parts.append(f"--preset {shlex.quote(preset)}")
    parts.extend(f"--set {shlex.quote(f'{name}={value}')}" for name, value in flatten(choices).items())
    parts.extend(f"{option} {shlex.quote(value)}" for option, value in (options or {}).items() if value)
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """What the choices amount to; drawn anew while somebody types."""

    errors: Mapping[str, str] = field(default_factory=dict)
    """What cannot be read, by field."""
    arithmetic: Sequence[str] = ()
    rollouts: int = 0
    findings: Sequence[PreflightFinding] = ()
    command: str = ""
    file_query: str = ""
    """Of the configuration file's address."""


@dataclass(frozen=True, slots=True)
class LaunchFiguresPage:
    """The figures alone."""

    figures: LaunchFigures


@dataclass(frozen=True, slots=True)
class LaunchPage:
    """The launch form, empty or with what was refused."""

    versions: Sequence[EnvironmentVersion]
    chosen: EnvironmentVersion | None
    presets: Mapping[str, Preset]
    preset: str
    sections: list[LaunchSection]
    figures: LaunchFigures
    name: str
    without_certificate: str
    key: str
    again: Run | None = None
    preflight: Preflight | None = None
    errors: dict[str, str] = field(default_factory=dict)
    message: str = ""


def launch_page(session: Session, shown: TrainingRequest, error: InvalidInput | None = None) -> LaunchPage:
    versions = queries.trainable_versions(session)
    again = queries.find_training_run(session, shown.again) if shown.again else None
    preflight = session.get(Preflight, shown.preflight_id) if shown.preflight_id else None
    chosen = _chosen(versions, shown, again, preflight)
    start = _start(shown, again, preflight)
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration, start.resolved())
    except InvalidInput:
        configuration = start
    offered = {
        "checkpoints": _checkpoints(queries.startable_checkpoints(session)),
        "example_files": [
            (str(file.id), f"{file.name} · {file.conversations:,} conversations")
            for file in list_example_files(session, limit=100).items
        ],
    }
    around = Surroundings(
        given=flatten(shown.configuration),
        base=flatten(start.resolved()),
        offered=offered,
        not_offered=not_offered(offers(session)),
    )
    return LaunchPage(
        versions=versions,
        chosen=chosen,
        presets=PRESETS,
        preset=shown.preset or "",
        sections=launch_sections(configuration, around),
        figures=launch_figures(session, shown, chosen, start),
        name=shown.name or "",
        without_certificate=shown.without_certificate or "",
        key=shown.key or new_id().hex,
        again=again,
        preflight=preflight,
        errors=dict(error.fields) if error else {},
        message=error.message if error else "",
    )


def launch_figures(
    session: Session, shown: TrainingRequest, version: EnvironmentVersion | None, start: TrainingConfiguration
) -> LaunchFigures:
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration, start.resolved())
    except InvalidInput as error:
        return LaunchFigures(errors=error.fields)
    preset = find_preset(shown.preset)
    base = preset.configuration if preset else TrainingConfiguration()
    changed = changed_choices(configuration, base)
    options = {"--name": shown.name or "", "--without-certificate": shown.without_certificate or ""}
    told = {"version_id": str(version.id) if version else "", "preset": shown.preset or "", "name": shown.name or ""}
    told["without_certificate"] = shown.without_certificate or ""
    environment = f"{version.environment.name}@{version.number}" if version else "ENVIRONMENT"
    return LaunchFigures(
        arithmetic=batch_in_words(configuration).split("; "),
        rollouts=configuration.total_rollouts,
        findings=findings_at_once(session, version, configuration) if version else (),
        command=launch_command(environment, shown.preset, changed, options),
        file_query=urlencode({name: text for name, text in (told | changed).items() if text or name in changed}),
    )


def figures_of_form(session: Session, shown: TrainingRequest) -> LaunchFigures:
    """While somebody types: the version is the one that is chosen in the form."""
    return launch_figures(session, shown, queries.find_version(session, shown.version_id), TrainingConfiguration())


def _chosen(
    versions: Sequence[EnvironmentVersion], shown: TrainingRequest, again: Run | None, preflight: Preflight | None
) -> EnvironmentVersion | None:
    """The one that was asked for, else that of the run or the preset, else the first."""
    preset = find_preset(shown.preset)
    wanted = [shown.version_id, *(source.version_id for source in (preflight, again) if source)]
    by_id: dict[uuid.UUID, EnvironmentVersion] = {version.id: version for version in versions}
    for version_id in wanted:
        if version_id in by_id:
            return by_id[version_id]
    named = (version for version in versions if preset and version.environment.name == preset.environment)
    return next(named, next(iter(versions), None))


def _start(shown: TrainingRequest, again: Run | None, preflight: Preflight | None) -> TrainingConfiguration:
    """What the choices begin with: a preset, an earlier run, a pre-flight or the defaults."""
    if preset := find_preset(shown.preset):
        return preset.configuration
    source = preflight or again
    return stored_choices(source.configuration) if source else TrainingConfiguration()


def _checkpoints(found: Sequence[Checkpoint]) -> list[tuple[str, str]]:
    """With their held-out figures, the best ones marked."""
    return [(str(checkpoint.id), _told(checkpoint)) for checkpoint in found]


def _told(checkpoint: Checkpoint) -> str:
    reward = "" if checkpoint.heldout_reward is None else f" · held-out {checkpoint.heldout_reward:.3f}"
    best = " · best" if checkpoint.is_best else ""
    return f"{checkpoint.policy.name} · {checkpoint.stage} step {checkpoint.step}{reward}{best}"
