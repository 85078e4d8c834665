"""Delete items, and undo deletions."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import RUNS, announce
from backend.core.row_access import hide_deleted, is_taken, unlimited
from backend.deletions.queries import DeletionPlan, deletions_of_request, plan_deletion
from backend.deletions.schemas import DeleteItems
from backend.deletions.tables import Deletion
from backend.domain.deletions import DeletedKind
from backend.domain.ids import new_id
from backend.domain.vocabulary import Role
from backend.environments.queries import get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.operations.ids import parse_id
from backend.policies.service import retire_policy
from backend.policies.tables import Policy
from backend.runs.references import find_run
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor


class CannotDelete(Conflict):
    """Something depends on this item."""


class DeletedMeanwhile(Conflict):
    """Someone deleted this item in the meantime. Nothing was changed."""


class IsPurged(Conflict):
    """Its rows and files are being removed: it can no longer be restored."""


def chosen_items(session: Session, request: DeleteItems) -> list[Environment | Run]:
    """Find the items of a request, each once. Raises NotFound, also for hidden ones."""
    environments = (_by_id(session, text) or get_environment(session, text) for text in request.environments)
    items: list[Environment | Run] = [*environments, *(find_run(session, text) for text in request.runs)]
    if not items:
        raise InvalidInput("Choose at least one run or environment.")
    return list({item.id: item for item in items}.values())


def plan_items(session: Session, request: DeleteItems) -> list[DeletionPlan]:
    """Plan the deletion of each item. A run that its environment takes along has no separate plan."""
    plans: list[DeletionPlan] = []
    for item in sorted(chosen_items(session, request), key=lambda item: isinstance(item, Run)):
        if not any(item in plan.runs for plan in plans):
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
            raise CannotDelete(f"{plan.item.name} cannot be deleted. {' '.join(plan.refusals)} Nothing was deleted.")
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


def _delete(session: Session, actor: Actor, plan: DeletionPlan, request_id: uuid.UUID) -> None:
    item = plan.item
    names = {str(policy.id): policy.name for policy in plan.policies}
    names |= {str(item.id): item.name} if isinstance(item, Environment) else {}
    values = {"id": new_id(), "request_id": request_id, "contents": plan.contents, "names": names}
    deletion = Deletion.of(plan.kind, item, actor.person_id, **values)
    session.add(deletion)
    session.flush()
    for run in plan.runs:
        run.deletion_id = deletion.id
    for policy in plan.policies:
        retire_policy(policy)
    if isinstance(item, Environment):
        item.deletion_id = deletion.id
        item.name = f"deleted-{item.id.hex}"  # its name becomes free; packages cannot have such a name
    audit(session, actor, f"{plan.kind}.delete", plan.kind, item.id, name=deletion.name, **plan.contents)
    session.flush()


def _restore(session: Session, actor: Actor, deletion: Deletion) -> None:
    if deletion.purge_started_at is not None:
        raise IsPurged(f"{deletion.name}: {IsPurged.__doc__}")
    if deletion.kind is DeletedKind.POLICY and not actor.within(deletion.project_id).may(Role.TRAINER):
        raise NotAllowed("Restoring a policy needs the role trainer.")
    keys = [uuid.UUID(key) for key in deletion.names]
    with unlimited(session):
        environment = session.scalar(select(Environment).where(Environment.deletion_id == deletion.id))
        runs = session.scalars(select(Run).where(Run.deletion_id == deletion.id)).all()
        policies = session.scalars(select(Policy).where(Policy.id.in_(keys))).all()
        missing = session.scalar(
            select(Deletion.name)
            .join(Environment, Environment.deletion_id == Deletion.id)
            .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
            .where(EnvironmentVersion.id.in_([run.version_id for run in runs]), Deletion.id != deletion.id)
        )
    if missing:
        raise Conflict(f"{deletion.name} needs the environment {missing}, which is deleted. Restore that first.")
    for run in runs:
        run.deletion_id = None
    if environment is not None:
        former = deletion.names[str(environment.id)]
        if is_taken(session, Environment.name, former):
            raise Conflict(f"There is another environment called {former} by now. Nothing was restored.")
        environment.name, environment.deletion_id = former, None
    for policy in policies:
        former = deletion.names[str(policy.id)]
        if is_taken(session, Policy.name, former):
            raise Conflict(f"There is another policy called {former} by now. Rename it first. Nothing was restored.")
        policy.name, policy.deleted_at = former, None
    audit(session, actor, f"{deletion.kind}.restore", deletion.kind, deletion.item_id, name=deletion.name)
    session.flush()
    session.delete(deletion)


def _by_id(session: Session, text: str) -> Environment | None:
    key = parse_id(text)
    return session.scalar(select(Environment).where(Environment.id == key)) if key else None


def _lock(session: Session, items: Sequence[Environment | Run]) -> None:
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
        for item in items:
            if item.deletion_id is not None:
                statement = select(Person.name).join(Deletion, Deletion.deleted_by == Person.id)
                by = session.scalar(statement.where(Deletion.id == item.deletion_id)) or "Someone"
                raise DeletedMeanwhile(f"{by} deleted {item.name} in the meantime. Nothing was changed.")
