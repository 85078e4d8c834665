"""What people send about imports."""

import uuid
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile

from backend.domain.environments.manifest import Name
from backend.environments.import_intake import Wishes
from backend.errors import InvalidInput


class ImportForm(BaseModel):
    """The page's form: a zip, or the address of a repository or of a running server."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kind: Literal["zip", "git", "remote"] = "zip"
    package: UploadFile | None = None
    url: str = Field(default="", max_length=1000)
    reference: str = Field(default="", max_length=200)
    path: str = Field(default="", max_length=500)
    name: str = Field(default="", max_length=40)
    requires: str = Field(default="", max_length=2000)
    variables: str = Field(default="", max_length=8000)

    def wishes(self) -> Wishes:
        """`requires` and `variables` are written one a line."""
        requires = [line.strip() for line in self.requires.splitlines() if line.strip()]
        return Wishes(_checked_name(self.name), self.path.strip(), requires, read_variables(self.variables))


class ImportIn(BaseModel):
    """The same in JSON. Give `archive`, or `url` with its kind."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["zip", "git", "remote"] = "zip"
    archive: str | None = Field(default=None, description="A zip of the package's files, in Base64.")
    source: str = Field(default="", max_length=500, description="Where the zip came from, for people.")
    url: str = Field(default="", max_length=1000)
    reference: str = Field(default="", max_length=200, description="A branch or tag of the repository.")
    path: str = Field(default="", max_length=500, description="Where the package lies in it.")
    name: str = Field(default="", max_length=40)
    requires: list[str] = Field(default=[], max_length=50)
    variables: dict[str, str] = Field(default={}, max_length=100)

    def wishes(self) -> Wishes:
        return Wishes(_checked_name(self.name), self.path.strip(), self.requires, self.variables)


class BlockForm(BaseModel):
    """`then`: look at the preview, save it, or create the environment."""

    block: str = Field(default="", max_length=200_000)
    name: str = Field(default="", max_length=40)
    then: Literal["preview", "create"] = "preview"


class BlockIn(BaseModel):
    block: str = Field(max_length=200_000)


class ColumnsForm(BaseModel):
    columns_from: str = Field(default="", max_length=200)


class CreateIn(BaseModel):
    name: Name | None = Field(default=None, description="Null: what the import proposes.")


class ImportOut(BaseModel):
    """An import with its report."""

    id: uuid.UUID
    name: str
    kind: str
    source: str
    status: str
    phase: str
    report: dict[str, Any]
    block: str
    columns_from: str | None
    problems: list[str]
    """What is wrong with the block as it stands."""
    prompt: dict[str, str]
    """`system` and `user`: what a model would see first."""
    environment: str | None
    """What it has become."""
    created_at: datetime
    ended_at: datetime | None


def read_variables(text: str) -> dict[str, str]:
    """`NAME=value`, one a line."""
    variables = {}
    for line in text.splitlines():
        if line.strip():
            name, has_value, value = line.partition("=")
            if not has_value or not name.strip():
                raise InvalidInput(fields={"variables": "Write NAME=value, one a line."})
            variables[name.strip()] = value.strip()
    return variables


def _checked_name(name: str) -> str:
    return name.strip()
