"""Reading checkpoints and exports, and the disk space that they use."""

import uuid
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.fields import CHECKPOINT_TABLE, select_checkpoints
from backend.checkpoints.schemas import DiskUsage
from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.domain.rollouts.fields import Field
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import ExportStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.operations.ids import find_by_end, parse_id
from backend.operations.schemas import ItemListQuery
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.web.formats import size
from backend.web.item_table import ListedItem
from backend.web.paging import Key, Slice, slice_of


def checkpoints(
    session: Session,
    *,
    run_id: uuid.UUID | None = None,
    policy_id: uuid.UUID | None = None,
    environment: str | None = None,
    is_best: bool | None = None,
    has_weights: bool | None = None,
    tag: str | None = None,
    project_id: uuid.UUID | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Slice[Checkpoint]:
    """One page of checkpoints, newest first. `environment`: name of the environment that the run trained on."""
    statement = select(Checkpoint).join(Checkpoint.policy).options(joinedload(Checkpoint.policy))
    conditions: list[ColumnElement[bool]] = [Policy.deleted_at.is_(None)]
    if run_id is not None:
        conditions.append(Checkpoint.run_id == run_id)
    if policy_id is not None:
        conditions.append(Checkpoint.policy_id == policy_id)
    if environment is not None:
        runs = select(Run.id).join(Run.version).join(EnvironmentVersion.environment)
        conditions.append(Checkpoint.run_id.in_(runs.where(Environment.name == environment)))
    if tag:
        conditions.append(Checkpoint.tags.contains([tag]))
    if project_id is not None:
        conditions.append(Policy.project_id == project_id)
    if is_best is not None:
        conditions.append(Checkpoint.is_best.is_(is_best))
    if has_weights is not None:
        conditions.append(Checkpoint.pruned_at.is_(None).is_(has_weights))
    return slice_of(session, statement.where(*conditions), (Key(Checkpoint.id),), after=after, limit=limit)


def list_checkpoints(
    session: Session, wanted: ItemListQuery, columns: Sequence[Field], project_id: uuid.UUID | None = None
) -> Slice[ListedItem[Checkpoint]]:
    """Return a page of the checkpoints that pass a filter, pinned ones first. Raises WrongFilter."""
    statement = CHECKPOINT_TABLE.select_where(select_checkpoints(), wanted.where, wanted.tag)
    if project_id is not None:
        statement = statement.where(Policy.project_id == project_id)
    return CHECKPOINT_TABLE.read(session, statement, columns, sort=wanted.sort, after=wanted.after, limit=wanted.limit)


def heldout_before_and_best(
    session: Session, run_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, tuple[Checkpoint | None, Checkpoint | None]]:
    """For each training run: its untrained checkpoint and its best one, as far as they were evaluated."""
    found: dict[uuid.UUID, tuple[Checkpoint | None, Checkpoint | None]] = {}
    evaluated = Checkpoint.run_id.in_(run_ids), Checkpoint.heldout_reward.is_not(None)
    marked = (Checkpoint.stage == Stage.UNTRAINED) | Checkpoint.is_best
    for checkpoint in session.scalars(select(Checkpoint).where(*evaluated, marked)):
        assert checkpoint.run_id
        first, best = found.get(checkpoint.run_id, (None, None))
        first = checkpoint if checkpoint.stage == Stage.UNTRAINED else first
        found[checkpoint.run_id] = first, checkpoint if checkpoint.is_best else best
    return found


def get_checkpoint(session: Session, checkpoint_id: uuid.UUID) -> Checkpoint:
    statement = select(Checkpoint).options(joinedload(Checkpoint.policy)).where(Checkpoint.id == checkpoint_id)
    checkpoint = session.scalar(statement)
    if checkpoint is None:
        raise NotFound("There is no such checkpoint.")
    return checkpoint


def find_checkpoint(session: Session, text: str) -> Checkpoint:
    """By id; by the name of its policy: the best with weights, else the newest; by the last characters of its id."""
    if found_id := parse_id(text):
        return get_checkpoint(session, found_id)
    of_policy = (
        select(Checkpoint.id)
        .join(Checkpoint.policy)
        .where(Policy.name == text, Policy.deleted_at.is_(None), Checkpoint.pruned_at.is_(None))
        .order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc())
    )
    found_id = session.scalar(of_policy.limit(1)) or find_by_end(
        session, select(Checkpoint.id).order_by(Checkpoint.id.desc()), Checkpoint.id, text
    )
    if found_id is None:
        raise NotFound(f"There is no checkpoint {text}.")
    return get_checkpoint(session, found_id)


def find_policy_id(session: Session, text: str | None) -> uuid.UUID | None:
    """The id of a policy by its id or name; None without a text."""
    if not text:
        return None
    of_name = select(Policy.id).where(Policy.name == text, Policy.deleted_at.is_(None))
    if policy_id := parse_id(text) or session.scalar(of_name):
        return policy_id
    raise NotFound(f"There is no policy {text}.")


def disk_usage(session: Session, run_id: uuid.UUID | None = None) -> DiskUsage:
    """Disk space used by the weights of all checkpoints, or of one run."""
    has_weights = Checkpoint.pruned_at.is_(None)
    statement = select(
        func.count().filter(has_weights),
        func.coalesce(func.sum(Checkpoint.size_bytes).filter(has_weights), 0),
        func.count().filter(~has_weights),
        func.coalesce(func.sum(Checkpoint.size_bytes).filter(~has_weights), 0),
        func.coalesce(func.max(Checkpoint.size_bytes), 0),
    )
    if run_id is not None:
        statement = statement.where(Checkpoint.run_id == run_id)
    stored, stored_bytes, pruned, freed_bytes, largest_bytes = session.execute(statement).one()
    free_bytes, total_bytes = artifacts.free_space() or (None, None)
    # below 5% of the disk, or below the size of ten of the largest checkpoints
    is_low = free_bytes is not None and free_bytes < max(0.05 * (total_bytes or 0), 10 * largest_bytes)
    warning = (
        f"Only {size(free_bytes or 0)} of disk space is left for weights. A training run fails if it cannot save a"
        " checkpoint. Prune checkpoints or free disk space."
    )
    return DiskUsage(
        checkpoints=stored,
        stored_bytes=int(stored_bytes),
        pruned=pruned,
        freed_bytes=int(freed_bytes),
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        warning=warning if is_low else "",
    )


def exports(
    session: Session,
    *,
    run_id: uuid.UUID | None = None,
    checkpoint_id: uuid.UUID | None = None,
    project_id: uuid.UUID | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Slice[Export]:
    """Newest first."""
    statement = select(Export).options(joinedload(Export.checkpoint).joinedload(Checkpoint.policy))
    if run_id is not None:
        statement = statement.where(Export.run_id == run_id)
    if checkpoint_id is not None:
        statement = statement.where(Export.checkpoint_id == checkpoint_id)
    if project_id is not None:
        statement = statement.where(Export.run_id.in_(select(Run.id).where(Run.project_id == project_id)))
    return slice_of(session, statement, (Key(Export.id),), after=after, limit=limit)


def finished_exports(session: Session, checkpoint_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[Export]]:
    """Completed exports by checkpoint, newest first."""
    found: dict[uuid.UUID, list[Export]] = defaultdict(list)
    is_one = Export.checkpoint_id.in_(checkpoint_ids), Export.status == ExportStatus.COMPLETED
    for export in session.scalars(select(Export).where(*is_one).order_by(Export.id.desc())):
        found[export.checkpoint_id].append(export)
    return dict(found)


def get_export(session: Session, export_id: uuid.UUID | str) -> Export:
    options = (
        joinedload(Export.checkpoint).joinedload(Checkpoint.policy),
        joinedload(Export.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
    )
    export = session.scalar(select(Export).options(*options).where(Export.id == parse_id(str(export_id))))
    if export is None:
        raise NotFound("There is no such export.")
    return export
