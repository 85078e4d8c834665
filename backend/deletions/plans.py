"""Plan a deletion: everything that it takes along, what stays, and reasons to refuse it."""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Select, String, cast, func, or_, select
from sqlalchemy.orm import Session

from backend.checkpoints.pruning import retention_with_siblings
from backend.checkpoints.tables import Checkpoint, Export, TransferEvaluation
from backend.core.row_access import hidden_projects, unlimited
from backend.core.tables import Job
from backend.domain.checkpoints.retention import KeepReason
from backend.domain.deletions import DeletedKind, counted
from backend.domain.training.mix import MixPart
from backend.domain.vocabulary import UNDER_WAY, UNFINISHED, ExportStatus, PolicyKind, RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.graders.tables import Grade, Grader, GraderBudget, GraderRun
from backend.policies.tables import Policy
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint, checkpoint_name
from backend.sweeps.tables import Sweep
from backend.web.formats import size

_EXPORTING = (ExportStatus.QUEUED, ExportStatus.RUNNING)
MAX_REFUSALS = 5
"""Reasons that are listed for one item."""


Item = Environment | Run | Checkpoint | Study | Grader
KINDS: Mapping[type, DeletedKind] = {
    Environment: DeletedKind.ENVIRONMENT,
    Run: DeletedKind.RUN,
    Checkpoint: DeletedKind.CHECKPOINT,
    Study: DeletedKind.STUDY,
    Grader: DeletedKind.GRADER,
}


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """An item and everything that is deleted with it."""

    item: Item
    name: str
    project_id: uuid.UUID
    contents: Mapping[str, int]
    refusals: Sequence[str]
    runs: Sequence[Run] = ()
    """Runs that are deleted, including the item itself."""
    policies: Sequence[Policy] = ()
    """Policies that its training runs train."""
    kept: int = 0
    """Number of other runs that use it or its checkpoints."""
    notes: Sequence[str] = ()
    """What stays, and what is lost."""

    @property
    def kind(self) -> DeletedKind:
        return KINDS[type(self.item)]


def plan_deletion(session: Session, item: Item) -> DeletionPlan:
    """Find what belongs to an item, also in projects that the person does not see, and reasons not to delete it."""
    hidden = hidden_projects(session)
    with unlimited(session):
        match item:
            case Checkpoint():
                return _plan_checkpoint(session, item, hidden)
            case Study():
                return _plan_study(session, item)
            case Grader():
                return _plan_grader(session, item, hidden)
            case Environment() | Run():
                return _plan_runs(session, item, hidden)


def _counter(session: Session) -> Callable[[Select[int]], int]:
    return lambda statement: session.scalar(statement) or 0


def _present(contents: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in contents.items() if number}


def _first(reasons: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(islice(reasons, MAX_REFUSALS)))


def _plan_checkpoint(session: Session, checkpoint: Checkpoint, hidden: frozenset[uuid.UUID]) -> DeletionPlan:
    """Its exports go with it. Evaluations that played it stay."""
    count, policy = _counter(session), session.get_one(Policy, checkpoint.policy_id)
    played = count(
        select(func.count(Run.id)).where(
            Run.checkpoint_id == checkpoint.id, Run.kind != RunKind.TRAINING, Run.deletion_id.is_(None)
        )
    )
    exports = count(select(func.count(Export.id)).where(Export.checkpoint_id == checkpoint.id))
    notes = [f"{counted(played, 'runs')} played it and {'stays' if played == 1 else 'stay'}."] if played else []
    if checkpoint.pruned_at is None:
        notes.append(f"Its weights take {size(checkpoint.size_bytes)} of disk space until they are removed.")
    if checkpoint.is_best:
        notes.append("It is the best checkpoint of its run. Without it, the latest one is used where none is chosen.")
    return DeletionPlan(
        checkpoint,
        f"{policy.name} {checkpoint_name(checkpoint.stage, checkpoint.step)}",
        policy.project_id,
        _present({"exports": exports}),
        _first(_checkpoint_refusals(session, checkpoint, hidden)),
        kept=played,
        notes=notes,
    )


def _checkpoint_refusals(session: Session, checkpoint: Checkpoint, hidden: frozenset[uuid.UUID]) -> Iterator[str]:
    own = session.get(Run, checkpoint.run_id) if checkpoint.run_id else None
    if own is not None and not own.status.is_over:
        yield f"Its run {own.name} is {own.status}. Stop it first."
    if checkpoint.is_kept:
        yield "A member marked it to be kept. Release it first."
    if session.scalar(
        select(Export.id).where(Export.checkpoint_id == checkpoint.id, Export.status.in_(_EXPORTING)).limit(1)
    ):
        yield "An export of it is under way. Wait for its end."
    studied = (
        select(Study.id)
        .join(StudyCheckpoint, StudyCheckpoint.study_id == Study.id)
        .where(StudyCheckpoint.checkpoint_id == checkpoint.id, Study.deletion_id.is_(None))
    )
    if session.scalar(studied.limit(1)):
        yield "A study used it. Delete the study first."
    started = select(Run.name, Run.project_id).where(
        Run.checkpoint_id == checkpoint.id, Run.kind == RunKind.TRAINING, Run.deletion_id.is_(None)
    )
    for name, project in session.execute(started):
        yield f"{_run_named(name, project, hidden)} started from it. Delete that run first."
    reasons = retention_with_siblings(session, [checkpoint])[checkpoint.id].reasons
    if KeepReason.RESUME in reasons and own is not None:
        yield f"Its run {own.name} would resume from it. Delete that run instead."
    if KeepReason.BRANCHED in reasons:
        yield "Another run or an adapter needs its weights. Delete that first."
    yield from _used_by_active_runs(session, {checkpoint.id}, (), hidden)


def _plan_study(session: Session, study: Study) -> DeletionPlan:
    """Its measurements go with it. The evaluations that it started stay, because studies of a run share them."""
    count, run = _counter(session), session.get_one(Run, study.run_id)
    of_study = StudyCheckpoint.study_id == study.id
    evaluations = count(select(func.count(StudyCheckpoint.run_id.distinct())).where(of_study))
    replies = select(func.count(EffortReply.id)).join(
        StudyCheckpoint, StudyCheckpoint.id == EffortReply.study_checkpoint_id
    )
    checkpoints = count(select(func.count(StudyCheckpoint.id)).where(of_study))
    is_active = study.status in UNDER_WAY
    notes = []
    if checkpoints:
        notes.append(f"Its measurements of {counted(checkpoints, 'checkpoints')} go with it.")
    if evaluations:
        stay = "stays" if evaluations == 1 else "stay"
        notes.append(f"{counted(evaluations, 'evaluations')} that it started {stay}.")
    return DeletionPlan(
        study,
        f"{study.kind} study of {run.name}"[:200],
        run.project_id,
        _present({"replies": count(replies.where(of_study))}),
        [f"It is {study.status}. Stop it, or wait for its end."] if is_active else [],
        kept=evaluations,
        notes=notes,
    )


def _plan_grader(session: Session, grader: Grader, hidden: frozenset[uuid.UUID]) -> DeletionPlan:
    """Its budgets end with it. Its grades stay with the rollouts."""
    count, policy = _counter(session), session.get_one(Policy, grader.policy_id)
    graded = count(select(func.count(GraderRun.id)).where(GraderRun.grader_id == grader.id))
    grades = count(select(func.count(Grade.id)).where(Grade.grader_id == grader.id))
    notes = []
    if grades:
        notes.append(f"Its {counted(grades, 'grades')} of {counted(graded, 'runs')} stay with the rollouts.")
    return DeletionPlan(
        grader,
        grader.name,
        policy.project_id,
        _present({"budgets": count(select(func.count(GraderBudget.id)).where(GraderBudget.grader_id == grader.id))}),
        _first(_grader_refusals(session, grader, hidden)),
        kept=graded,
        notes=notes,
    )


def _grader_refusals(session: Session, grader: Grader, hidden: frozenset[uuid.UUID]) -> Iterator[str]:
    if grader.deleted_at is not None:
        yield "It was deleted already."
    at_work = (
        select(Run.name, Run.project_id)
        .join(GraderRun, GraderRun.run_id == Run.id)
        .where(GraderRun.grader_id == grader.id, GraderRun.status.in_(UNDER_WAY), Run.deletion_id.is_(None))
    )
    for name, project in session.execute(at_work):
        yield f"It is at work on {_run_named(name, project, hidden, is_first=False)}. Stop it there first."
    yield from _used_by_active_runs(session, {grader.id}, (), hidden)


def _plan_runs(session: Session, item: Run | Environment, hidden: frozenset[uuid.UUID]) -> DeletionPlan:
    versions = select(EnvironmentVersion.id).where(EnvironmentVersion.environment_id == item.id)
    of_item = Run.id == item.id if isinstance(item, Run) else Run.version_id.in_(versions)
    runs = session.scalars(select(Run).where(of_item, Run.deletion_id.is_(None)).order_by(Run.id)).all()
    ids = [run.id for run in runs]
    policies = _trained_only_by(session, runs)
    checkpoints = select(Checkpoint.id).where(Checkpoint.run_id.in_(ids))
    users = select(Run).where(
        or_(Run.source_run_id.in_(ids), Run.checkpoint_id.in_(checkpoints)),
        Run.id.not_in(ids),
        Run.deletion_id.is_(None),
    )
    count = _counter(session)
    contents = {
        "runs": len(runs) - isinstance(item, Run),
        "rollouts": count(select(func.count(Rollout.id)).where(Rollout.run_id.in_(ids))),
        "verdicts": count(
            select(func.count(VerdictRecord.id)).where(
                VerdictRecord.run_id.in_(ids), VerdictRecord.taken_back_at.is_(None)
            )
        ),
        "policies": len(policies),
        "checkpoints": count(select(func.count()).select_from(checkpoints.subquery())),
        "exports": count(select(func.count(Export.id)).where(Export.run_id.in_(ids))),
    }
    if isinstance(item, Environment):
        contents["versions"] = count(select(func.count()).select_from(versions.subquery()))
    kept = count(select(func.count()).select_from(users.subquery()))
    notes = []
    if kept:
        stay = "It stays, with the weights that it needs" if kept == 1 else "They stay, with the weights that they need"
        notes.append(f"{counted(kept, 'other runs')} started from this or its checkpoints. {stay}.")
    return DeletionPlan(
        item,
        item.name,
        item.project_id,
        _present(contents),
        _first(_refusals(session, item, runs, policies, hidden)),
        runs,
        policies,
        kept,
        notes,
    )


def _trained_only_by(session: Session, runs: Sequence[Run]) -> Sequence[Policy]:
    """Return the policies that these training runs train, and no other one."""
    trained = {run.policy_id for run in runs if run.kind is RunKind.TRAINING and run.policy_id}
    elsewhere = select(Run.id).where(
        Run.policy_id == Policy.id,
        Run.kind == RunKind.TRAINING,
        Run.deletion_id.is_(None),
        Run.id.not_in([run.id for run in runs]),
    )
    is_own = Policy.id.in_(trained), Policy.kind == PolicyKind.LOCAL, Policy.deleted_at.is_(None)
    return session.scalars(select(Policy).where(*is_own, ~elsewhere.exists()).order_by(Policy.id)).all()


def _refusals(
    session: Session,
    item: Run | Environment,
    runs: Sequence[Run],
    policies: Sequence[Policy],
    hidden: frozenset[uuid.UUID],
) -> Iterator[str]:
    """Yield why the item cannot be deleted: something of it is at work, or something that stays needs it."""
    if any(run.project_id in hidden for run in runs):
        yield "Runs of a project that you do not see use it. Archive it, or ask an administrator."
        return
    ids = [run.id for run in runs]
    for run in runs:
        if not run.status.is_over:
            what = "It" if run is item else f"Its run {run.name}"
            yield f"{what} is {run.status}. Stop it first."
    over = [run.id for run in runs if run.status.is_over]
    if session.scalar(select(Job.id).where(Job.run_id.in_(over), Job.status.in_(UNFINISHED)).limit(1)):
        yield "Detectors or graders are still at work on it. Try again when they have finished."
    if session.scalar(select(Export.id).where(Export.run_id.in_(ids), Export.status.in_(_EXPORTING)).limit(1)):
        yield "An export of its checkpoint is under way. Wait for its end."
    if session.scalar(select(Study.id).where(Study.run_id.in_(ids), Study.status.in_(UNDER_WAY)).limit(1)):
        yield "A study of it is under way. Stop it, or wait for its end."
    for name, policy in session.execute(
        select(Grader.name, Policy.name)
        .join(Policy, Policy.id == Grader.policy_id)
        .where(Grader.policy_id.in_([policy.id for policy in policies]), Grader.deleted_at.is_(None))
    ):
        yield f"The grader {name} uses its policy {policy}. Delete the grader first."
    checkpoints = session.scalars(select(Checkpoint.id).where(Checkpoint.run_id.in_(ids)))
    used = {*ids, *checkpoints, *(policy.id for policy in policies)}
    yield from _used_by_active_runs(session, used, ids, hidden)
    if isinstance(item, Environment):
        yield from _uses_of_environment(session, item, ids, hidden)


def _used_by_active_runs(
    session: Session, ids: Collection[uuid.UUID], except_for: Sequence[uuid.UUID], hidden: frozenset[uuid.UUID]
) -> Iterator[str]:
    """Active runs name what they use in columns and anywhere in their configuration: opponents, mixes, teachers."""
    used = {str(key) for key in ids}
    others = select(Run.name, Run.project_id, Run.status, Run.source_run_id, Run.checkpoint_id, Run.policy_id)
    active = others.add_columns(cast(Run.configuration, String)).where(
        Run.status.in_(UNDER_WAY), Run.id.not_in(except_for), Run.deletion_id.is_(None)
    )
    for name, project, status, source, checkpoint, policy, configuration in session.execute(active):
        if {str(source), str(checkpoint), str(policy)} & used or any(key in configuration for key in used):
            who = _run_named(name, project, hidden)
            yield f"{who} is {status} and uses it. Stop that run first, or wait for its end."


def _run_named(name: str, project: uuid.UUID, hidden: frozenset[uuid.UUID], *, is_first: bool = True) -> str:
    text = "a run of a project that you do not see" if project in hidden else f"the run {name}"
    return text[0].upper() + text[1:] if is_first else text


def _uses_of_environment(
    session: Session, environment: Environment, run_ids: Sequence[uuid.UUID], hidden: frozenset[uuid.UUID]
) -> Iterator[str]:
    if environment.is_built_in:
        yield f"{environment.name} comes with Proctor. Archive it instead."
    mix = Run.configuration["mix"]
    mixing = select(Run.name, Run.project_id, mix).where(
        cast(mix, String).contains(environment.name, autoescape=True),
        Run.id.not_in(run_ids),
        Run.deletion_id.is_(None),
    )
    for name, project, parts in session.execute(mixing):
        if any(MixPart.model_validate(part).environment == environment.name for part in parts):
            who = _run_named(name, project, hidden)
            yield f"{who} trained on it too. Delete that run first, or archive the environment."
    versions = select(EnvironmentVersion.id).where(EnvironmentVersion.environment_id == environment.id)
    if session.scalar(select(Sweep.id).where(Sweep.version_id.in_(versions), Sweep.status.in_(UNDER_WAY)).limit(1)):
        yield "A sweep on it is under way. Stop it, or wait for its end."
    studied = select(Study.id).where(Study.version_id.in_(versions), Study.run_id.not_in(run_ids))
    if session.scalar(studied.limit(1)):
        yield "A study of another run uses it. Delete that run first, or archive the environment."
    reported = (
        select(TransferEvaluation.id)
        .join(Export, Export.id == TransferEvaluation.export_id)
        .where(TransferEvaluation.version_id.in_(versions), Export.run_id.not_in(run_ids))
    )
    if session.scalar(reported.limit(1)):
        yield "The transfer report of an export uses it. Archive the environment instead."
