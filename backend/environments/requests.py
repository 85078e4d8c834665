"""What people send about environments."""

import uuid
from typing import Literal

from pydantic import BaseModel, Field

from backend.domain.environments.fixtures import FixtureKind
from backend.domain.environments.manifest import Name
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
    check: bool = False
    """Run the checks of what is published: a box that is ticked at first, and not sent when it is not."""
    regrade: bool = False
    """Grade all that was played again by what is published."""
    beside: uuid.UUID | None = None
    """A rollout that is read beside the code."""


class NewFile(BaseModel):
    path: str = Field(min_length=1, max_length=1000)


class RenamedFile(BaseModel):
    path: str = Field(max_length=1000)
    new_path: str = Field(min_length=1, max_length=1000)


class DeletedFile(BaseModel):
    path: str = Field(max_length=1000)
    mark: str


class BroughtBack(BaseModel):
    """A version that becomes the draft."""

    version: int = Field(ge=1, lt=2**31)
    revision: int = Field(ge=1, description="The draft's revision that is given up.")


class ChosenVersion(BaseModel):
    """A version to be checked."""

    version: int = Field(ge=1, lt=2**31)
    policy: str = Field(default="", max_length=120)
    """That the tasks are measured with too; empty: the package's scripts only."""


class ChosenTask(BaseModel):
    """What to play; what is left open is drawn at random."""

    version: int | None = Field(default=None, ge=1, lt=2**31, description="Null: the newest.")
    split: Split = Split.TRAIN
    level: int | None = Field(default=None, ge=0)
    index: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0)


class LetPlay(BaseModel):
    """A policy is to play on in a hand-played episode."""

    policy: str = Field(
        min_length=1, max_length=120, description="A policy's id or name, or `<policy id>:<checkpoint id>`."
    )
    moves: int | None = Field(default=None, ge=1, le=1000, description="Null: to the end.")
    revision: int | None = None


class Branch(BaseModel):
    """Play on by hand from a turn of any rollout."""

    rollout_id: uuid.UUID
    turns: int = Field(default=0, ge=0, le=1000, description="Begin with the first so many replies.")


class NewFixture(BaseModel):
    """An episode that belongs to the package from now on."""

    rollout_id: uuid.UUID
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,59}$", description="Lower case letters, digits, `_` and `-`.")
    note: str = Field(default="", max_length=2000)
    kind: FixtureKind = FixtureKind.SCORED


class Demonstration(BaseModel):
    rollout_id: uuid.UUID
    is_wanted: bool = False
