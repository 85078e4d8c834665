"""What a person or a script sends."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile


class LessonFileForm(BaseModel):
    """A JSONL of conversations."""

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    file: UploadFile
    """A line a conversation: {"messages": […]}, or {"prompt": …, "completion": …}, as TRL and OpenAI write them."""
    name: Annotated[str | None, Field(max_length=200)] = None
    """Left out: the file's own."""
