"""Requests and responses of operations on checkpoints and exports."""

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from backend.domain.checkpoints.exports import REPOSITORY, HubUpload, License
from backend.domain.checkpoints.retention import KeepReason, KeepRule
from backend.domain.checkpoints.transfer import (
    DEFAULT_ENVIRONMENTS,
    DEFAULT_ROLLOUTS,
    MAX_ENVIRONMENTS,
    TransferReport,
)
from backend.domain.tags import MAX_TAG
from backend.domain.vocabulary import ExportForm, ExportStatus, RunStatus
from backend.operations.schemas import Cli, Labels, ListRequest, Progress, ProjectText, Request, Response
from backend.web.formats import size

RunText = Annotated[
    str | None,
    Field(max_length=200, description="Run: its id, the last characters of it, or `last`."),
    Cli(option="--run"),
]
PolicyText = Annotated[str | None, Field(max_length=200, description="Policy: its name or id."), Cli(option="--policy")]


class ListCheckpoints(ListRequest):
    run_id: RunText = None
    policy_id: PolicyText = None
    environment: str | None = Field(None, max_length=200, description="Environment that the run trained on.")
    is_best: bool | None = Field(None, description="Whether it is the best checkpoint of its run.")
    has_weights: bool | None = Field(None, description="Whether its weights are stored, or were pruned.")
    tag: str | None = Field(None, max_length=MAX_TAG, description="A tag of the checkpoint.")
    project: ProjectText = None
    limit: int = Field(50, ge=1, le=500, description="Maximum number of checkpoints in this page.")


class CheckpointTreeRequest(Request):
    environment: str | None = Field(None, max_length=200, description="Only runs that train on this environment.")
    policy_id: PolicyText = None
    run_id: Annotated[
        str | None,
        Field(max_length=200, description="Only this run, the runs it started from and the runs that start from it."),
        Cli(option="--run"),
    ] = None
    project: ProjectText = None
    after: str | None = Field(None, max_length=500, description="The `next` of the page before.")
    limit: Annotated[
        int, Field(ge=1, le=500, description="Maximum number of runs."), Cli(option="--limit", aliases=("-n",))
    ] = 50


class DiskUsageRequest(Request):
    run_id: RunText = None


class KeepCheckpoint(Request):
    release: bool = Field(False, description="Remove the mark: the retention rule of the run decides again.")


class PruneRequest(Request):
    """Checkpoints by id, or everything that a retention rule does not keep, in one run or in all of them."""

    checkpoint_ids: list[uuid.UUID] = Field(
        default=[], max_length=10_000, description="Checkpoints to prune, even if the retention rule keeps them."
    )
    run_id: uuid.UUID | None = Field(None, description="Only checkpoints of this run. Default: of all runs.")
    keep_last: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Number of latest GRPO checkpoints to keep. Default: the rule of each run.",
    )
    keep_every: int | None = Field(
        None, ge=0, le=1_000_000, description="Also keep the GRPO checkpoint of every Nth step. 0: none."
    )
    dry_run: bool = Field(False, description="Only show what would be pruned.")

    @model_validator(mode="after")
    def _has_one_selection(self) -> "PruneRequest":
        if self.checkpoint_ids and (self.run_id or self.rule):
            raise ValueError("Select either checkpoints, or a run and a rule")
        return self

    @property
    def rule(self) -> KeepRule | None:
        """None: the rule of each run."""
        if self.keep_last is None and self.keep_every is None:
            return None
        return KeepRule(KeepRule().last if self.keep_last is None else self.keep_last, self.keep_every or 0)


class CheckpointResponse(Labels):
    """Saved weights of a policy at a training step."""

    id: uuid.UUID
    policy_id: uuid.UUID
    policy: str
    run_id: uuid.UUID | None
    stage: str
    step: int
    heldout_reward: float | None
    heldout: dict[str, object]
    heldout_interval: tuple[float, float] | None
    """95% confidence interval of the held-out reward."""
    is_best: bool
    adapter: dict[str, object] | None
    """Base model and settings of a LoRA adapter; null if all weights are stored."""
    size_bytes: int
    is_kept: bool
    """Whether a team member marked it to be kept."""
    kept_by: list[KeepReason]
    """Why its weights are kept; empty if the retention rule of its run may delete them."""
    pruned_at: datetime | None
    """When its weights were deleted. Its results stay."""
    created_at: datetime

    @property
    def home(self) -> str:
        """The page that lists it."""
        return f"/runs/{self.run_id}/checkpoints" if self.run_id else "/checkpoints"


class RunOrigin(Response):
    """The checkpoint that a run starts from."""

    run_id: uuid.UUID
    run: str
    stage: str
    step: int


class TreeCheckpoint(CheckpointResponse):
    """A checkpoint in the tree."""

    why_best: str
    """For the best checkpoint of a run: the comparison that made it the best."""
    branches: list["TreeRun"]
    """Runs that start from it."""


class TreeRun(Response):
    """A training run with its checkpoints."""

    run_id: uuid.UUID
    name: str
    status: RunStatus
    environment: str
    version: int
    policy: str
    origin: RunOrigin | None
    stored_bytes: int
    prunable_bytes: int
    """Size of the weights that its retention rule does not keep."""
    rule: str
    checkpoints: list[TreeCheckpoint]

    def family(self) -> Iterator["TreeRun"]:
        """This run and all runs below it."""
        yield self
        for checkpoint in self.checkpoints:
            for branch in checkpoint.branches:
                yield from branch.family()


class DiskUsage(Response):
    """Disk space used by weights in the artifact store."""

    checkpoints: int
    """Number of checkpoints with weights."""
    stored_bytes: int
    pruned: int
    """Number of pruned checkpoints."""
    freed_bytes: int
    """Space that pruning has freed so far."""
    free_bytes: int | None
    """Free disk space; null if the store has no limit."""
    total_bytes: int | None
    warning: str
    """What to do if little space is left; empty otherwise."""


class CheckpointTree(Response):
    trees: list[TreeRun]
    disk: DiskUsage
    next: str | None
    """Pass it as `after` for the next page; null on the last page."""


class PruneResult(Response):
    dry_run: bool
    freed_bytes: int
    pruned: list[CheckpointResponse]
    refused: list[CheckpointResponse]
    """Selected checkpoints that are in use; `kept_by` lists the reasons."""
    run_id: uuid.UUID | None = None

    @property
    def home(self) -> str:
        return f"/runs/{self.run_id}/checkpoints" if self.run_id else "/checkpoints"

    @property
    def summary(self) -> str:
        kept = f" Kept {len(self.refused):,} that are in use." if self.refused else ""
        return f"Pruned {len(self.pruned):,} checkpoints and freed {size(self.freed_bytes)}.{kept}"


class TransferRequest(Request):
    """A transfer report: the exported checkpoint compared with a reference on several environments."""

    environments: list[Annotated[str, Field(max_length=200)]] = Field(
        default=[],
        max_length=MAX_ENVIRONMENTS,
        description="Environments to play, such as tictactoe or tictactoe@3. Default: those of the training run, then "
        f"environments with canaries or honeypots, {DEFAULT_ENVIRONMENTS} at most.",
    )
    reference: str | None = Field(
        None,
        max_length=200,
        description="Checkpoint or policy to compare with, by id or name. Default: the earliest checkpoint of the run.",
    )
    detect: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Difference to detect with power 0.8: of the normalized score where floor and gold are known, else "
        "of the reward; and of the share of impossible tasks that pass.",
    )
    max_rollouts: int = Field(
        DEFAULT_ROLLOUTS, ge=8, le=200_000, description="Maximum number of rollouts over all environments, both sides."
    )
    max_minutes: int | None = Field(None, ge=1, le=10_080, description="Maximum minutes. Default: no limit.")


class ExportChoice(Request):
    """In which form a checkpoint is exported."""

    form: ExportForm | None = Field(
        None, description="Default: all weights, or an adapter merged into its original base model."
    )
    licence: License = Field("", description="License as model hubs spell it, such as apache-2.0.")
    gguf_type: Annotated[str, Field(pattern="^(f16|bf16|f32)$", description="Precision of a GGUF file.")] = "f16"
    is_stored: bool = Field(False, description="Also keep the unpacked files in the artifact store.")
    transfer: TransferRequest | None = Field(
        None, description="Also compare it with a reference on several environments, before it is exported."
    )


class StartExport(ExportChoice):
    checkpoint_id: uuid.UUID = Field(description="Checkpoint to export.")


class ListExports(ListRequest):
    run_id: RunText = None
    checkpoint_id: uuid.UUID | None = Field(None, description="Only exports of this checkpoint.")
    project: ProjectText = None
    limit: int = Field(50, ge=1, le=500, description="Maximum number of exports in this page.")


class ExportResponse(Progress):
    """An export. It is complete when the reloaded files were verified against the checkpoint."""

    id: uuid.UUID
    checkpoint_id: uuid.UUID
    run_id: uuid.UUID
    form: ExportForm
    status: ExportStatus
    reason: str | None
    """Why it failed or was refused."""
    progress: dict[str, object]
    passport: dict[str, object]
    """Results of the verification."""
    transfer: TransferReport | None
    """Comparison with a reference on several environments, if it was requested."""
    card: str
    """Model card in Markdown."""
    licence: str
    stored: str | None
    """Key of the unpacked files in the artifact store, if they are kept."""
    upload: HubUpload | None
    """The latest upload to the Hugging Face Hub."""
    created_at: datetime
    ended_at: datetime | None


class ExportFormResponse(Response):
    """A form of export for a checkpoint."""

    table_columns = ("form", "refusal", "help")

    form: ExportForm
    title: str
    help: str
    refusal: str | None
    """Why it is not available; null if it is."""
    is_default: bool


class UploadTarget(Request):
    repository: Annotated[str, Field(pattern=REPOSITORY, description="Repository on the Hub: owner/name.")]
    is_private: bool = Field(False, description="Make a new repository private.")


class UploadExport(UploadTarget):
    token: SecretStr | None = Field(
        None,
        max_length=500,
        description="Hub token with write access. It is encrypted, used once and deleted. Default: the worker's token.",
    )
    dry_run: bool = Field(False, description="Only show what would be uploaded.")


class UploadPlan(Response):
    """Contents of an upload."""

    repository: str
    is_private: bool
    message: str
    """Commit message."""
    files: dict[str, int]
    """Size in bytes by file name."""
    bytes: int
    upload: HubUpload | None = None
    """The upload that was queued; null for a dry run."""
