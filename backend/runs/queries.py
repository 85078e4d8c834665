"""Read runs, and the checkpoints, flags, alarms and log lines of a run."""

import uuid
from collections.abc import Sequence

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session, contains_eager, defaultload, defer, joinedload
from sqlalchemy.orm.interfaces import ORMOption

from backend.checkpoints.tables import Checkpoint
from backend.domain.rollouts.fields import Field
from backend.domain.training.mix import MixPart
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.projects.queries import get_project
from backend.runs.fields import RUN_TABLE
from backend.runs.schemas import RunFilter
from backend.runs.tables import Run, RunLogLine
from backend.training.tables import SettingChange
from backend.web.item_table import ListedItem
from backend.web.paging import Slice, slice_of

LOG_LINES = 500


def with_relations(statement: Select[Run]) -> Select[Run]:
    """Load each run with its version, environment, policy, checkpoint and creator, in the same statement."""
    return (
        statement.join(Run.version)
        .join(EnvironmentVersion.environment)
        .options(
            contains_eager(Run.version).contains_eager(EnvironmentVersion.environment),
            joinedload(Run.policy),
            joinedload(Run.checkpoint),
            joinedload(Run.creator),
        )
    )


def runs(session: Session, filter: RunFilter, project_id: uuid.UUID | None = None) -> Slice[Run]:
    """Newest first unless the filter has another order. `project_id`: unless the filter names a project."""
    return slice_of(
        session,
        _filtered(session, filter, project_id),
        RUN_TABLE.sort_keys(filter.sort),
        after=filter.after,
        limit=filter.limit,
    )


def list_runs(
    session: Session, filter: RunFilter, columns: Sequence[Field], project_id: uuid.UUID | None = None
) -> Slice[ListedItem[Run]]:
    """Return the runs as `runs` does, pinned ones first, with the values of fields."""
    return RUN_TABLE.read(
        session,
        _filtered(session, filter, project_id),
        columns,
        sort=filter.sort,
        after=filter.after,
        limit=filter.limit,
    )


def _filtered(session: Session, filter: RunFilter, project_id: uuid.UUID | None) -> Select[Run]:
    statement = with_relations(select(Run)).options(
        defer(Run.configuration), defaultload(Run.version).defer(EnvironmentVersion.manifest)
    )
    for column, value in (
        (Run.kind, filter.kind),
        (Run.status, filter.status),
        (Environment.name, filter.environment),
        (Run.version_id, filter.version_id),
        (Run.policy_id, filter.policy_id),
        (Run.project_id, get_project(session, filter.project).id if filter.project else project_id),
    ):
        if value:
            statement = statement.where(column == value)
    statement = statement.where(Run.archived_at.is_not(None) if filter.archived else Run.archived_at.is_(None))
    if filter.text:
        statement = statement.where(Run.name.icontains(filter.text, autoescape=True))
    return RUN_TABLE.select_where(statement, filter.where, filter.tag)


def get_run(session: Session, run_id: uuid.UUID) -> Run:
    """Raises NotFound."""
    run = session.scalars(with_relations(select(Run)).where(Run.id == run_id)).one_or_none()
    if run is None:
        raise NotFound("There is no such run.")
    return run


def find_runs(session: Session, ids: Sequence[uuid.UUID], *options: ORMOption) -> list[Run]:
    """The runs that exist, in this order, with their relations."""
    statement = with_relations(select(Run)).options(*options).where(Run.id.in_(ids))
    known = {run.id: run for run in session.scalars(statement)}
    return [known[run_id] for run_id in ids if run_id in known]


def runs_by_id(session: Session, ids: Sequence[uuid.UUID]) -> Sequence[Run]:
    """Locked, in the order of their ids. Raises NotFound if any does not exist."""
    found = session.scalars(select(Run).where(Run.id.in_(ids)).order_by(Run.id).with_for_update()).all()
    if missing := set(ids) - {run.id for run in found}:
        raise NotFound(f"{len(missing)} of the runs no longer exist, for example {min(missing)}. Nothing was changed.")
    return found


def run_counts(session: Session, policy_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    statement = select(Run.policy_id, func.count(Run.id)).where(Run.policy_id.in_(policy_ids)).group_by(Run.policy_id)
    return {policy_id: count for policy_id, count in session.execute(statement) if policy_id}


def versions(session: Session) -> Sequence[EnvironmentVersion]:
    """All versions of environments that are not archived, newest first within each."""
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(contains_eager(EnvironmentVersion.environment))
        .where(Environment.archived_at.is_(None))
        .order_by(Environment.name, EnvironmentVersion.number.desc())
    )
    return session.scalars(statement).all()


def versions_of(session: Session, run: Run) -> Sequence[EnvironmentVersion]:
    """The run's own version, then the existing versions of its mix, with their environments."""
    parts = [MixPart.model_validate(text) for text in run.configuration.get("mix") or ()]
    if not parts:
        return [run.version]
    named = (and_(Environment.name == part.environment, EnvironmentVersion.number == part.version) for part in parts)
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .where(or_(*named))
        .order_by(Environment.name, EnvironmentVersion.number)
    )
    return [run.version, *session.scalars(statement)]


def names_of(versions: Sequence[EnvironmentVersion]) -> list[str]:
    """Names in the run's curves: with the version if two versions have the same environment."""
    names = [version.environment.name for version in versions]
    return [
        name if names.count(name) == 1 else f"{name}_v{version.number}"
        for name, version in zip(names, versions, strict=True)
    ]


def checkpoints(
    session: Session, *, run_id: uuid.UUID | None = None, policy_id: uuid.UUID | None = None, has_weights: bool = False
) -> Sequence[Checkpoint]:
    """Checkpoints of a run or a policy, or all, in the order of saving. `has_weights`: without pruned ones."""
    statement = select(Checkpoint).options(joinedload(Checkpoint.policy)).order_by(Checkpoint.id)
    if run_id is not None:
        statement = statement.where(Checkpoint.run_id == run_id)
    if policy_id is not None:
        statement = statement.where(Checkpoint.policy_id == policy_id)
    if has_weights:
        statement = statement.where(Checkpoint.pruned_at.is_(None))
    return session.scalars(statement).all()


def setting_changes(session: Session, run_id: uuid.UUID) -> Sequence[SettingChange]:
    """Setting changes of a training run in the order of their requests, each with its requester."""
    statement = select(SettingChange).options(joinedload(SettingChange.asker)).where(SettingChange.run_id == run_id)
    return session.scalars(statement.order_by(SettingChange.id)).all()


def branches_of(session: Session, run_id: uuid.UUID) -> Sequence[Run]:
    """Training runs that start from a checkpoint of this one, oldest first."""
    statement = select(Run).where(Run.source_run_id == run_id, Run.branch_step.is_not(None))
    return session.scalars(statement.options(defer(Run.configuration)).order_by(Run.created_at)).all()


def log_lines(session: Session, run_id: uuid.UUID, *, before: int | None = None) -> list[RunLogLine]:
    """The newest lines (before a line, for paging back), oldest first."""
    statement = select(RunLogLine).where(RunLogLine.run_id == run_id)
    if before is not None:
        statement = statement.where(RunLogLine.id < before)
    return list(reversed(session.scalars(statement.order_by(RunLogLine.id.desc()).limit(LOG_LINES)).all()))
