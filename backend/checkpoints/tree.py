"""Checkpoints as a tree over runs: a run is listed below the checkpoint that it starts from."""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import CompoundSelect, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.pruning import CheckpointRetention, retention_of, rule_of
from backend.checkpoints.tables import Checkpoint
from backend.domain.checkpoints.retention import KeepRule
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.web.paging import Key, Slice, slice_of

NEWEST_RUNS = (Key(Run.created_at), Key(Run.id))
RUNS_PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class TreeFilter:
    """Which runs to list."""

    environment: str | None = None
    policy_id: uuid.UUID | None = None
    run_id: uuid.UUID | None = None
    """Only this run, the runs it started from and the runs that start from it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run starts."""

    run_id: uuid.UUID
    run: str
    stage: str
    step: int


@dataclass(slots=True)
class CheckpointNode:
    """A checkpoint in the tree, with the runs that start from it."""

    checkpoint: Checkpoint
    retention: CheckpointRetention
    why_best: str = ""
    branches: list["RunNode"] = field(default_factory=list)


@dataclass(slots=True)
class RunNode:
    """A run with its checkpoints in the order of training."""

    run: Run
    rule: KeepRule
    origin: Origin | None = None
    checkpoints: list[CheckpointNode] = field(default_factory=list)

    @property
    def stored_bytes(self) -> int:
        return sum(each.checkpoint.size_bytes for each in self.checkpoints if each.checkpoint.pruned_at is None)

    @property
    def prunable_bytes(self) -> int:
        """Size of the weights that its retention rule does not keep."""
        stored = (each for each in self.checkpoints if each.checkpoint.pruned_at is None)
        return sum(each.checkpoint.size_bytes for each in stored if not each.retention.reasons)

    def family(self) -> Iterator["RunNode"]:
        """This run and all runs below it."""
        yield self
        for node in self.checkpoints:
            for branch in node.branches:
                yield from branch.family()


def checkpoint_tree(
    session: Session, chosen: TreeFilter, *, after: str | None = None, limit: int = RUNS_PER_PAGE
) -> tuple[list[RunNode], str | None]:
    """Trees with the newest run first, and the cursor of the next page."""
    found = _runs(session, chosen, after, limit)
    branches = _branches(session, found.items)
    parents = _origins(session, found.items)
    roots: list[RunNode] = []
    for run_id, branch in branches.items():
        branch.origin = parents.get(run_id)
        place = _place(branches, branch.origin)
        (roots if place is None else place.branches).append(branch)
    return roots, found.next


def _runs(session: Session, chosen: TreeFilter, after: str | None, limit: int) -> Slice[Run]:
    has_checkpoints = select(Checkpoint.id).where(Checkpoint.run_id == Run.id).exists()
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .join(Run.policy)
        .options(contains_eager(Run.version).contains_eager(EnvironmentVersion.environment), contains_eager(Run.policy))
        .where(Run.kind == RunKind.TRAINING, Policy.deleted_at.is_(None), has_checkpoints)
    )
    if chosen.environment:
        statement = statement.where(Environment.name == chosen.environment)
    if chosen.policy_id:
        statement = statement.where(Run.policy_id == chosen.policy_id)
    if chosen.run_id:
        statement = statement.where(Run.id.in_(_related(session, chosen.run_id)))
    return slice_of(session, statement, NEWEST_RUNS, after=after, limit=limit)


def _related(session: Session, run_id: uuid.UUID) -> set[uuid.UUID]:
    """The run, those that it comes from, and those that come from it or from them."""
    known: set[uuid.UUID] = set()
    fresh = {run_id}
    while fresh:
        known |= fresh
        fresh = {found for found in session.scalars(_neighbours(known)) if found} - known
    return known


def _neighbours(known: set[uuid.UUID]) -> CompoundSelect[uuid.UUID | None]:
    begun = select(Run.id).join(Checkpoint, Run.checkpoint_id == Checkpoint.id)
    training = Run.kind == RunKind.TRAINING
    return (
        select(Run.source_run_id)
        .where(Run.id.in_(known), training)
        .union(
            select(Run.id).where(Run.source_run_id.in_(known), training),
            select(Checkpoint.run_id).join(Run, Run.checkpoint_id == Checkpoint.id).where(Run.id.in_(known), training),
            begun.where(Checkpoint.run_id.in_(known), training),
        )
    )


def _branches(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, RunNode]:
    statement = select(Checkpoint).where(Checkpoint.run_id.in_([run.id for run in runs])).order_by(Checkpoint.id)
    checkpoints = session.scalars(statement.options(joinedload(Checkpoint.policy))).all()
    retention = retention_of(session, checkpoints)
    of_run: dict[uuid.UUID, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        if checkpoint.run_id:
            of_run[checkpoint.run_id].append(checkpoint)
    nodes = {}
    for run in runs:
        saved = of_run[run.id]
        found = [
            CheckpointNode(each, retention[each.id], why_best(each, saved) if each.is_best else "") for each in saved
        ]
        nodes[run.id] = RunNode(run, rule_of(run), checkpoints=found)
    return nodes


def why_best(best: Checkpoint, of_run: Sequence[Checkpoint]) -> str:
    """`highest held-out reward 0.683 [0.642, 0.724], 0.021 above step 160`"""
    if best.heldout_reward is None:
        return ""
    if judged := best.heldout.get("judged"):
        return _why_best_as_judged(best, judged, of_run)
    words = f"highest held-out reward {best.heldout_reward:.3f}"
    if interval := heldout_interval(best):
        words += f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    others = [(each.heldout_reward, each) for each in of_run if each is not best and each.heldout_reward is not None]
    if not others:
        return f"{words}, the only one evaluated"
    reward, second = max(others, key=lambda pair: pair[0])
    ahead = best.heldout_reward - reward
    return f"{words}, as high as {name_of(second)}" if ahead < 5e-4 else f"{words}, {ahead:.3f} above {name_of(second)}"


def _why_best_as_judged(best: Checkpoint, judged: dict[str, Any], of_run: Sequence[Checkpoint]) -> str:
    """`highest held-out reward as judged 0.412 [0.371, 0.450]; as trained it has 0.683, step 160 has 0.902`"""
    words = f"highest held-out reward as judged {judged['mean']:.3f}"
    if judged["low"] is not None:
        words += f" [{judged['low']:.3f}, {judged['high']:.3f}]"
    highest = max(of_run, key=lambda each: -1e9 if each.heldout_reward is None else each.heldout_reward)
    words += f"; as trained it has {best.heldout_reward:.3f}"
    return words if highest is best else f"{words}, {name_of(highest)} has {highest.heldout_reward:.3f}"


def heldout_interval(checkpoint: Checkpoint) -> tuple[float, float] | None:
    """The 95% confidence interval of the held-out reward, or None."""
    found = checkpoint.heldout.get("reward")
    return (found["low"], found["high"]) if isinstance(found, dict) and "low" in found else None


def name_of(checkpoint: Checkpoint) -> str:
    return f"step {checkpoint.step}" if checkpoint.stage == Stage.GRPO else f"{checkpoint.stage} {checkpoint.step}"


def _origins(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, Origin]:
    """Of runs that branched off another one or were started from a checkpoint of it."""
    sources = {run.source_run_id for run in runs if run.source_run_id and run.branch_step is not None}
    chosen = [run.checkpoint_id for run in runs if run.checkpoint_id]
    starts = {each.id: each for each in session.scalars(select(Checkpoint).where(Checkpoint.id.in_(chosen)))}
    run_ids = sources | {each.run_id for each in starts.values() if each.run_id}
    names = {run.id: run.name for run in session.execute(select(Run.id, Run.name).where(Run.id.in_(run_ids)))}
    origins = {}
    for run in runs:
        start = starts.get(run.checkpoint_id) if run.checkpoint_id else None
        if run.source_run_id in names and run.branch_step is not None and run.source_run_id:
            origins[run.id] = Origin(run.source_run_id, names[run.source_run_id], Stage.GRPO, run.branch_step)
        elif start is not None and start.run_id in names and start.run_id:
            origins[run.id] = Origin(start.run_id, names[start.run_id], start.stage, start.step)
    return origins


def _place(branches: Mapping[uuid.UUID, RunNode], origin: Origin | None) -> CheckpointNode | None:
    """The checkpoint on this page that a run hangs on; the last one before, where its step has none of its own."""
    source = branches.get(origin.run_id) if origin else None
    if source is None or origin is None:
        return None
    place = None
    for node in source.checkpoints:
        checkpoint = node.checkpoint
        if checkpoint.stage == origin.stage and checkpoint.step > origin.step:
            break
        place = node
        if (checkpoint.stage, checkpoint.step) == (origin.stage, origin.step):
            break
    return place
