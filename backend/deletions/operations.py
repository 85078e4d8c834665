"""Operations on deletions: preview, delete, list, restore."""

from sqlalchemy.orm import Session

from backend.deletions import queries, service
from backend.deletions.schemas import DeleteItems, DeletionPlanResponse, DeletionResponse, ListDeletions
from backend.deletions.tables import Deletion
from backend.domain.deletions import in_words
from backend.domain.vocabulary import Role
from backend.operations.declaration import operation, reference
from backend.web.identity import Actor
from backend.web.paging import Page

reference(Deletion, "Id of a deletion, or the last characters of it.")(queries.get_deletion)


@operation("GET /deletions/preview", role=Role.VIEWER, command="deletion preview", tool=True)
def preview_deletion(session: Session, actor: Actor, request: DeleteItems) -> Page[DeletionPlanResponse]:
    """Show what the deletion of items would take along, and why it is refused."""
    return Page(
        items=[
            DeletionPlanResponse(
                kind=plan.kind,
                item_id=plan.item.id,
                name=plan.name,
                contents=dict(plan.contents),
                kept=plan.kept,
                summary=in_words(plan.contents),
                notes=list(plan.notes),
                refusals=list(plan.refusals),
            )
            for plan in service.plan_items(session, request)
        ]
    )


@operation(
    "POST /deletions",
    role=Role.AUTHOR,
    command="deletion create",
    in_project=True,
    audited=False,
    tool=True,
    status=201,
)
def create_deletion(session: Session, actor: Actor, request: DeleteItems) -> Page[DeletionResponse]:
    """Delete environments, runs, checkpoints, studies or graders with what belongs to them.

    They can be restored for 30 days. Checkpoints and judges need the role trainer.
    """
    made = service.delete_items(session, actor, request)
    return Page(items=[DeletionResponse.of_deletion(each) for each in made])


@operation("GET /deletions", role=Role.VIEWER, command="deletion list", tool=True)
def list_deletions(session: Session, actor: Actor, request: ListDeletions) -> Page[DeletionResponse]:
    """List what was deleted in the last 30 days, newest first."""
    found = queries.deletions(session, after=request.after, limit=request.limit)
    return Page(items=[DeletionResponse.of_deletion(each) for each in found.items], next=found.next)


@operation(
    "POST /deletions/{deletion}/restore",
    role=Role.AUTHOR,
    command="deletion restore",
    page="/deleted",
    notice="{name} was restored.",
    audited=False,
    tool=True,
)
def restore_deletion(session: Session, actor: Actor, deletion: Deletion) -> DeletionResponse:
    """Restore a deleted item with everything that was deleted with it."""
    response = DeletionResponse.of_deletion(deletion)
    service.restore_deletions(session, actor, [deletion])
    return response


@operation(
    "DELETE /deletions/{deletion}",
    role=Role.ADMIN,
    command="deletion purge",
    page="/deleted",
    notice="Its rows and files are removed in the next minutes.",
)
def purge_deletion(session: Session, actor: Actor, deletion: Deletion) -> None:
    """Remove the rows and files of a deletion now. This cannot be undone."""
    service.purge_now(session, actor, deletion)
