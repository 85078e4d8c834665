"""Requests and responses of rollouts, saved views, imports and exports."""

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlencode

from fastapi import UploadFile
from pydantic import AliasPath, BeforeValidator, ConfigDict, Field, create_model

from backend.domain.rollouts.fields import MEASURED, OPERATORS
from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason, Verdict
from backend.operations.schemas import Request, Response
from backend.rollouts.export import ExportFormat
from backend.rollouts.tables import Listing, Rollout
from backend.runs.schemas import RolloutFilter

ViewName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$", description="Name.")]
Where = Annotated[str, Field(max_length=2000, description="Filter on the rollouts. Default: all rollouts.")]


class SelectRollouts(RolloutFilter):
    """Rollouts of one run, filtered."""

    run_id: str = Field(max_length=200, description="Id of a run, the last characters of it, or `last`.")


_measurements: dict[str, Any] = {
    name: (int if field.is_whole else float, Field(description=f"{field.help[0].upper()}{field.help[1:]}."))
    for name, field in MEASURED.items()
}
RolloutMeasurements = create_model("RolloutMeasurements", __base__=Response, **_measurements)


class RolloutResponse(RolloutMeasurements):
    """A rollout without its conversation."""

    id: uuid.UUID
    run_id: uuid.UUID
    group_id: uuid.UUID
    member: int
    """Index within the group, from 0."""
    seq: int
    """Number within the run, in the order of storing."""
    split: Split
    index: int
    """Index of the task in its split."""
    seed: int
    """Seed of the task."""
    level: int
    version_id: uuid.UUID
    """Environment version of the task: the run's own, unless the run trains on several."""
    phase: Phase
    training_step: int | None
    status: RolloutStatus
    stop_reason: StopReason | None
    error_kind: ErrorKind | None
    error_message: str | None
    reward: float | None
    """Null unless the status is `completed`."""
    columns: dict[str, float]
    """Reward columns."""
    metrics: dict[str, object]
    advantage: float | None
    turns: int
    is_truncated: bool
    excerpt: str
    """The end of the last reply."""
    ended_at: datetime | None

    @classmethod
    def of(cls, row: Rollout, **values: Any) -> Self:
        """`values`: `columns` by name, and the fields that the rollout itself does not have."""
        values |= {name: getattr(row.group.task, name) for name in ("split", "index", "seed", "version_id")}
        return cls(**{name: getattr(row, name) for name in cls.model_fields if name not in values}, **values)


class ListedRolloutResponse(RolloutResponse):
    """A rollout in a list."""

    flags: list[str]
    """Detectors that flagged it."""
    verdict: Verdict | None
    """The latest verdict."""
    judges: dict[str, float | None]
    """Scores by judge."""
    questions: dict[str, str | None]
    """Answers by question."""
    values: dict[str, object] | None = None
    """Values of the requested `columns`."""


class WholeRolloutResponse(RolloutResponse):
    """A rollout with its conversation."""

    opening: dict[str, object]
    """Observation of the reset."""
    steps: list[dict[str, object]]
    messages: list[dict[str, object]]
    seats: dict[str, object] | None
    """If several policies played: the policy's seat, and the turns of the others."""
    tokens: dict[str, object] | None
    """Token ids or texts with their log-probabilities, where the policy reports them."""


class RolloutCount(Response):
    """Number of a run's rollouts that pass a filter."""

    matching: int
    total: int


class FieldResponse(Response):
    """A field that filters can use."""

    name: str
    kind: str
    help: str
    choices: list[str]
    operators: Annotated[list[str], BeforeValidator(OPERATORS.__getitem__)] = Field(validation_alias=AliasPath("kind"))


class FilterFields(Response):
    """Names that filters and sort orders of one run can use."""

    fields: list[FieldResponse]
    sorts: list[str]


class SaveView(Request):
    """A view to save. It replaces your view of the same name."""

    model_config = ConfigDict(str_strip_whitespace=True)

    name: ViewName
    listing: Listing = Field(Listing.ROLLOUTS, description="The list that the view is for.")
    filter: str = Field("", max_length=MAX_LENGTH, description="Filter. Default: everything.")
    sort: str = Field("", max_length=100, description="Sort order, such as `-reward`.")
    columns: str = Field("", max_length=1000, description="Columns, separated by commas. Default: the usual ones.")
    is_shared: bool = Field(False, description="Show the view to the whole team.")


class UpdateView(Request):
    """Changes to a view. Default for every field: unchanged."""

    model_config = ConfigDict(str_strip_whitespace=True)

    name: ViewName | None = None
    is_shared: bool | None = Field(None, description="Show the view to the whole team.")


class ListViews(Request):
    listing: Listing | None = Field(None, description="Views of this list only.")


class View(Response):
    """A saved view."""

    id: uuid.UUID
    name: str
    listing: Listing
    filter: str
    sort: str
    columns: str
    """Names of the columns, separated by commas. Empty: the default ones."""
    is_shared: bool
    is_own: bool
    owner: str
    """Name of the member who saved it."""
    created_at: datetime

    @property
    def query(self) -> str:
        """The query string of a list with this view."""
        values = {"where": self.filter, "sort": self.sort, "columns": self.columns}
        return urlencode({name: value for name, value in values.items() if value})


class ExportRollouts(Request):
    """Rollouts to export, and the file format."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: ExportFormat = Field(
        ExportFormat.JSONL, description="File format. huggingface, verifiers_v0, verl, skyrl and prime_rl are zips."
    )
    where: Where = ""


class ImportRollouts(Request):
    """A file of rollouts from another tool or another Proctor."""

    model_config = ConfigDict(extra="ignore")

    file: UploadFile = Field(description="JSONL, Parquet or a zip.")
    version_id: uuid.UUID | None = Field(None, description="Environment version of the rollouts.")
    environment: str | None = Field(
        None, max_length=80, description="The same as `name` or `name@version`. Default: from the file."
    )
    policy: str | None = Field(None, max_length=80, description="Policy. Default: the model that the file names.")
    name: str | None = Field(
        None, max_length=200, description="Name of the run. Default: from the policy and the file."
    )
    split: Split = Field(Split.HELDOUT, description="Split of tasks that do not name theirs.")
    tasks: Literal["auto", "shared", "foreign"] = Field(
        "auto",
        description="shared: the file's task numbers are those of the environment, so the run can be compared. "
        "foreign: they are not. auto: shared for rollouts of the same version.",
    )
