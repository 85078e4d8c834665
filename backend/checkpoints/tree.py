"""Checkpoints as a tree over runs: a run is listed below the checkpoint that it starts from."""

import uuid
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.pruning import CheckpointRetention, retention_of, rule_of
from backend.checkpoints.schemas import CheckpointResponse, RunOrigin, TreeCheckpoint, TreeRun
from backend.checkpoints.tables import Checkpoint
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.studies.tables import checkpoint_name
from backend.web.paging import Key, slice_of


def checkpoint_tree(
    session: Session,
    *,
    environment: str | None = None,
    policy_id: uuid.UUID | None = None,
    run_id: uuid.UUID | None = None,
    project_id: uuid.UUID | None = None,
    tag: str = "",
    after: str | None = None,
    limit: int = 50,
) -> tuple[list[TreeRun], str | None]:
    """Trees with the newest run first, and the cursor of the next page. `limit`: maximum number of runs.

    Runs with a pinned checkpoint come before all others.
    `run_id`: only this run, the runs it started from and the runs that start from it.
    """
    statement = (
        select(Run)
        .join(Run.version)
        .join(EnvironmentVersion.environment)
        .join(Run.policy)
        .options(contains_eager(Run.version).contains_eager(EnvironmentVersion.environment), contains_eager(Run.policy))
        .where(Run.kind == RunKind.TRAINING, Policy.deleted_at.is_(None))
        .where(select(Checkpoint.id).where(Checkpoint.run_id == Run.id).exists())
    )
    if environment:
        statement = statement.where(Environment.name == environment)
    if policy_id:
        statement = statement.where(Run.policy_id == policy_id)
    if project_id:
        statement = statement.where(Run.project_id == project_id)
    if run_id:
        statement = statement.where(Run.id.in_(_related(session, run_id)))
    if tag:
        statement = statement.where(_has_checkpoint(Checkpoint.tags.contains([tag])))
    keys = Key(_has_checkpoint(Checkpoint.is_pinned.is_(True))), Key(Run.created_at), Key(Run.id)
    found = slice_of(session, statement, keys, after=after, limit=limit)
    runs = _tree_runs(session, found.items)
    roots: list[TreeRun] = []
    for run in runs.values():
        source = runs.get(run.origin.run_id) if run.origin else None
        parent = None
        if source is not None and run.origin is not None:
            for checkpoint in source.checkpoints:  # the latest one before, if that step has no checkpoint
                if checkpoint.stage == run.origin.stage and checkpoint.step > run.origin.step:
                    break
                parent = checkpoint
                if (checkpoint.stage, checkpoint.step) == (run.origin.stage, run.origin.step):
                    break
        (roots if parent is None else parent.branches).append(run)
    return roots, found.next


def _has_checkpoint(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(Checkpoint.id).where(Checkpoint.run_id == Run.id, condition).exists()


def _related(session: Session, run_id: uuid.UUID) -> set[uuid.UUID]:
    """The run, its ancestors, and the descendants of all of them."""
    known: set[uuid.UUID] = set()
    fresh = {run_id}
    training = Run.kind == RunKind.TRAINING
    started = Checkpoint, Run.checkpoint_id == Checkpoint.id
    while fresh:
        known |= fresh
        neighbors = (
            select(Run.source_run_id)
            .where(Run.id.in_(known), training)
            .union(
                select(Run.id).where(Run.source_run_id.in_(known), training),
                select(Checkpoint.run_id).select_from(Run).join(*started).where(Run.id.in_(known), training),
                select(Run.id).join(*started).where(Checkpoint.run_id.in_(known), training),
            )
        )
        fresh = {found for found in session.scalars(neighbors) if found} - known
    return known


def _tree_runs(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, TreeRun]:
    """Each run with its checkpoints in the order of training, still without branches."""
    # where each run starts, if it branched off another run or starts from a checkpoint of one
    chosen = [run.checkpoint_id for run in runs if run.checkpoint_id]
    starts = {each.id: each for each in session.scalars(select(Checkpoint).where(Checkpoint.id.in_(chosen)))}
    places: dict[uuid.UUID, tuple[uuid.UUID | None, str, int]] = {}
    for run in runs:
        if run.source_run_id and run.branch_step is not None:
            places[run.id] = run.source_run_id, Stage.GRPO, run.branch_step
        elif start := starts.get(run.checkpoint_id) if run.checkpoint_id else None:
            places[run.id] = start.run_id, start.stage, start.step
    sources = {source for source, *_ in places.values() if source}
    named = session.execute(select(Run.id, Run.name).where(Run.id.in_(sources)))
    names = {run.id: run.name for run in named}
    origins = {
        run_id: RunOrigin(run_id=source, run=names[source], stage=stage, step=step)
        for run_id, (source, stage, step) in places.items()
        if source is not None and source in names
    }
    statement = select(Checkpoint).where(Checkpoint.run_id.in_([run.id for run in runs])).order_by(Checkpoint.id)
    checkpoints = session.scalars(statement.options(joinedload(Checkpoint.policy))).all()
    retention = retention_of(session, checkpoints)
    of_run: dict[uuid.UUID | None, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        of_run[checkpoint.run_id].append(checkpoint)
    nodes = {}
    for run in runs:
        saved = of_run[run.id]
        stored = [each for each in saved if each.pruned_at is None]
        nodes[run.id] = TreeRun(
            run_id=run.id,
            name=run.name,
            status=run.status,
            environment=run.version.environment.name,
            version=run.version.number,
            policy=run.policy.name if run.policy else "",
            origin=origins.get(run.id),
            stored_bytes=sum(each.size_bytes for each in stored),
            prunable_bytes=sum(each.size_bytes for each in stored if not retention[each.id].reasons),
            rule=rule_of(run).words,
            checkpoints=[
                TreeCheckpoint(
                    **dict(checkpoint_response(retention[each.id])),
                    why_best=why_best(each, saved) if each.is_best else "",
                    branches=[],
                )
                for each in saved
            ],
        )
    return nodes


def checkpoint_response(retention: CheckpointRetention) -> CheckpointResponse:
    return CheckpointResponse.from_row(
        retention.checkpoint,
        policy=retention.checkpoint.policy.name,
        kept_by=list(retention.reasons),
        heldout_interval=heldout_interval(retention.checkpoint),
    )


def why_best(best: Checkpoint, of_run: Sequence[Checkpoint]) -> str:
    """`highest held-out reward 0.683 [0.642, 0.724], 0.021 above step 160`, or after verdicts
    `highest held-out reward as judged 0.412 [0.371, 0.450]; as trained it has 0.683, step 160 has 0.902`"""
    if best.heldout_reward is None:
        return ""
    others = [(each.heldout_reward, each) for each in of_run if each is not best and each.heldout_reward is not None]
    reward, second = max(others, key=lambda pair: pair[0], default=(None, best))
    name = checkpoint_name(second.stage, second.step)
    if judged := best.heldout.get("judged"):
        words = f"highest held-out reward as judged {judged['mean']:.3f}"
        if judged["low"] is not None:
            words += f" [{judged['low']:.3f}, {judged['high']:.3f}]"
        words += f"; as trained it has {best.heldout_reward:.3f}"
        is_highest = reward is None or reward <= best.heldout_reward
        return words if is_highest else f"{words}, {name} has {reward:.3f}"
    words = f"highest held-out reward {best.heldout_reward:.3f}"
    if interval := heldout_interval(best):
        words += f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    if reward is None:
        return f"{words}, the only one evaluated"
    ahead = best.heldout_reward - reward
    return f"{words}, as high as {name}" if ahead < 5e-4 else f"{words}, {ahead:.3f} above {name}"


def heldout_interval(checkpoint: Checkpoint) -> tuple[float, float] | None:
    """The 95% confidence interval of the held-out reward, or None."""
    estimate = checkpoint.heldout.get("reward")
    return (estimate["low"], estimate["high"]) if isinstance(estimate, dict) and "low" in estimate else None
