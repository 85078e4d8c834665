"""Settings in which runs differ, by the labels of their forms."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from backend.domain.runs.plans import EvaluationPlan
from backend.domain.training.blocks import Block, setting_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind
from backend.runs.tables import Run

LONGEST_VALUE = 120
"""Characters of a value that a table shows."""
_NOT_SETTINGS = frozenset({"policy", "hub", "example_file"})
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of one run; None if the run has no such setting."""

    text: str | None
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that is not the same in all runs."""

    name: str
    """As configuration files write it, such as `grpo.learning_rate`."""
    label: str
    section: str
    values: list[SettingValue]
    """In the order of the runs."""


@dataclass(frozen=True, slots=True)
class _Known:
    label: str
    section: str
    default: object


def differing_settings(runs: Sequence[Run]) -> list[SettingDifference]:
    """Return what differs between runs: environment, policy, then settings in the order of their forms."""
    flat = [dict(_identity(run)) | dict(_flat(run.configuration)) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    known = [_settings_of(run.kind) for run in runs]
    order = {name: place for each in known for place, name in enumerate(each)}
    differences = []
    for name in sorted(names, key=lambda name: (name not in _IDENTITY, order.get(name, len(order)), name)):
        values = [each.get(name, _ABSENT) for each in flat]
        if all(value == values[0] for value in values[1:]):
            continue
        about = next((each[name] for each in known if name in each), None)
        differences.append(
            SettingDifference(
                name,
                about.label if about else _IDENTITY.get(name) or _title(name.rpartition(".")[2]),
                about.section if about else "",
                [
                    SettingValue(None)
                    if value is _ABSENT
                    else SettingValue(_text(value), name in each and value == each[name].default)
                    for value, each in zip(values, known, strict=True)
                ],
            )
        )
    return differences


_IDENTITY = {"environment": "Environment", "kind": "Kind", "policy": "Policy", "checkpoint": "Checkpoint"}


def _identity(run: Run) -> Iterator[tuple[str, object]]:
    yield "environment", f"{run.version.environment.name} v{run.version.number}"
    yield "kind", str(run.kind)
    if run.kind is RunKind.EVALUATION:  # a training run makes its own policy
        yield "policy", run.policy.name if run.policy else "none"
        if run.checkpoint:
            yield "checkpoint", f"{run.checkpoint.stage} step {run.checkpoint.step}"
        yield "seed", run.seed


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if not prefix and name in _NOT_SETTINGS:
            continue
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def _settings_of(kind: RunKind) -> dict[str, _Known]:
    """The settings of a kind of run by their names: declared with the setting itself."""
    if kind is RunKind.TRAINING:
        return dict(_declared(TrainingConfiguration, "", ""))
    return dict(_declared(EvaluationPlan, "", "")) if kind is RunKind.EVALUATION else {}


def _declared(model: type[BaseModel], prefix: str, section: str) -> Iterator[tuple[str, _Known]]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            title = annotation.title if issubclass(annotation, Block) else _title(name)
            yield from _declared(annotation, f"{prefix}{name}.", title or _title(name))
        else:
            yield f"{prefix}{name}", _Known(setting_of(field).label or _title(name), section, _default(field))


def _default(field: FieldInfo) -> object:
    """As a stored configuration has it."""
    return _ABSENT if field.is_required() else json.loads(json.dumps(field.get_default(call_default_factory=True)))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
