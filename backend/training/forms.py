"""What a person or a script asks for when a model is to be trained or a checkpoint exported."""

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.domain.training import TrainingConfiguration
from backend.domain.training_presets import PRESETS
from backend.errors import InvalidInput
from backend.web.forms import field_messages, validate

TOP_LEVEL = frozenset({"recipe", "seed", "concurrency", "servers", "threads"})
"""Choices of the configuration that stand in no block."""


class TrainingRequest(BaseModel):
    """A training run to start. What the configuration leaves out comes from the preset, else from the defaults."""

    model_config = ConfigDict(extra="ignore")

    version_id: uuid.UUID
    preset: Annotated[str | None, Field(max_length=60)] = None
    """Name of a preset; what the configuration says wins over it."""
    configuration: dict[str, Any] = {}
    """`TrainingConfiguration` as JSON; may be partial."""
    name: Annotated[str | None, Field(max_length=80, pattern=r"^[^\x00-\x1f]+$")] = None
    """Of the run and of the policy that it trains; left out: made from the environment's name."""
    without_certificate: Annotated[str | None, Field(max_length=2000)] = None
    """Why to train on a version whose reward was not certified. Kept on the run."""
    key: Annotated[str | None, Field(max_length=100)] = None
    """Any text of the sender's; the same key again gives the run that it started first."""


class ExportRequest(BaseModel):
    """A checkpoint to export."""

    checkpoint_id: uuid.UUID


async def read_training_form(request: Request) -> TrainingRequest:
    """The launch form: dotted field names are choices of the configuration."""
    form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    plain = {name: form[name] for name in TrainingRequest.model_fields if form.get(name, "").strip()}
    choices = choices_of_form({name: text for name, text in form.items() if "." in name or name in TOP_LEVEL})
    return validate(TrainingRequest, {**plain, "configuration": choices})


def resolve_configuration(preset: str | None, choices: Mapping[str, Any]) -> TrainingConfiguration:
    """Choices over the preset over the defaults. Raises InvalidInput with the dotted name of each wrong field."""
    if preset and preset not in PRESETS:
        raise InvalidInput(fields={"preset": f"There is no preset {preset}; there are {', '.join(PRESETS)}."})
    base = PRESETS[preset].configuration.resolved() if preset else {}
    try:
        return TrainingConfiguration.model_validate(_merge(base, choices))
    except ValidationError as error:
        raise InvalidInput(fields=field_messages(error)) from error


def choices_of_form(fields: Mapping[str, str]) -> dict[str, Any]:
    """`{"grpo.steps": "100"}` as `{"grpo": {"steps": "100"}}`; empty fields are left to the default."""
    nested: dict[str, Any] = {}
    for name, text in fields.items():
        if not text.strip():
            continue
        *blocks, last = name.split(".")
        target = nested
        for block in blocks:
            target = target.setdefault(block, {})
        target[last] = text.split(",") if name == "grpo.levels" else text.strip()
    return nested


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
