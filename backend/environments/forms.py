"""What people send about environments."""

from typing import Literal

from pydantic import BaseModel, Field

from backend.domain.manifest import Name
from backend.domain.vocabulary import Split


class NewEnvironment(BaseModel):
    name: Name = Field(description="Lower case letters, digits and `_`, a letter first.")
    template: str = Field(min_length=1, max_length=80, description="A template, or a built-in environment to copy.")


class EditedFile(BaseModel):
    """One file from the editor. `then`: what to do with the draft once it is saved."""

    path: str = Field(max_length=1000)
    text: str = Field(default="", max_length=4_000_000)
    mark: str = ""
    revision: int = Field(ge=1)
    then: Literal["save", "autosave", "overwrite", "publish"] = "save"
    notes: str = Field(default="", max_length=10_000)


class NewFile(BaseModel):
    path: str = Field(min_length=1, max_length=1000)


class RenamedFile(BaseModel):
    path: str = Field(max_length=1000)
    new_path: str = Field(min_length=1, max_length=1000)


class DeletedFile(BaseModel):
    path: str = Field(max_length=1000)
    mark: str


class ChosenVersion(BaseModel):
    version: int = Field(ge=1, lt=2**31)


class ChosenTask(BaseModel):
    """What to play; what is left open is drawn at random."""

    version: int | None = Field(default=None, ge=1, lt=2**31, description="Null: the newest.")
    split: Split = Split.TRAIN
    level: int | None = Field(default=None, ge=0)
    index: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0)


class PlayReply(BaseModel):
    """Either the whole reply as a model would write it, or the action's fields (`field.<name>` in forms)."""

    reply: str | None = None
    revision: int | None = None
