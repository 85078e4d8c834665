"""Read deletions, and plan one: everything it takes along, and reasons to refuse it."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Select, String, cast, func, or_, select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint, Export, TransferEvaluation
from backend.core.row_access import hidden_projects, unlimited
from backend.core.tables import Job
from backend.deletions.tables import Deletion
from backend.domain.deletions import DeletedKind
from backend.domain.training.mix import MixPart
from backend.domain.vocabulary import UNDER_WAY, UNFINISHED, ExportStatus, PolicyKind, RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.graders.tables import Grader
from backend.operations.ids import find_by_end, parse_id
from backend.policies.tables import Policy
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.studies.tables import Study
from backend.sweeps.tables import Sweep
from backend.web.paging import Key, Slice, slice_of

NEWEST = (Key(Deletion.deleted_at), Key(Deletion.id))
_EXPORTING = (ExportStatus.QUEUED, ExportStatus.RUNNING)
MAX_REFUSALS = 5
"""Reasons that are listed for one item."""


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """An item and everything that is deleted with it."""

    item: Run | Environment
    runs: Sequence[Run]
    """Including the item itself."""
    policies: Sequence[Policy]
    """Policies that its training runs train."""
    contents: dict[str, int]
    kept: int
    """Number of other runs that use it or its checkpoints."""
    refusals: Sequence[str]

    @property
    def kind(self) -> DeletedKind:
        return DeletedKind.RUN if isinstance(self.item, Run) else DeletedKind.ENVIRONMENT


def get_deletion(session: Session, text: str) -> Deletion:
    """By id or its last characters. Raises NotFound."""
    newest = select(Deletion.id).order_by(Deletion.deleted_at.desc(), Deletion.id.desc())
    key = parse_id(text) or find_by_end(session, newest, Deletion.id, text)
    found = session.scalar(_with_person(select(Deletion)).where(Deletion.id == key)) if key else None
    if found is None:
        raise NotFound("There is no such deletion. It was undone, or the item was removed after 30 days.")
    return found


def deletions(session: Session, *, after: str | None = None, limit: int = 100) -> Slice[Deletion]:
    """Newest first."""
    return slice_of(session, _with_person(select(Deletion)), NEWEST, after=after, limit=limit)


def deletions_of_request(session: Session, request_id: uuid.UUID) -> Sequence[Deletion]:
    statement = _with_person(select(Deletion)).where(Deletion.request_id == request_id)
    return session.scalars(statement.order_by(Deletion.id)).all()


def plan_deletion(session: Session, item: Run | Environment) -> DeletionPlan:
    """Find what belongs to an item, also in projects that the person does not see, and reasons not to delete it."""
    hidden = hidden_projects(session)
    with unlimited(session):
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

        def count(statement: Select[int]) -> int:
            return session.scalar(statement) or 0

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
        reasons = _refusals(session, item, runs, policies, hidden)
        refusals = list(dict.fromkeys(islice(reasons, MAX_REFUSALS)))
    return DeletionPlan(item, runs, policies, {name: n for name, n in contents.items() if n}, kept, refusals)


def _with_person(statement: Select[Deletion]) -> Select[Deletion]:
    return statement.options(joinedload(Deletion.person))


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
    yield from _used_by_active_runs(session, runs, policies, hidden)
    if isinstance(item, Environment):
        yield from _uses_of_environment(session, item, ids, hidden)


def _used_by_active_runs(
    session: Session, runs: Sequence[Run], policies: Sequence[Policy], hidden: frozenset[uuid.UUID]
) -> Iterator[str]:
    """Active runs name what they use in columns and anywhere in their configuration: opponents, mixes, teachers."""
    ids = [run.id for run in runs]
    checkpoints = session.scalars(select(Checkpoint.id).where(Checkpoint.run_id.in_(ids))).all()
    used = {str(key) for key in (*ids, *checkpoints, *(policy.id for policy in policies))}
    others = select(Run.name, Run.project_id, Run.status, Run.source_run_id, Run.checkpoint_id, Run.policy_id)
    active = others.add_columns(cast(Run.configuration, String)).where(
        Run.status.in_(UNDER_WAY), Run.id.not_in(ids), Run.deletion_id.is_(None)
    )
    for name, project, status, source, checkpoint, policy, configuration in session.execute(active):
        if {str(source), str(checkpoint), str(policy)} & used or any(key in configuration for key in used):
            who = _run_named(name, project, hidden)
            yield f"{who} is {status} and uses it. Stop that run first, or wait for its end."


def _run_named(name: str, project: uuid.UUID, hidden: frozenset[uuid.UUID]) -> str:
    return "A run of a project that you do not see" if project in hidden else f"The run {name}"


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
