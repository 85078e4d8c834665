"""Branches: new runs that continue from a checkpoint of another run.

Free of the web, because runs branch themselves too.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import RUNS, announce, topic_of
from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.ids import new_id
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.training.steering import LEARNING_RATE, MEMORY, safe_settings, with_settings
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.studies.queries import BRANCH, start_of
from backend.training.steering import changes_until, current_settings, require_trainer, resolved_changes
from backend.training.tables import SettingChange
from backend.web.audit import Requester, audit

JOB = "training.run"
MOST_IN_A_ROW = 3
"""Number of branches that alarms may start one after the other. Then the run pauses for a team member."""


class CannotBranch(Conflict):
    """No run can continue from this checkpoint."""


@dataclass(frozen=True, slots=True)
class BranchVersion:
    """Another version of the run's environment for a branch, such as one with a repaired reward."""

    version: EnvironmentVersion
    columns: Mapping[str, float]
    """Weights of the reward columns, those of the mix included."""
    without_certificate: str | None = None
    """Why to train on it although it has not passed its checks."""


def start_branch(
    session: Session,
    actor: Requester | None,
    run: Run,
    checkpoint: Checkpoint,
    changes: Mapping[str, JsonValue] | None = None,
    *,
    onto: BranchVersion | None = None,
) -> Run:
    """Queue a run that continues from the checkpoint with the remaining steps. No actor: an alarm started it."""
    if actor is not None:
        require_trainer(actor, run)
    configuration = TrainingConfiguration.of_run(run.configuration)
    if checkpoint.run_id != run.id and str(checkpoint.id) != run.configuration.get(BRANCH, {}).get("start_id"):
        raise CannotBranch("This checkpoint belongs to another run.")
    if checkpoint.pruned_at is not None:
        raise CannotBranch("The weights of this checkpoint were deleted to save space. Choose another one.")
    if not configuration.recipe.has_grpo:
        raise CannotBranch("This run has no GRPO stage to continue. Start a new run from its checkpoint instead.")
    step = checkpoint.step if checkpoint.stage == Stage.GRPO else 0
    if step >= configuration.grpo.steps:
        raise CannotBranch("This is the last step of the run. Start a new run from this checkpoint instead.")
    asked_by = actor.person_id if actor else None
    branch = _create_branch(session, run, checkpoint, step, asked_by, onto)
    kept = changes_until(session, run.id, step)
    now = with_settings(configuration, [(old.name, old.after) for old in kept])
    source = current_settings(session, run)  # the branch needs as much memory as the source does by now
    own = safe_settings(source)
    changed = {name: own.get(name) for name in sorted(MEMORY)} | dict(changes or {})
    rows = [(old.name, old.before, old.after, old.step, old.asked_by) for old in kept]
    rows += [(*change, step + 1, asked_by) for change in resolved_changes(now, changed)]
    for name, before, after, at_step, person_id in rows:
        session.add(
            SettingChange(run_id=branch.id, name=name, before=before, after=after, step=at_step, asked_by=person_id)
        )
        session.flush()
    queue_of_source = select(Job.queue).where(Job.run_id == run.id, Job.name == JOB).order_by(Job.id.desc()).limit(1)
    enqueue(session, JOB, queue=session.scalars(queue_of_source).first() or Queue.GPU, run_id=branch.id)
    version = onto.version.number if onto else None
    audit(session, actor, "run.branch", "run", run.id, name=run.name, branch=str(branch.id), step=step, version=version)
    announce(session, RUNS, topic_of("run", run.id))
    return branch


def checkpoint_for(session: Session, run: Run, checkpoint_id: uuid.UUID | None, step: int | None) -> Checkpoint:
    """A checkpoint of the run by its id, or by the GRPO step after which it was saved."""
    if (checkpoint_id is None) == (step is None):
        raise InvalidInput(fields={"checkpoint_id": "Select either the checkpoint or its step."})
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
    """Checkpoints from which a branch can start, in the order of training."""
    steps = TrainingConfiguration.of_run(run.configuration).grpo.steps
    of_run = (Checkpoint.run_id == run.id, Checkpoint.stage == Stage.GRPO, Checkpoint.step < steps)
    saved = session.scalars(select(Checkpoint).where(*of_run).order_by(Checkpoint.step))
    start = start_of(session, run)
    return [*([start] if start else []), *(row for row in saved if row.pruned_at is None)]


def newest_before(session: Session, run: Run, step: int) -> Checkpoint | None:
    """The latest checkpoint before a step that has its weights, else the weights before GRPO."""
    statement = select(Checkpoint).where(
        Checkpoint.run_id == run.id,
        Checkpoint.stage == Stage.GRPO,
        Checkpoint.step < step,
        Checkpoint.pruned_at.is_(None),
    )
    found = session.scalars(statement.order_by(Checkpoint.step.desc()).limit(1)).first()
    return found or start_of(session, run)


def rate_after(session: Session, run: Run, checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """The lower learning rate of a branch that an alarm starts."""
    kept = changes_until(session, run.id, checkpoint.step if checkpoint.stage == Stage.GRPO else 0)
    then = with_settings(TrainingConfiguration.of_run(run.configuration), [(old.name, old.after) for old in kept])
    return {LEARNING_RATE: then.grpo.learning_rate * then.alarms.rate_factor}


def depth_of(session: Session, run: Run) -> int:
    """Number of branches in a row, up to this run, that alarms started."""
    depth, at = 0, run
    while at.branch_step is not None and at.source_run_id is not None and at.created_by is None:
        source = session.get(Run, at.source_run_id)
        if source is None:
            break
        depth, at = depth + 1, source
    return depth


def _create_branch(
    session: Session,
    run: Run,
    checkpoint: Checkpoint,
    step: int,
    asked_by: uuid.UUID | None,
    onto: BranchVersion | None,
) -> Run:
    """The branch with its own policy, so that both are distinct wherever policies are listed."""
    branch_id, start = new_id(), start_of(session, run) or checkpoint
    source, version = session.get_one(Policy, run.policy_id), session.get_one(EnvironmentVersion, run.version_id)
    name = f"{run.name.partition(', from step ')[0]}, from step {step}"[:200]
    description = (
        f"Continues from {source.name} at {checkpoint.stage} step {checkpoint.step},"
        f" environment version {version.number}."
    )
    configuration = {**run.configuration, BRANCH: {"checkpoint_id": str(checkpoint.id), "start_id": str(start.id)}}
    columns, weights = list(run.columns), list(run.weights)
    if onto is not None:
        name = f"{name} on v{onto.version.number}"[:200]
        description += f" From there on: version {onto.version.number}."
        configuration["content_hash"] = onto.version.content_hash
        configuration["without_certificate"] = onto.without_certificate
        version, columns, weights = onto.version, list(onto.columns), list(onto.columns.values())
    policy = Policy(
        name=f"{source.name.partition('/')[0][:60]}/{branch_id.hex[-6:]}",
        kind=PolicyKind.LOCAL,
        description=description,
        configuration=dict(source.configuration),
        project_id=run.project_id,
        created_by=asked_by,
    )
    session.add(policy)
    session.flush()
    branch = Run(
        id=branch_id,
        kind=RunKind.TRAINING,
        status=RunStatus.QUEUED,
        name=name,
        version_id=version.id,
        policy_id=policy.id,
        checkpoint_id=checkpoint.id,
        configuration=configuration,
        columns=columns,
        weights=weights,
        seed=run.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": run.progress.get("total")},
        source_run_id=run.id,
        branch_step=step,
        created_by=asked_by,
    )
    session.add(branch)
    session.flush()
    return branch
