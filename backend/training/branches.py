"""Rolling back: a new run goes on from a checkpoint of another one. Free of the web, because runs do it themselves."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import RUNS, announce, run_topic
from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.ids import new_id
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.training.steering import LEARNING_RATE, MEMORY, setting_of, with_settings
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.runs.notes import Asker, note
from backend.runs.tables import Run
from backend.studies.queries import BRANCH, start_of
from backend.training.steering import changes_until, current_settings, may_steer, resolved_changes
from backend.training.tables import SettingChange

JOB = "training.run"
MOST_IN_A_ROW = 3
"""Branches that alarms may start one after the other; then a run pauses for a person to look."""


class CannotBranch(Conflict):
    """No run can go on from this checkpoint."""


@dataclass(frozen=True, slots=True)
class Onto:
    """Another version of the run's environment that a branch goes on with, such as one whose reward was repaired."""

    version: EnvironmentVersion
    columns: Mapping[str, float]
    """Weights of the branch's reward columns, those of its mix included."""
    without_certificate: str | None = None
    """Why it is trained on although its checks did not pass."""

    def configuration(self) -> dict[str, Any]:
        return {"content_hash": self.version.content_hash, "without_certificate": self.without_certificate}


def start_branch(
    session: Session,
    actor: Asker | None,
    run: Run,
    checkpoint: Checkpoint,
    changes: Mapping[str, Any] | None = None,
    *,
    onto: Onto | None = None,
) -> Run:
    """Queue a run that goes on from the checkpoint with the steps that remain. Without an actor an alarm does it."""
    if actor is not None:
        may_steer(actor, run)
    step = _branch_step(run, checkpoint)
    asked_by = actor.person_id if actor else None
    branch = _branch(session, run, checkpoint, step, asked_by)
    if onto is not None:
        _move(session, branch, onto)
    kept = changes_until(session, run.id, step)
    now = with_settings(TrainingConfiguration.of_run(run.configuration), [(old.name, old.after) for old in kept])
    new = [
        SettingChange(name=name, before=before, after=after, step=step + 1, asked_by=asked_by)
        for name, before, after in resolved_changes(now, {**_memory(session, run), **(changes or {})})
    ]
    for row in [*(_copy(old) for old in kept), *new]:
        row.run_id = branch.id
        session.add(row)
        session.flush()
    enqueue(session, JOB, queue=_queue_of(session, run), run_id=branch.id)
    version = onto.version.number if onto else None
    note(session, actor, "run.branch", "run", run.id, name=run.name, branch=str(branch.id), step=step, version=version)
    announce(session, RUNS, run_topic(run.id))
    return branch


def checkpoint_for(session: Session, run: Run, checkpoint_id: uuid.UUID | None, step: int | None) -> Checkpoint:
    """A checkpoint of the run, by its id or by the GRPO step after which it was saved."""
    if (checkpoint_id is None) == (step is None):
        raise InvalidInput(fields={"checkpoint_id": "Give either the checkpoint or its step."})
    if checkpoint_id is not None:
        found = session.get(Checkpoint, checkpoint_id)
    elif step == 0:
        found = start_of(session, run)
    else:
        of_run = (Checkpoint.run_id == run.id, Checkpoint.stage == Stage.GRPO, Checkpoint.step == step)
        found = session.scalars(select(Checkpoint).where(*of_run)).first()
    if found is None:
        raise InvalidInput(
            fields={"step" if checkpoint_id is None else "checkpoint_id": "There is no such checkpoint."}
        )
    return found


def branch_points(session: Session, run: Run) -> list[Checkpoint]:
    """Every checkpoint of the run that a branch may begin at, in the order of training."""
    steps = TrainingConfiguration.of_run(run.configuration).grpo.steps
    of_run = (Checkpoint.run_id == run.id, Checkpoint.stage == Stage.GRPO, Checkpoint.step < steps)
    saved = session.scalars(select(Checkpoint).where(*of_run).order_by(Checkpoint.step))
    start = start_of(session, run)
    return [*([start] if start else []), *(row for row in saved if row.pruned_at is None)]


def newest_before(session: Session, run: Run, step: int) -> Checkpoint | None:
    """The newest checkpoint of an earlier step that has its weights; the weights before GRPO where there is none."""
    statement = select(Checkpoint).where(
        Checkpoint.run_id == run.id,
        Checkpoint.stage == Stage.GRPO,
        Checkpoint.step < step,
        Checkpoint.pruned_at.is_(None),
    )
    found = session.scalars(statement.order_by(Checkpoint.step.desc()).limit(1)).first()
    return found or start_of(session, run)


def rate_after(session: Session, run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """The lower rate with which a branch after an alarm begins."""
    step = checkpoint.step if checkpoint.stage == Stage.GRPO else 0
    kept = changes_until(session, run.id, step)
    then = with_settings(TrainingConfiguration.of_run(run.configuration), [(old.name, old.after) for old in kept])
    return {LEARNING_RATE: then.grpo.learning_rate * then.alarms.rate_factor}


def depth_of(session: Session, run: Run) -> int:
    """How many runs it branched off, one after the other, each by an alarm."""
    depth, at = 0, run
    while at.branch_step is not None and at.source_run_id is not None and at.created_by is None:
        source = session.get(Run, at.source_run_id)
        if source is None:
            break
        depth, at = depth + 1, source
    return depth


def _memory(session: Session, run: Run) -> dict[str, Any]:
    """How the source saves memory by now, at whichever step it began to: the branch needs as much."""
    now = current_settings(session, run)
    return {name: setting_of(now, name) for name in sorted(MEMORY)}


def _branch_step(run: Run, checkpoint: Checkpoint) -> int:
    """The GRPO step after which the branch goes on; 0 before the first."""
    choices = TrainingConfiguration.of_run(run.configuration)
    if checkpoint.run_id != run.id and str(checkpoint.id) != run.configuration.get(BRANCH, {}).get("start_id"):
        raise CannotBranch("This checkpoint belongs to another run.")
    if checkpoint.pruned_at is not None:
        raise CannotBranch("The weights of this checkpoint were deleted to save space; choose one that is kept.")
    if not choices.recipe.has_grpo:
        raise CannotBranch("This run had no GRPO to go on with. Start a new run from its checkpoint instead.")
    step = checkpoint.step if checkpoint.stage == Stage.GRPO else 0
    if step >= choices.grpo.steps:
        raise CannotBranch(
            "This is the run's last step: nothing remains. Start a new run from this checkpoint instead."
        )
    return step


def _branch(session: Session, run: Run, checkpoint: Checkpoint, step: int, asked_by: uuid.UUID | None) -> Run:
    branch_id = new_id()
    start = start_of(session, run) or checkpoint
    branch = Run(
        id=branch_id,
        kind=RunKind.TRAINING,
        status=RunStatus.QUEUED,
        name=f"{run.name.partition(', from step ')[0]}, from step {step}"[:200],
        version_id=run.version_id,
        policy_id=_policy(session, run, checkpoint, branch_id, asked_by).id,
        checkpoint_id=checkpoint.id,
        configuration={**run.configuration, BRANCH: {"checkpoint_id": str(checkpoint.id), "start_id": str(start.id)}},
        columns=list(run.columns),
        weights=list(run.weights),
        seed=run.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": run.progress.get("total")},
        source_run_id=run.id,
        branch_step=step,
        created_by=asked_by,
    )
    session.add(branch)
    session.flush()
    return branch


def _move(session: Session, branch: Run, onto: Onto) -> None:
    """Another version from the branch's first step on; everything else is the source's."""
    branch.version_id = onto.version.id
    branch.name = f"{branch.name} on v{onto.version.number}"[:200]
    branch.columns, branch.weights = list(onto.columns), list(onto.columns.values())
    branch.configuration = {**branch.configuration, **onto.configuration()}
    policy = session.get_one(Policy, branch.policy_id)
    policy.description = f"{policy.description} From there on: version {onto.version.number}."
    session.flush()


def _policy(
    session: Session, run: Run, checkpoint: Checkpoint, branch_id: uuid.UUID, asked_by: uuid.UUID | None
) -> Policy:
    """A policy of its own, so that both branches can be told apart wherever policies are named."""
    source = session.get_one(Policy, run.policy_id)
    version = session.get_one(EnvironmentVersion, run.version_id)
    policy = Policy(
        name=f"{source.name.partition('/')[0][:60]}/{branch_id.hex[-6:]}",
        kind=PolicyKind.LOCAL,
        description=f"Goes on from {source.name} at {checkpoint.stage} step {checkpoint.step},"
        f" environment version {version.number}.",
        configuration=dict(source.configuration),
        created_by=asked_by,
    )
    session.add(policy)
    session.flush()
    return policy


def _copy(change: SettingChange) -> SettingChange:
    return SettingChange(
        name=change.name, before=change.before, after=change.after, step=change.step, asked_by=change.asked_by
    )


def _queue_of(session: Session, run: Run) -> Queue:
    statement = select(Job.queue).where(Job.run_id == run.id, Job.name == JOB).order_by(Job.id.desc()).limit(1)
    return session.scalars(statement).first() or Queue.GPU
