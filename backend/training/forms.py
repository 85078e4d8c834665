"""Forms of training pages: the launch form, changed settings, an uploaded file."""

import uuid
from typing import Annotated

from fastapi import Request, UploadFile
from pydantic import BaseModel, ConfigDict, Field

from backend.domain.training.alarms import AlarmsChoice
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.steering import LEARNING_RATE, PARTS, WARM_UP_RATE
from backend.training.schemas import TrainingRequest
from backend.training.setting_texts import nest
from backend.web.field_messages import validate


async def read_training_request(request: Request) -> TrainingRequest:
    """Read the launch form, or a query string with the settings that differ from the preset. Dotted names are settings.

    The last value of each name counts: a checked box follows its hidden unchecked value.
    """
    sent = await request.form() if request.method == "POST" else request.query_params
    form = {name: value for name, value in sent.items() if isinstance(value, str)}
    plain = {name: form[name] for name in TrainingRequest.model_fields if form.get(name, "").strip()}
    choices = nest(
        {name: text for name, text in form.items() if name.partition(".")[0] in TrainingConfiguration.model_fields}
    )
    return validate(TrainingRequest, {"version_id": uuid.UUID(int=0), **plain, "configuration": choices})


async def read_settings_form(request: Request) -> dict[str, str | None]:
    """Read settings by dotted name. An empty field clears a setting that may be empty."""
    form = await request.form()
    others = {"csrf_token", "checkpoint_id", "rate_factor"}
    sent = {name: text for name, text in form.items() if isinstance(text, str) and name not in others}
    kept = (LEARNING_RATE, WARM_UP_RATE, PARTS)  # an empty learning rate or alarm threshold stays unchanged
    return {
        name: text.strip() or None
        for name, text in sent.items()
        if text.strip() or not (name in kept or name.partition(".")[2] in AlarmsChoice.model_fields)
    }


class UploadExamples(BaseModel):
    """A JSONL file of conversations. Each line is {"messages": […]} or {"prompt": …, "completion": …}."""

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    file: Annotated[UploadFile, Field(description="JSONL file with one conversation per line.")]
    name: Annotated[str | None, Field(max_length=200, description="Default: the name of the file.")] = None
