"""What a person or a script asks for when a model is to be trained or a checkpoint exported."""

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.errors import InvalidInput
from backend.training.choices import is_choice, nest, read
from backend.web.form_data import field_messages, validate

NO_VERSION = uuid.UUID(int=0)
"""No version was chosen."""


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
    content_hash: Annotated[str | None, Field(max_length=80)] = None
    """The version must have this one, as a configuration file pins it."""
    preflight_id: uuid.UUID | None = None
    """A pre-flight whose choices these begin with."""
    again: uuid.UUID | None = None
    """The training run whose choices these began with; the new run remembers it."""
    key: Annotated[str | None, Field(max_length=100)] = None
    """Any text of the sender's; the same key again gives the run that it started first."""


async def read_training_form(request: Request) -> TrainingRequest:
    """The launch form: dotted field names are choices of the configuration."""
    return request_of_fields(await request.form())


def read_training_query(request: Request) -> TrainingRequest:
    """The same from an address, which names only what differs from the preset."""
    return request_of_fields(request.query_params)


def request_of_fields(sent: Mapping[str, Any]) -> TrainingRequest:
    """The last value of each name counts: a box that is ticked comes after what stands for an empty one."""
    form = {name: value for name, value in sent.items() if isinstance(value, str)}
    plain = {name: form[name] for name in TrainingRequest.model_fields if form.get(name, "").strip()}
    choices = nest({name: text for name, text in form.items() if is_choice(name)})
    return validate(TrainingRequest, {"version_id": NO_VERSION, **plain, "configuration": choices})


def resolve_configuration(
    preset: str | None, choices: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> TrainingConfiguration:
    """Choices over the preset over the base over the defaults. Raises InvalidInput with the dotted name of each wrong
    field."""
    if preset and preset not in PRESETS:
        raise InvalidInput(fields={"preset": f"There is no preset {preset}; there are {', '.join(PRESETS)}."})
    known = PRESETS[preset].configuration.resolved() if preset else base or {}
    try:
        return TrainingConfiguration.model_validate(_merge(known, read(TrainingConfiguration, choices)))
    except ValidationError as error:
        raise InvalidInput(fields=field_messages(error)) from error


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
