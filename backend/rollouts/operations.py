"""What members, scripts and agents do with rollouts, their files and saved views."""

import uuid

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation, reference
from backend.operations.schemas import Download
from backend.rollouts import export, imports, queries, saved_views
from backend.rollouts.filters import select_rollouts
from backend.rollouts.schemas import (
    ExportRollouts,
    FieldResponse,
    FilterFields,
    ImportRollouts,
    ListedRolloutResponse,
    ListViews,
    RolloutCount,
    SaveView,
    SelectRollouts,
    UpdateView,
    View,
    WholeRolloutResponse,
)
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.queries import get_run
from backend.runs.references import find_run
from backend.runs.schemas import RunDetailResponse
from backend.runs.tables import Run
from backend.web.identity import Actor
from backend.web.paging import Page

reference(Rollout, "Id of a rollout.")(queries.get_rollout)


@operation("GET /rollouts", role=Role.VIEWER, tool=True)
def list_rollouts(session: Session, actor: Actor, request: SelectRollouts) -> Page[ListedRolloutResponse]:
    """List a run's rollouts. `where` filters (`has flag and win = 0`), `sort` orders, `columns` picks.

    `GET /runs/{run}/filter-words` lists the fields that they can use.
    """
    run = find_run(session, request.run_id)
    scope = scope_of(session, run)
    columns = queries.shown_columns(scope, request.columns) if request.columns else None
    found = queries.list_rollouts(session, run, request, scope)
    items = [
        ListedRolloutResponse.of(
            item.rollout,
            columns=item.columns,
            flags=list(item.flags),
            verdict=item.verdict,
            judges=item.scores,
            questions=item.answers,
            values=None if columns is None else {field.name: item.value(field) for field in columns},
        )
        for item in found.items
    ]
    return Page(items=items, next=found.next, previous=found.previous)


@operation("GET /rollouts/count", role=Role.VIEWER, tool=True)
def count_rollouts(session: Session, actor: Actor, request: SelectRollouts) -> RolloutCount:
    """Count a run's rollouts that pass a filter, and all of them."""
    scope = scope_of(session, find_run(session, request.run_id))
    matching, total = (
        queries.count_rollouts(session, select_rollouts(scope, where)) for where in (request.expression, "")
    )
    return RolloutCount(matching=matching, total=total)


@operation("GET /runs/{run}/filter-words", role=Role.VIEWER, tool=True)
def list_filter_fields(session: Session, actor: Actor, run: Run) -> FilterFields:
    """List the fields that filters and sort orders of a run's rollouts can use."""
    scope = scope_of(session, run)
    return FilterFields(fields=[FieldResponse.of(field) for field in scope.fields.values()], sorts=scope.sortable)


@operation("GET /rollouts/{rollout}", role=Role.VIEWER, tool=True)
def get_rollout(session: Session, actor: Actor, rollout: Rollout) -> WholeRolloutResponse:
    """Read one rollout with its steps, messages and tokens."""
    return WholeRolloutResponse.of(rollout, columns=queries.columns_of(rollout.run, rollout))


@operation("GET /runs/{run}/export", role=Role.VIEWER, command="rollouts export")
def export_rollouts(session: Session, actor: Actor, run: Run, request: ExportRollouts) -> Download:
    """Export a run's rollouts: JSONL, Parquet, a Hugging Face folder, verifiers 0.3 or 0.4, or an Inspect log.

    Failed rollouts stay failed in every format. The formats of trainers (verl, SkyRL, prime-rl) omit them.
    """
    return export.export_rollouts(session, run, request.format, request.where)


@operation(
    "POST /rollouts/import",
    role=Role.AUTHOR,
    in_project=True,
    status=201,
    audited=False,
    max_body_size=imports.MAX_UPLOAD_BYTES,
)
def import_rollouts(session: Session, actor: Actor, request: ImportRollouts) -> RunDetailResponse:
    """Import a file of verifiers 0.3 or 0.4, plain JSONL, Parquet, a `datasets` folder or another Proctor as a run.

    The run shows the progress. It completes, or fails with the line that is wrong and stores nothing.
    """
    run = imports.start_import(session, actor, request)
    return RunDetailResponse.of(get_run(session, run.id))


@operation(
    "DELETE /runs/{run}", role=Role.AUTHOR, noun="runs", audited=False, page="/runs", notice="The run was deleted."
)
def delete_run(session: Session, actor: Actor, run: Run) -> None:
    """Delete an imported run with all its rollouts. Runs that were played here are kept."""
    imports.delete_imported(session, actor, run)


@operation("GET /views", role=Role.VIEWER, noun="views")
def list_views(session: Session, actor: Actor, request: ListViews) -> Page[View]:
    """List your saved views, then shared views of others."""
    return Page(items=saved_views.list_views(session, actor, request.listing))


@operation("POST /views", role=Role.VIEWER, noun="views", status=201, audited=False)
def save_view(session: Session, actor: Actor, request: SaveView) -> View:
    """Save a filter and a sort order under a name. It replaces your view of the same name."""
    return saved_views.save_view(session, actor, request)


@operation("PATCH /views/{view}", role=Role.VIEWER, noun="views", audited=False)
def update_view(session: Session, actor: Actor, view: uuid.UUID, request: UpdateView) -> View:
    """Rename a view, or share it or stop sharing it."""
    return saved_views.update_view(session, actor, view, request)


@operation("DELETE /views/{view}", role=Role.VIEWER, noun="views", audited=False)
def delete_view(session: Session, actor: Actor, view: uuid.UUID) -> None:
    """Delete a view. Its rows stay. You can restore the view for 30 days."""
    saved_views.delete_view(session, actor, view)


@operation("POST /views/{view}/restore", role=Role.VIEWER, noun="views", audited=False)
def restore_view(session: Session, actor: Actor, view: uuid.UUID) -> View:
    """Restore a view that was deleted in the last 30 days."""
    return saved_views.restore_view(session, actor, view)
