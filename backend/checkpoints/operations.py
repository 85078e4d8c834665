"""Checkpoints for scripts: the list and the tree, what they take, marking them to be kept, pruning."""

import uuid
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import Session

from backend.checkpoints import queries
from backend.checkpoints.disk import disk_use
from backend.checkpoints.pruning import Weighed, mark_kept, prune, weigh
from backend.checkpoints.pruning_schemas import PruneRequest
from backend.checkpoints.tables import Checkpoint
from backend.checkpoints.tree import Branch, Leaf, TreeFilter, forest, interval_of
from backend.domain.checkpoints.retention import KeepReason
from backend.domain.vocabulary import RunStatus
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.paging import After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["training"])


class CheckpointOut(BaseModel):
    """Saved weights of a policy at a training step."""

    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    policy_id: uuid.UUID
    policy: str
    run_id: uuid.UUID | None
    stage: str
    step: int
    heldout_reward: float | None
    heldout: dict[str, Any]
    heldout_interval: tuple[float, float] | None
    """95 %"""
    is_best: bool
    adapter: dict[str, Any] | None
    """Where the weights are a LoRA, on which base."""
    size_bytes: int
    is_kept: bool
    """A person marked it."""
    kept_by: list[KeepReason]
    """Why it keeps its weights; empty: its run's rule lets it go."""
    pruned_at: datetime | None
    """Its weights are gone since; its figures stay."""
    created_at: datetime


class OriginOut(BaseModel):
    """The checkpoint that a run starts from."""

    model_config = ConfigDict(from_attributes=True)

    run_id: uuid.UUID
    run: str
    stage: str
    step: int


class LeafOut(CheckpointOut):
    """A checkpoint in the tree."""

    why_best: str
    """Of the best one of its run."""
    branches: list["BranchOut"]
    """Runs that start from it."""


class BranchOut(BaseModel):
    """A training run with its checkpoints."""

    run_id: uuid.UUID
    name: str
    status: RunStatus
    environment: str
    version: int
    policy: str
    origin: OriginOut | None
    stored_bytes: int
    prunable_bytes: int
    """What its rule would free."""
    rule: str
    checkpoints: list[LeafOut]


class DiskOut(BaseModel):
    """What the weights take."""

    model_config = ConfigDict(from_attributes=True)

    checkpoints: int
    stored_bytes: int
    pruned: int
    freed_bytes: int
    free_bytes: int | None
    total_bytes: int | None
    warning: str


class PruneOut(BaseModel):
    """What was pruned, or would be."""

    dry_run: bool
    freed_bytes: int
    pruned: list[CheckpointOut]
    refused: list[CheckpointOut]
    """Asked for, but `kept_by` says what holds them."""


@router.get("/checkpoints")
def list_checkpoints(
    session: SessionDep,
    _: Viewer,
    run_id: uuid.UUID | None = None,
    policy_id: uuid.UUID | None = None,
    environment: str | None = None,
    is_best: bool | None = None,
    has_weights: bool | None = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[CheckpointOut]:
    """Newest first."""
    wanted = queries.CheckpointFilter(run_id, policy_id, environment, is_best, has_weights)
    found = queries.checkpoints(session, wanted, after=after, limit=limit)
    weighed = weigh(session, queries.beside(session, found.items))
    return Page(items=[_checkpoint_out(weighed[each.id]) for each in found.items], next=found.next)


@router.get("/checkpoints/tree")
def checkpoint_tree(
    session: SessionDep,
    _: Viewer,
    environment: str | None = None,
    policy_id: uuid.UUID | None = None,
    run_id: uuid.UUID | None = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[BranchOut]:
    """Runs as a tree: each hangs on the checkpoint that it starts from. Newest run first; `limit` counts runs."""
    trees, after_next = forest(session, TreeFilter(environment, policy_id, run_id), after=after, limit=limit)
    return Page(items=[_branch_out(tree) for tree in trees], next=after_next)


@router.get("/checkpoints/disk")
def checkpoint_disk(session: SessionDep, _: Viewer, run_id: uuid.UUID | None = None) -> DiskOut:
    """What weights take, in all or of one run, and what is left."""
    return DiskOut.model_validate(disk_use(session, [run_id] if run_id else None))


@router.post("/checkpoints/prune")
def prune_checkpoints(request: PruneRequest, session: SessionDep, actor: Trainer) -> PruneOut:
    """Delete weights; rows and figures stay. With `dry_run` nothing is deleted."""
    plan = request.plan(session)
    done = plan if request.dry_run else prune(session, actor, plan)
    return PruneOut(
        dry_run=request.dry_run,
        freed_bytes=done.freed_bytes,
        pruned=[_checkpoint_out(each) for each in done.going],
        refused=[_checkpoint_out(each) for each in done.refused],
    )


@router.get("/checkpoints/{checkpoint_id}")
def get_checkpoint(checkpoint_id: uuid.UUID, session: SessionDep, _: Viewer) -> CheckpointOut:
    return _one(session, checkpoint_id)


@router.post("/checkpoints/{checkpoint_id}/keep")
def keep_checkpoint(checkpoint_id: uuid.UUID, session: SessionDep, actor: Trainer) -> CheckpointOut:
    """No rule and nobody prunes it until it is released."""
    mark_kept(session, actor, queries.get_checkpoint(session, checkpoint_id), is_kept=True)
    return _one(session, checkpoint_id)


@router.post("/checkpoints/{checkpoint_id}/release")
def release_checkpoint(checkpoint_id: uuid.UUID, session: SessionDep, actor: Trainer) -> CheckpointOut:
    """Its run's rule decides again."""
    mark_kept(session, actor, queries.get_checkpoint(session, checkpoint_id), is_kept=False)
    return _one(session, checkpoint_id)


def _one(session: Session, checkpoint_id: uuid.UUID) -> CheckpointOut:
    checkpoint = queries.get_checkpoint(session, checkpoint_id)
    return _checkpoint_out(weigh(session, queries.beside(session, [checkpoint]))[checkpoint.id])


def _fields(weighed: Weighed) -> dict[str, Any]:
    checkpoint: Checkpoint = weighed.checkpoint
    computed = {
        "policy": checkpoint.policy.name,
        "kept_by": list(weighed.reasons),
        "heldout_interval": interval_of(checkpoint),
    }
    stored = {name: getattr(checkpoint, name) for name in CheckpointOut.model_fields if name not in computed}
    return stored | computed


def _checkpoint_out(weighed: Weighed) -> CheckpointOut:
    return CheckpointOut(**_fields(weighed))


def _leaf_out(leaf: Leaf) -> LeafOut:
    branches = [_branch_out(branch) for branch in leaf.branches]
    return LeafOut(**_fields(leaf.weighed), why_best=leaf.why_best, branches=branches)


def _branch_out(branch: Branch) -> BranchOut:
    run = branch.run
    return BranchOut(
        run_id=run.id,
        name=run.name,
        status=run.status,
        environment=run.version.environment.name,
        version=run.version.number,
        policy=run.policy.name if run.policy else "",
        origin=OriginOut.model_validate(branch.origin) if branch.origin else None,
        stored_bytes=branch.stored_bytes,
        prunable_bytes=branch.prunable_bytes,
        rule=branch.rule.words,
        checkpoints=[_leaf_out(leaf) for leaf in branch.leaves],
    )
