"""What a person or a script asks for."""

import shlex
import uuid
from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.datastructures import UploadFile

from backend.domain.vocabulary import Split
from backend.rollouts.export import ExportFormat

Where = Annotated[str, Field(max_length=2000)]
SftFormat = Literal["jsonl", "huggingface"]


class ExportQuery(BaseModel):
    """Which rollouts, and how they are written."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: ExportFormat = ExportFormat.JSONL
    where: Where = ""
    """A filter expression; left out: all rollouts of the run."""


class ImportForm(BaseModel):
    """A file of rollouts that another tool or another Proctor wrote."""

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    file: UploadFile
    version_id: Annotated[uuid.UUID | None, Field()] = None
    """The environment version that was played."""
    environment: Annotated[str | None, Field(max_length=80)] = None
    """The same by name: `name` (its newest version) or `name@number`. Both left out: the one that the file names."""
    policy: Annotated[str | None, Field(max_length=80)] = None
    """Who played; left out: the model that the file names."""
    name: Annotated[str | None, Field(max_length=200)] = None
    """Of the run; left out: from the policy and the file."""
    split: Split = Split.HELDOUT
    """Of tasks that do not say theirs."""
    tasks: Literal["auto", "shared", "foreign"] = "auto"
    """shared: task numbers are those of the environment here, so that the run compares with others. foreign: they are
    not. auto: shared for rollouts of the very same version."""


class SftFilter(BaseModel):
    """Which conversations of which runs become training data."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    run: list[uuid.UUID] = Field(default=[], max_length=50)
    best_of_group: bool = False
    """Of each group the rollout with the highest reward, the first one where several have it."""
    min_reward: Annotated[float | None, Field(allow_inf_nan=False)] = None
    honest_only: bool = False
    """Only rollouts that a person judged honest. Those judged a hack or a broken reward never come in."""
    without_flags: bool = False
    understood_only: bool = False
    """Only conversations in which every reply could be read as an action."""
    where: Where = ""
    heldout: bool = False
    """Held-out tasks too. Nothing should be learned from what examines."""
    repeats: bool = False
    """Keep conversations that are there already."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if not isinstance(value, str) or value.strip()}

    def fields(self) -> list[tuple[str, str]]:
        """As the fields of a form or of an address."""
        values = self.model_dump(mode="json", exclude_defaults=True, include=set(SftFilter.model_fields))
        pairs = [(name, each) for name, value in values.items() for each in (value if name == "run" else [value])]
        return [(name, "true" if value is True else str(value)) for name, value in pairs]

    def query(self) -> str:
        return urlencode(self.fields())

    def command(self) -> str:
        """What `proctor` would be asked."""
        runs = " ".join(str(run) for run in self.run)
        options = [
            f"--{name.replace('_', '-')}" + ("" if value == "true" else f" {shlex.quote(value)}")
            for name, value in self.fields()
            if name != "run"
        ]
        return " ".join(["proctor data sft", runs, *options, "-o FOLDER"])

    def in_words(self) -> list[str]:
        """What it asks for, beyond the runs."""
        asked = {
            "the best of each group": self.best_of_group,
            f"a reward of at least {self.min_reward:g}" if self.min_reward is not None else "": True,
            "judged honest": self.honest_only,
            "without flags": self.without_flags,
            "every reply understood": self.understood_only,
            f"where {self.where.strip()}" if self.where.strip() else "": True,
            "held-out tasks too": self.heldout,
        }
        return [words for words, is_asked in asked.items() if words and is_asked]


class SftDownload(SftFilter):
    """The same as a file."""

    format: SftFormat = "jsonl"


class MarkForm(SftFilter):
    """The same as demonstrations of the SFT warm-up here, or no longer."""

    is_wanted: bool = True
