"""Requests, filters and responses of runs: the same models read HTML forms and JSON bodies."""

import uuid
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, Field, StringConstraints

from backend.domain.rollouts.filters import MAX_LENGTH, OR, clauses_of, field_name, subject_of
from backend.domain.runs.plans import EvaluationScope
from backend.domain.statistics import Coverage
from backend.domain.tags import Tags
from backend.domain.text import quoted
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus, StopReason
from backend.operations.schemas import (
    Cli,
    ItemFilter,
    ItemListQuery,
    Labels,
    ListFilter,
    Progress,
    Request,
    Response,
    UpdateLabels,
)
from backend.runs.tables import Run


class EvaluationRequest(EvaluationScope):
    """An evaluation to start. The run's configuration stores every default."""

    version_id: uuid.UUID | None = None
    """Id of the environment version. Default: see `environment`."""
    policy_id: uuid.UUID | None = None
    """Id of the policy. Default: see `policy`."""
    environment: str | None = Field(default=None, max_length=200)
    """Name or id of the environment, such as `tictactoe`, or `tictactoe@3` for version 3. Default: latest version."""
    policy: str | None = Field(default=None, max_length=200)
    """Name or id of the policy."""
    checkpoint_id: Annotated[uuid.UUID | None, Cli(option="--checkpoint")] = None
    """Local policies only. Default: the best checkpoint, else the latest one."""
    opponent: str | None = Field(default=None, max_length=200)
    """Environments with seats only: name or id of the policy that takes the other seats, or
    `<policy id>:<checkpoint id>`.

    Each task is then played once from every seat. Default: the environment's own script.
    """
    temperature: float = Field(default=1.0, ge=0, le=5, allow_inf_nan=False)
    """Sampling temperature. 0: greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens_per_turn: Annotated[int | None, Field(ge=1, le=131072), Cli(option="--max-tokens")] = None
    """Maximum tokens per turn. Default: the environment's setting."""
    concurrency: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Maximum number of concurrent episodes per worker. Default: chosen by policy and environment."""
    task_indexes: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=100_000)
    """These tasks instead of `tasks` and `first_task`."""
    judge_ids: Annotated[list[uuid.UUID], Cli(option="--judge")] = Field(default=[], max_length=16)
    """Judges that grade the rollouts at the end of the run."""
    seed: int = Field(default=0, ge=0, le=2**53)
    """Sampling seed."""
    name: Annotated[str | None, Field(max_length=200)] = None
    """Name of the run."""
    key: Annotated[str | None, Field(max_length=100)] = None
    """Any text. Repeating a key returns the run that it started first."""


class UpdateRun(UpdateLabels):
    """Changes of a run's name, tags and note."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)] | None = None
    """New name."""


class TagRuns(Request):
    """Tags to add to several runs, or to remove from them."""

    runs: Annotated[list[uuid.UUID], Cli(option="--run")] = Field(min_length=1, max_length=500)
    """Ids of runs."""
    add: Tags = Field(default=[])
    """Tags to add."""
    remove: Tags = Field(default=[])
    """Tags to remove."""
    is_pinned: bool | None = None
    """Pin the runs to the top of the list, or unpin them."""


class ArchiveRuns(Request):
    """Runs to archive, or to take out of the archive."""

    runs: Annotated[list[uuid.UUID], Cli(option="--run")] = Field(min_length=1, max_length=500)
    """Ids of runs."""
    archived: bool = True
    """Whether they are archived from now on."""


class BulkRuns(BaseModel):
    """The form beneath the list of runs: what to do with the selected ones."""

    run: list[uuid.UUID] = Field(default=[], max_length=500)
    choice: Literal["tag", "untag", "pin", "unpin", "move", "stop", "compare", "archive", "unarchive", "delete"]
    tag: Tags = Field(default=[])
    project: str = ""
    """Id of the project to move to."""
    query: str = Field(default="", max_length=10_000)
    """Query of the list."""
    back: uuid.UUID | None = None
    """Run whose page has the form instead of the list."""


class RunFilter(ItemFilter):
    kind: RunKind | None = None
    status: RunStatus | None = None
    environment: str | None = None
    """Name of an environment."""
    version_id: uuid.UUID | None = None
    """Id of an environment version."""
    policy_id: uuid.UUID | None = None
    """Id of a policy."""
    text: str | None = Field(default=None, max_length=200)
    """Part of the run's name."""
    project: str | None = Field(default=None, max_length=60)
    """Name or id of a project. Default: all that you see."""
    archived: bool = False
    """Only archived runs. Default: without archived runs."""
    sort: str = Field(default="-created", max_length=130)
    """A field such as `name`, `reward`, `duration` or `metric.entropy`. Descending: `-reward`."""

    command_limit: ClassVar[int | None] = 20

    @property
    def expression(self) -> str:
        """The parameters that filters can express, as one filter."""
        equal = {"kind": self.kind, "status": self.status, "environment": self.environment, "tag": self.tag}
        parts = [f"{name} = {quoted(str(value))}" for name, value in equal.items() if value]
        return self.with_where(parts + ([f"name ~ {quoted(self.text)}"] if self.text else []))


class RunListQuery(RunFilter, ItemListQuery):
    """The address of the list of runs."""


class RolloutFilter(ListFilter):
    """Filter and order of a run's rollouts."""

    where: str | None = Field(default=None, max_length=MAX_LENGTH)
    """A filter: `has flag and win = 0 and tokens > 200`. The parameters below are added to it with `and`."""
    before: str | None = None
    """The `previous` of a page; `end` is the last page."""
    columns: str | None = Field(default=None, max_length=1000)
    """Columns to show, separated by commas."""
    status: RolloutStatus | None = None
    """State of the rollout."""
    phase: Phase | None = None
    """Part of the run."""
    step: int | None = None
    """Training step."""
    level: int | None = None
    """Difficulty level."""
    stop_reason: StopReason | None = None
    min_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward."""
    max_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Maximum reward."""
    column: str | None = None
    """The reward column of `min_column` and `max_column`."""
    min_column: float | None = Field(default=None, allow_inf_nan=False)
    max_column: float | None = Field(default=None, allow_inf_nan=False)
    flagged: bool = False
    text: str | None = Field(default=None, max_length=500)
    """Text anywhere in the conversation."""
    sort: str = Field(default="-seq", max_length=200)
    """`seq` or any field with one value, such as `reward`, `tokens` or a reward column. Descending: `-reward`."""

    @property
    def expression(self) -> str:
        """All parameters as one filter."""
        column = field_name("column", self.column or "")
        equal = {"status": self.status, "phase": self.phase, "step": self.step, "level": self.level}
        bounds = [("reward", ">=", self.min_reward), ("reward", "<=", self.max_reward)]
        if self.column:
            bounds += [(column, ">=", self.min_column), (column, "<=", self.max_column)]
        parts = [f"({self.where})" if self.where and OR.search(self.where) else self.where or ""]
        parts += [f"{name} = {value}" for name, value in equal.items() if value is not None]
        parts += [f"stop_reason = {self.stop_reason}"] if self.stop_reason else []
        parts += [f"{name} {sign} {bound:.9g}" for name, sign, bound in bounds if bound is not None]
        parts += ["has flag"] if self.flagged else []
        parts += [f"text ~ {quoted(self.text)}"] if self.text else []
        return " and ".join(part for part in parts if part)

    @property
    def clauses(self) -> dict[str, str]:
        """Parts of the filter that `and` joins, by their field."""
        return {subject_of(clause): clause for clause in clauses_of(self.expression) or ()}

    def as_expression(self) -> "RolloutFilter":
        """Return the same filter with everything in `where`."""
        kept = {name: getattr(self, name) for name in ("after", "before", "columns", "limit", "sort")}
        return self.model_construct(**(RolloutFilter().model_dump() | kept | {"where": self.expression or None}))


class GroupFilter(ListFilter):
    """Filter and order of a run's groups."""

    phase: Phase | None = None
    step: int | None = None
    level: int | None = None
    spread: Literal["mixed", "same"] | None = None
    """mixed: the members' rewards differ, so that training can learn from them. same: they do not differ."""
    sort: str = ""
    """`mean`, `spread`, `tokens` or `failed`. Descending: `-mean`. Default: the order of play."""


class RunResponse(Labels, Progress):
    """A run."""

    id: uuid.UUID
    kind: RunKind
    name: str
    status: RunStatus
    environment: str
    version: int
    version_id: uuid.UUID
    policy: str | None
    policy_id: uuid.UUID | None
    checkpoint_id: uuid.UUID | None
    source_run_id: uuid.UUID | None
    """The run that this one rescores, replays, repeats or branches from."""
    branch_step: int | None
    """Branches of a training run: the step whose weights it started from."""
    columns: list[str]
    weights: list[float]
    seed: int
    progress: dict[str, object]
    summary: dict[str, object]
    """Final figures. Evaluations: `reward` and `columns`, each {mean, low, high, count}."""
    coverage: Coverage | None
    """Completed rollouts of all rollouts, once known."""
    reason: str | None
    """Why it failed, paused or stopped."""
    attempt: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None
    """When it was archived. Lists omit archived runs."""

    @classmethod
    def of(cls, run: Run) -> Self:
        failed, completed = int(run.summary.get("failed") or 0), run.summary.get("completed")
        total = int(run.progress.get("total") or 0)
        values = {
            "is_finished": run.status.is_over,
            "is_successful": run.status is RunStatus.COMPLETED and not failed,
            "done": int(run.progress.get("done") or 0),
            "total": total or None,
            "message": run.reason or str(run.progress.get("message") or run.progress.get("phase") or run.status),
            "environment": run.version.environment.name,
            "version": run.version.number,
            "content_hash": run.version.content_hash,
            "policy": run.policy.name if run.policy else None,
            "coverage": Coverage(completed=completed, total=max(total, int(run.summary.get("rollouts") or 0)))
            if isinstance(completed, int)
            else None,
        }
        return cls.from_row(run, **values)


class RunDetailResponse(RunResponse):
    """A run with its resolved configuration."""

    configuration: dict[str, object]
    content_hash: str


class LogLineResponse(Response):
    """One line of a run's log."""

    id: int
    at: datetime
    level: str
    message: str
