"""Requests and responses of rollouts and saved views."""

import uuid
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.rollouts.fields import OPERATORS
from backend.domain.rollouts.fields import Field as RolloutField
from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason, Verdict
from backend.operations.schemas import Request, Response
from backend.rollouts.listing import ListedRollout, columns_of
from backend.rollouts.tables import Rollout
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run

ViewName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$", description="Name.")]


class SelectRollouts(RolloutFilter):
    """Rollouts of one run, filtered."""

    run_id: str = Field(max_length=200, description="Id of a run, the last characters of it, or `last`.")


class RolloutResponse(BaseModel):
    """A rollout without its conversation."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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
    tokens_in: int
    tokens_out: int
    is_truncated: bool
    policy_seconds: float
    environment_seconds: float
    excerpt: str
    """The end of the last reply."""
    ended_at: datetime | None


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

    @classmethod
    def of(cls, item: ListedRollout, run: Run, columns: list[RolloutField] | None) -> "ListedRolloutResponse":
        return cls(
            **_values(item.rollout, run),
            flags=list(item.flags),
            verdict=item.verdict,
            judges=item.scores,
            questions=item.answers,
            values=None if columns is None else {field.name: item.value(field) for field in columns},
        )


class WholeRolloutResponse(RolloutResponse):
    """A rollout with its conversation."""

    opening: dict[str, object]
    """Observation of the reset."""
    steps: list[dict[str, object]]
    messages: list[dict[str, object]]
    tokens: dict[str, object] | None
    """Token ids or texts with their log-probabilities, where the policy reports them."""

    @classmethod
    def of(cls, rollout: Rollout) -> "WholeRolloutResponse":
        whole = {name: getattr(rollout, name) for name in ("opening", "steps", "messages", "tokens")}
        return cls(**_values(rollout, rollout.run), **whole)


def _values(rollout: Rollout, run: Run) -> dict[str, object]:
    task = rollout.group.task
    values = {name: getattr(rollout, name, None) for name in RolloutResponse.model_fields}
    values |= {name: getattr(task, name) for name in ("split", "index", "seed", "version_id")}
    return values | {"columns": columns_of(run, rollout)}


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
    operators: list[str]

    @classmethod
    def of_field(cls, field: RolloutField) -> "FieldResponse":
        return cls(
            name=field.name,
            kind=field.kind,
            help=field.help,
            choices=list(field.choices),
            operators=list(OPERATORS[field.kind]),
        )


class FilterFields(Response):
    """Names that filters and sort orders of one run can use."""

    fields: list[FieldResponse]
    sorts: list[str]


class SaveView(Request):
    """A view to save. It replaces your view of the same name."""

    model_config = ConfigDict(str_strip_whitespace=True)

    name: ViewName
    filter: str = Field("", max_length=MAX_LENGTH, description="Filter. Default: all rollouts.")
    sort: str = Field("", max_length=100, description="Sort order, such as `-reward`.")
    is_shared: bool = Field(False, description="Show the view to the whole team.")


class UpdateView(Request):
    """Changes to a view. Default for every field: unchanged."""

    model_config = ConfigDict(str_strip_whitespace=True)

    name: ViewName | None = None
    is_shared: bool | None = Field(None, description="Show the view to the whole team.")


class View(Response):
    """A saved view."""

    id: uuid.UUID
    name: str
    filter: str
    sort: str
    is_shared: bool
    is_own: bool
    owner: str
    """Name of the member who saved it."""
    created_at: datetime
