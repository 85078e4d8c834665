"""Delete items, and undo deletions."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.queries import find_checkpoint
from backend.checkpoints.tables import Checkpoint
from backend.core.events import RUNS, announce
from backend.core.row_access import hide_deleted, is_taken, unlimited
from backend.deletions.plans import DeletionPlan, Item, plan_deletion
from backend.deletions.queries import deletions_of_request
from backend.deletions.schemas import DeleteItems
from backend.deletions.tables import Deletion
from backend.domain.deletions import DeletedKind
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.vocabulary import Role
from backend.environments.queries import get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.graders.queries import find_grader
from backend.graders.service import retire_grader
from backend.graders.tables import Grader
from backend.operations.ids import parse_id
from backend.policies.service import retire_policy
from backend.policies.tables import Policy
from backend.runs.references import find_run
from backend.runs.tables import Run
from backend.studies.queries import find_study
from backend.studies.tables import Study
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor


class CannotDelete(Conflict):
    """Something depends on this item."""


class DeletedMeanwhile(Conflict):
    """Someone deleted this item in the meantime. Nothing was changed."""


class IsPurged(Conflict):
    """Its rows and files are being removed: it can no longer be restored."""


def chosen_items(session: Session, request: DeleteItems) -> list[Item]:
    """Find the items of a request, each once. Raises NotFound, also for hidden ones."""
    items: list[Item] = [
        *(_environment_by_id(session, text) or get_environment(session, text) for text in request.environments),
        *(find_run(session, text) for text in request.runs),
        *(find_checkpoint(session, text) for text in request.checkpoints),
        *(find_study(session, text) for text in request.studies),
        *(find_grader(session, text) for text in request.graders),
    ]
    if not items:
        raise InvalidInput("Choose at least one item.")
    return list({item.id: item for item in items}.values())


def plan_items(session: Session, request: DeleteItems) -> list[DeletionPlan]:
    """Plan the deletion of each item. What another item takes along has no separate plan."""
    plans: list[DeletionPlan] = []
    for item in chosen_items(session, request):  # environments first, then runs
        taken = {run.id for plan in plans for run in plan.runs}
        run_id = item.id if isinstance(item, Run) else getattr(item, "run_id", None)
        if run_id not in taken:
            plans.append(plan_deletion(session, item))
    return plans


def delete_items(session: Session, actor: Actor, request: DeleteItems) -> Sequence[Deletion]:
    """Delete items with what belongs to them. Needs the role author in the project of each.

    Nothing is deleted if one of them cannot be. All are undone together.
    """
    _lock(session, chosen_items(session, request))
    request_id = new_id()
    for plan in plan_items(session, request):
        if plan.refusals:
            raise CannotDelete(f"{plan.name} cannot be deleted. {' '.join(plan.refusals)} Nothing was deleted.")
        _require_role(actor, plan.kind, plan.project_id, is_judge=_is_judge(plan.item))
        _delete(session, actor, plan, request_id)
    hide_deleted(session)
    announce(session, RUNS)
    return deletions_of_request(session, request_id)


def restore_deletions(session: Session, actor: Actor, deletions: Sequence[Deletion]) -> list[str]:
    """Undo deletions and return the names of the items. Nothing is restored if one of them cannot be."""
    if not deletions:
        raise NotFound("There is nothing to restore: it was restored already, or removed after 30 days.")
    names = []
    with unlimited(session):
        ids = [deletion.id for deletion in deletions]
        locked = session.scalars(
            select(Deletion)
            .where(Deletion.id.in_(ids))
            .order_by(Deletion.kind, Deletion.id)
            .with_for_update()
            .execution_options(populate_existing=True)
        ).all()
    if len(locked) != len(ids):
        raise NotFound("Someone restored it in the meantime.")
    for deletion in locked:
        _restore(session, actor, deletion)
        names.append(deletion.name)
    session.flush()
    announce(session, RUNS)
    return names


def purge_now(session: Session, actor: Actor, deletion: Deletion) -> None:
    """Let housekeeping remove the rows and files of a deletion at its next round instead of after 30 days."""
    session.refresh(deletion, ["purge_at", "purge_started_at"], with_for_update=True)
    deletion.purge_at = min(deletion.purge_at, datetime.now(UTC))
    session.flush()


def _require_role(actor: Actor, kind: DeletedKind, project_id: uuid.UUID, *, is_judge: bool) -> None:
    """Deleting and restoring need the same role as creating."""
    needs_trainer = kind in (DeletedKind.POLICY, DeletedKind.CHECKPOINT) or is_judge
    if needs_trainer and not actor.within(project_id).may(Role.TRAINER):
        raise NotAllowed(f"Deleting or restoring a {'judge' if is_judge else kind} needs the role trainer.")


def _is_judge(item: object) -> bool:
    return isinstance(item, Grader) and item.kind is GraderKind.JUDGE


def _delete(session: Session, actor: Actor, plan: DeletionPlan, request_id: uuid.UUID) -> None:
    item = plan.item
    names = {str(policy.id): policy.name for policy in plan.policies}
    if isinstance(item, Environment | Grader):
        names[str(item.id)] = item.name
    values = {"id": new_id(), "request_id": request_id, "contents": dict(plan.contents), "names": names}
    subject = {"name": plan.name[:200], "project_id": plan.project_id}
    deletion = Deletion.of(plan.kind, item.id, actor.person_id, **values, **subject)
    session.add(deletion)
    session.flush()
    for run in plan.runs:
        run.deletion_id = deletion.id
    for policy in plan.policies:
        retire_policy(policy)
    if isinstance(item, Grader):
        retire_grader(item)
    else:
        item.deletion_id = deletion.id
    if isinstance(item, Environment):
        item.name = f"deleted-{item.id.hex}"  # its name becomes free; packages cannot have such a name
    audit(session, actor, f"{plan.kind}.delete", plan.kind, item.id, name=deletion.name, **plan.contents)
    session.flush()


def _restore(session: Session, actor: Actor, deletion: Deletion) -> None:
    if deletion.purge_started_at is not None:
        raise IsPurged(f"{deletion.name}: {IsPurged.__doc__}")
    keys = [uuid.UUID(key) for key in deletion.names]
    with unlimited(session):
        environment = session.scalar(select(Environment).where(Environment.deletion_id == deletion.id))
        runs = session.scalars(select(Run).where(Run.deletion_id == deletion.id)).all()
        checkpoints = session.scalars(select(Checkpoint).where(Checkpoint.deletion_id == deletion.id)).all()
        studies = session.scalars(select(Study).where(Study.deletion_id == deletion.id)).all()
        policies = session.scalars(select(Policy).where(Policy.id.in_(keys))).all()
        grader = session.scalar(select(Grader).where(Grader.id.in_(keys)))
        of_runs = (
            select(Deletion.name)
            .join(Environment, Environment.deletion_id == Deletion.id)
            .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
            .where(EnvironmentVersion.id.in_([run.version_id for run in runs]), Deletion.id != deletion.id)
        )
        parents = [*(checkpoint.run_id for checkpoint in checkpoints), *(study.run_id for study in studies)]
        of_rest = select(Deletion.name).join(Run, Run.deletion_id == Deletion.id).where(Run.id.in_(parents))
        missing = session.scalar(of_runs) or session.scalar(of_rest)
    _require_role(actor, deletion.kind, deletion.project_id, is_judge=_is_judge(grader))
    if missing:
        what = "environment" if runs else "run"
        raise Conflict(f"{deletion.name} needs the {what} {missing}, which is deleted. Restore that first.")
    marked: Sequence[Run | Checkpoint | Study] = [*runs, *checkpoints, *studies]
    for item in marked:
        item.deletion_id = None
    if environment is not None:
        environment.name, environment.deletion_id = _former_name(session, deletion, environment), None
    for policy in policies:
        policy.name, policy.deleted_at = _former_name(session, deletion, policy), None
    if grader is not None:
        grader.name, grader.deleted_at = _former_name(session, deletion, grader), None
    audit(session, actor, f"{deletion.kind}.restore", deletion.kind, deletion.item_id, name=deletion.name)
    session.flush()
    session.delete(deletion)


def _former_name(session: Session, deletion: Deletion, item: Environment | Policy | Grader) -> str:
    """Raises Conflict if another item has the name by now."""
    former: str = deletion.names[str(item.id)]
    if is_taken(session, type(item).name, former):
        kind = type(item).__name__.lower()
        raise Conflict(f"There is another {kind} called {former} by now. Rename it first. Nothing was restored.")
    return former


def _environment_by_id(session: Session, text: str) -> Environment | None:
    key = parse_id(text)
    return session.scalar(select(Environment).where(Environment.id == key)) if key else None


def _lock(session: Session, items: Sequence[Item]) -> None:
    """Lock items in the order of their ids, and versions against new runs. Raises DeletedMeanwhile."""
    ids = [item.id for item in items]
    fresh = {"populate_existing": True}
    with unlimited(session):
        of_items = EnvironmentVersion.environment_id.in_(ids)
        session.scalars(
            select(Environment).where(Environment.id.in_(ids)).order_by(Environment.id).with_for_update(),
            execution_options=fresh,
        ).all()
        versions = session.scalars(
            select(EnvironmentVersion.id).where(of_items).order_by(EnvironmentVersion.id).with_for_update()
        ).all()
        is_run = Run.id.in_(ids) | Run.version_id.in_(versions)
        session.scalars(select(Run).where(is_run).order_by(Run.id).with_for_update(), execution_options=fresh).all()
        for table in (Checkpoint, Study, Grader):
            rows = select(table).where(table.id.in_(ids)).order_by(table.id).with_for_update()
            session.scalars(rows, execution_options=fresh).all()
        for item in items:
            mark = Deletion.item_id == item.id if isinstance(item, Grader) else Deletion.id == item.deletion_id
            deleted = select(Deletion.name, Person.name).outerjoin(Person, Person.id == Deletion.deleted_by).where(mark)
            if found := session.execute(deleted.limit(1)).first():
                name, by = found
                raise DeletedMeanwhile(f"{by or 'Someone'} deleted {name} in the meantime. Nothing was changed.")
