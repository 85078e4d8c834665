"""Read environments, versions, certificates and drafts. `get_` raises NotFound, `find_` may return None."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.domain.rollouts.fields import Field
from backend.domain.vocabulary import CheckStatus, RunKind
from backend.environments.fields import ENVIRONMENT_TABLE, select_environments
from backend.environments.scaffold import with_generated
from backend.environments.tables import Certificate, Environment, EnvironmentDraft, EnvironmentVersion
from backend.errors import NotFound
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.item_table import ListedItem
from backend.web.paging import Slice

if TYPE_CHECKING:
    from backend.environments.schemas import EnvironmentListQuery


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    environment: Environment
    latest: EnvironmentVersion | None
    versions: int
    runs: Sequence[Run]
    """The latest few, newest first."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of the checks, with the status of its certificate if it has one."""

    run: Run
    status: CheckStatus | None
    version_number: int


DRAFT = "draft"


def find_environment(session: Session, name: str) -> Environment | None:
    return session.scalar(select(Environment).where(Environment.name == name))


def get_environment(session: Session, name: str) -> Environment:
    environment = find_environment(session, name)
    if environment is None:
        raise NotFound(f"There is no environment called {name[:60]!r}.")
    return environment


def get_draft(session: Session, environment: Environment) -> EnvironmentDraft:
    draft = session.get(EnvironmentDraft, environment.id)
    if draft is None:
        raise NotFound(f"{environment.name} has no draft.")
    return draft


def find_version(
    session: Session, environment: Environment, number: int | None = None, *, with_files: bool = False
) -> EnvironmentVersion | None:
    """Return the version of this number. Default: the latest."""
    statement = select(EnvironmentVersion).where(EnvironmentVersion.environment_id == environment.id)
    if number is not None:
        statement = statement.where(EnvironmentVersion.number == number)
    if with_files:
        statement = statement.options(undefer(EnvironmentVersion.files))
    return session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).first()


def get_version(
    session: Session, environment: Environment, number: int | None = None, *, with_files: bool = False
) -> EnvironmentVersion:
    is_storable = number is None or 0 < number < 2**31
    version = find_version(session, environment, number, with_files=with_files) if is_storable else None
    if version is None:
        which = "no published version yet" if number is None else f"no version {number}"
        raise NotFound(f"{environment.name} has {which}.")
    return version


def find_version_of_content(session: Session, environment: Environment, content_hash: str) -> EnvironmentVersion | None:
    statement = select(EnvironmentVersion).where(
        EnvironmentVersion.environment_id == environment.id, EnvironmentVersion.content_hash == content_hash
    )
    return session.scalars(statement.options(joinedload(EnvironmentVersion.publisher))).first()


def versions_of(session: Session, environment: Environment) -> Sequence[EnvironmentVersion]:
    """List versions with their publishers, newest first."""
    statement = (
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.publisher))
        .where(EnvironmentVersion.environment_id == environment.id)
        .order_by(EnvironmentVersion.number.desc())
    )
    return session.scalars(statement).all()


def list_environments(
    session: Session, *, with_archived: bool = False, project_id: uuid.UUID | None = None, tag: str = ""
) -> list[EnvironmentRow]:
    """List environments by name, pinned ones first, each with its latest version and its last runs.

    Default: of all projects, with any tags.
    """
    statement = select(Environment).order_by(Environment.is_pinned.desc(), Environment.name)
    statement = ENVIRONMENT_TABLE.select_where(statement, None, tag)
    statement = _limited(statement, with_archived=with_archived, project_id=project_id)
    return _rows(session, session.scalars(statement).all())


def search_environments(
    session: Session, wanted: "EnvironmentListQuery", columns: Sequence[Field], project_id: uuid.UUID | None = None
) -> Slice[ListedItem[EnvironmentRow]]:
    """Return a page of the environments that pass a filter, pinned ones first. Raises WrongFilter."""
    statement = ENVIRONMENT_TABLE.select_where(select_environments(), wanted.where, wanted.tag)
    statement = _limited(statement, with_archived=wanted.archived, project_id=project_id)
    found = ENVIRONMENT_TABLE.read(
        session, statement, columns, sort=wanted.sort, after=wanted.after, limit=wanted.limit
    )
    rows = _rows(session, [each.item for each in found.items])
    return Slice([ListedItem(row, each.values) for row, each in zip(rows, found.items, strict=True)], found.next)


def _limited(
    statement: Select[Environment], *, with_archived: bool, project_id: uuid.UUID | None
) -> Select[Environment]:
    if not with_archived:
        statement = statement.where(Environment.archived_at.is_(None))
    return statement if project_id is None else statement.where(Environment.project_id == project_id)


def _rows(session: Session, environments: Sequence[Environment]) -> list[EnvironmentRow]:
    """Each of these environments with its latest version and its last runs."""
    of_listed = EnvironmentVersion.environment_id.in_([environment.id for environment in environments])
    count = func.count().over(partition_by=EnvironmentVersion.environment_id)
    versions = (
        select(EnvironmentVersion, count)
        .ext(distinct_on(EnvironmentVersion.environment_id))
        .options(joinedload(EnvironmentVersion.publisher))
        .where(of_listed)
        .order_by(EnvironmentVersion.environment_id, EnvironmentVersion.number.desc())
    )
    latest = {version.environment_id: (version, number) for version, number in session.execute(versions)}
    rank = func.row_number().over(
        partition_by=EnvironmentVersion.environment_id, order_by=(Run.created_at.desc(), Run.id.desc())
    )
    ranked = select(Run.id, rank.label("rank")).join(Run.version).where(of_listed).subquery()
    last_runs = (
        select(Run)
        .join(ranked, ranked.c.id == Run.id)
        .join(Run.version)
        .where(ranked.c.rank <= 5)
        .options(contains_eager(Run.version))
        .order_by(ranked.c.rank)
    )
    runs: dict[uuid.UUID, list[Run]] = {}
    for run in session.scalars(last_runs):
        runs.setdefault(run.version.environment_id, []).append(run)
    rows = []
    for environment in environments:
        version, total = latest.get(environment.id, (None, 0))
        rows.append(EnvironmentRow(environment, version, total, runs.get(environment.id, [])))
    return rows


def newest_certificate(session: Session, version: EnvironmentVersion) -> Certificate | None:
    return next(iter(certificates_of(session, version, limit=1)), None)


def certificates_of(session: Session, version: EnvironmentVersion, limit: int = 100) -> Sequence[Certificate]:
    """List certificates, newest first."""
    statement = select(Certificate).where(Certificate.version_id == version.id)
    return session.scalars(statement.order_by(Certificate.created_at.desc(), Certificate.id.desc()).limit(limit)).all()


def check_runs_of(
    session: Session, environment: Environment, *, version: EnvironmentVersion | None = None, limit: int = 20
) -> list[CheckRun]:
    """List runs of the checks on one version or on any, newest first."""
    statement = (
        select(Run, Certificate.status, EnvironmentVersion.number)
        .join(Run.version)
        .outerjoin(Certificate, Certificate.run_id == Run.id)
        .where(EnvironmentVersion.environment_id == environment.id, Run.kind == RunKind.CHECK)
        .options(joinedload(Run.creator))
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(limit)
    )
    if version is not None:
        statement = statement.where(Run.version_id == version.id)
    return [CheckRun(run, status, number) for run, status, number in session.execute(statement)]


def files_named(session: Session, environment: Environment, name: str) -> dict[str, str]:
    """Return the files of the draft (`draft`), of a version (its number) or of the latest version (empty)."""
    if name == DRAFT or not (name or find_version(session, environment)):
        return with_generated(get_draft(session, environment).files)
    if name and (not name.isdecimal() or len(name) > 9):
        raise NotFound(f"{environment.name} has no version {name[:20]!r}.")
    return get_version(session, environment, int(name) if name else None, with_files=True).files


def person_name(session: Session, person_id: uuid.UUID | None) -> str | None:
    return session.scalar(select(Person.name).where(Person.id == person_id)) if person_id else None
