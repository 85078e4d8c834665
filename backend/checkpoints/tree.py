"""Checkpoints as a tree over runs: each run hangs on the checkpoint that it starts from."""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import CompoundSelect, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.pruning import Weighed, rule_of, weigh
from backend.checkpoints.tables import Checkpoint
from backend.domain.checkpoints.retention import KeepRule
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.web.paging import Key, Slice, slice_of

NEWEST_RUNS = (Key(Run.created_at), Key(Run.id))
RUNS = 50
"""Of a page."""


@dataclass(frozen=True, slots=True)
class TreeFilter:
    """Which runs' checkpoints."""

    environment: str | None = None
    policy_id: uuid.UUID | None = None
    run_id: uuid.UUID | None = None
    """Only this run and what it is related to."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run starts."""

    run_id: uuid.UUID
    run: str
    stage: str
    step: int


@dataclass(slots=True)
class Leaf:
    """A checkpoint in the tree, with the runs that start from it."""

    checkpoint: Checkpoint
    weighed: Weighed
    why_best: str = ""
    branches: list["Branch"] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """A run with its checkpoints in the order of training."""

    run: Run
    rule: KeepRule
    origin: Origin | None = None
    leaves: list[Leaf] = field(default_factory=list)

    @property
    def stored_bytes(self) -> int:
        return sum(leaf.checkpoint.size_bytes for leaf in self.leaves if leaf.checkpoint.pruned_at is None)

    @property
    def prunable_bytes(self) -> int:
        """What its rule would free."""
        return sum(leaf.checkpoint.size_bytes for leaf in self.leaves if _is_prunable(leaf))

    def family(self) -> Iterator["Branch"]:
        """Itself and all that branched off."""
        yield self
        for leaf in self.leaves:
            for branch in leaf.branches:
                yield from branch.family()


def _is_prunable(leaf: Leaf) -> bool:
    return leaf.checkpoint.pruned_at is None and not leaf.weighed.reasons


def forest(
    session: Session, wanted: TreeFilter, *, after: str | None = None, limit: int = RUNS
) -> tuple[list[Branch], str | None]:
    """Trees whose newest run comes first, and the cursor of the runs that follow."""
    found = _runs(session, wanted, after, limit)
    branches = _branches(session, found.items)
    parents = _origins(session, found.items)
    roots: list[Branch] = []
    for run_id, branch in branches.items():
        branch.origin = parents.get(run_id)
        place = _place(branches, branch.origin)
        (roots if place is None else place.branches).append(branch)
    return roots, found.next


def _runs(session: Session, wanted: TreeFilter, after: str | None, limit: int) -> Slice[Run]:
    has_checkpoints = select(Checkpoint.id).where(Checkpoint.run_id == Run.id).exists()
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .join(Run.policy)
        .options(contains_eager(Run.version).contains_eager(EnvironmentVersion.environment), contains_eager(Run.policy))
        .where(Run.kind == RunKind.TRAINING, Policy.deleted_at.is_(None), has_checkpoints)
    )
    if wanted.environment:
        statement = statement.where(Environment.name == wanted.environment)
    if wanted.policy_id:
        statement = statement.where(Run.policy_id == wanted.policy_id)
    if wanted.run_id:
        statement = statement.where(Run.id.in_(_related(session, wanted.run_id)))
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


def _branches(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, Branch]:
    statement = select(Checkpoint).where(Checkpoint.run_id.in_([run.id for run in runs])).order_by(Checkpoint.id)
    checkpoints = session.scalars(statement.options(joinedload(Checkpoint.policy))).all()
    weighed = weigh(session, checkpoints)
    of_run: dict[uuid.UUID, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        if checkpoint.run_id:
            of_run[checkpoint.run_id].append(checkpoint)
    return {run.id: Branch(run, rule_of(run), leaves=_leaves(of_run[run.id], weighed)) for run in runs}


def _leaves(checkpoints: Sequence[Checkpoint], weighed: Mapping[uuid.UUID, Weighed]) -> list[Leaf]:
    return [Leaf(each, weighed[each.id], why_best(each, checkpoints) if each.is_best else "") for each in checkpoints]


def why_best(best: Checkpoint, of_run: Sequence[Checkpoint]) -> str:
    """`highest held-out reward 0.683 [0.642, 0.724], 0.021 above step 160`"""
    if best.heldout_reward is None:
        return ""
    if judged := best.heldout.get("judged"):
        return _why_best_as_judged(best, judged, of_run)
    words = f"highest held-out reward {best.heldout_reward:.3f}"
    if interval := interval_of(best):
        words += f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    others = [(each.heldout_reward, each) for each in of_run if each is not best and each.heldout_reward is not None]
    if not others:
        return f"{words}, the only one examined"
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


def interval_of(checkpoint: Checkpoint) -> tuple[float, float] | None:
    """The 95 % interval of its held-out reward."""
    found = checkpoint.heldout.get("reward")
    return (found["low"], found["high"]) if isinstance(found, dict) and "low" in found else None


def name_of(checkpoint: Checkpoint) -> str:
    return f"step {checkpoint.step}" if checkpoint.stage == Stage.GRPO else f"{checkpoint.stage} {checkpoint.step}"


def _origins(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, Origin]:
    """Of runs that branched off another one or were started from a checkpoint of it."""
    sources = {run.source_run_id for run in runs if run.source_run_id and run.branch_step is not None}
    chosen = [run.checkpoint_id for run in runs if run.checkpoint_id]
    starts = {each.id: each for each in session.scalars(select(Checkpoint).where(Checkpoint.id.in_(chosen)))}
    wanted = sources | {each.run_id for each in starts.values() if each.run_id}
    names = {run.id: run.name for run in session.execute(select(Run.id, Run.name).where(Run.id.in_(wanted)))}
    origins = {}
    for run in runs:
        start = starts.get(run.checkpoint_id) if run.checkpoint_id else None
        if run.source_run_id in names and run.branch_step is not None and run.source_run_id:
            origins[run.id] = Origin(run.source_run_id, names[run.source_run_id], Stage.GRPO, run.branch_step)
        elif start is not None and start.run_id in names and start.run_id:
            origins[run.id] = Origin(start.run_id, names[start.run_id], start.stage, start.step)
    return origins


def _place(branches: Mapping[uuid.UUID, Branch], origin: Origin | None) -> Leaf | None:
    """The checkpoint on this page that a run hangs on; the last one before, where its step has none of its own."""
    source = branches.get(origin.run_id) if origin else None
    if source is None or origin is None:
        return None
    place = None
    for leaf in source.leaves:
        checkpoint = leaf.checkpoint
        if checkpoint.stage == origin.stage and checkpoint.step > origin.step:
            break
        place = leaf
        if (checkpoint.stage, checkpoint.step) == (origin.stage, origin.step):
            break
    return place
