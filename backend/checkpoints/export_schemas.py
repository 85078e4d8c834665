"""What a person or a script says of an export, and of where it goes."""

import uuid
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from backend.domain.checkpoints.exports import REPOSITORY, Licence
from backend.domain.vocabulary import ExportForm


class ExportChoice(BaseModel):
    """How a checkpoint is handed out."""

    form: ExportForm | None = None
    """Left out: all weights, or an adapter merged into its original base."""
    licence: Licence = ""
    """A name that model hubs know, such as apache-2.0; it must fit the base's."""
    gguf_type: Annotated[str, Field(pattern="^(f16|bf16|f32)$")] = "f16"
    """Precision of a GGUF file."""
    is_stored: bool = False
    """Keep the files unpacked in the artifact store too."""


class ExportRequest(ExportChoice):
    """A checkpoint to export."""

    checkpoint_id: uuid.UUID


class ExportPageForm(ExportRequest):
    """As the page sends it. An input called `form` would hide the property of that name, which htmx reads."""

    form: ExportForm | None = Field(default=None, alias="export_form")


class HubQuery(BaseModel):
    """Where an export would go."""

    repository: Annotated[str, Field(pattern=REPOSITORY)]
    """owner/name"""
    is_private: bool = False
    """Only where the repository is made anew."""


class HubRequest(HubQuery):
    """An upload to the Hugging Face Hub."""

    token: SecretStr | None = Field(default=None, max_length=500)
    """Of the Hub, allowed to write. Encrypted, used once, then forgotten. Left out: the worker's own, if it has one."""
    dry_run: bool = False
    """Only say what would be sent."""
