"""Convert a database of Proctor 0.1 to the schema of this version: `proctor migrate-data`.

`migrations/from_0_1.sql` runs in one transaction, after a backup. If anything fails, the database stays as it was.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from backend.core.embedded import CannotStart, Postgres
from backend.settings import Settings
from backend.supervisor.data_folder import open_data_folder
from backend.supervisor.preparation import conversion_steps, current_revision, explain_unknown_revision, revisions

KEPT_TABLES = (
    *("people", "environments", "environment_versions", "policies", "runs", "rollouts", "verdicts"),
    *("checkpoints", "exports"),
)
"""Tables whose row counts are compared before the conversion is committed."""
_BACKUP_HEADROOM = 1.1


class CannotMigrate(RuntimeError):
    """The data was not converted and not changed. The message explains why and what to do."""


@dataclass(frozen=True)
class MigratedData:
    revision_before: str
    rows: dict[str, int]
    """Row counts of KEPT_TABLES."""
    backup: Path | None
    """Copy of the embedded database's folder. None: the database is not embedded."""


def migrate_data(
    settings: Settings, data: Path, *, has_backup: bool, report: Callable[[str], None]
) -> MigratedData | None:
    """Back up and convert the embedded database in `data`, or convert the one of DATABASE_URL, which has a backup.

    Returns None if the database already has this version's schema. Raises CannotMigrate.
    """
    if settings.database_url:
        with _connect(settings.database_url) as connection:
            if (revision := find_old_revision(connection)) is None:
                return None
            if not has_backup:
                raise CannotMigrate(
                    "back up the database of DATABASE_URL first, for example with `pg_dump --format=custom`. Then run "
                    "`proctor migrate-data --has-backup`. Nothing was changed"
                )
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchone()
            if row and row[0]:
                raise CannotMigrate(
                    f"{row[0]} other connections to the database are open. Stop every Proctor process (api, workers "
                    "and housekeeping) and close other clients, then try again. Nothing was changed"
                )
            return _convert(connection, revision, backup=None, report=report)

    cluster = data.expanduser().absolute() / "postgres"
    if not (cluster / "PG_VERSION").exists():
        raise CannotMigrate(f"there is no database in {cluster}. Choose the --data folder that `proctor up` used")
    try:
        folder = open_data_folder(data)
        postgres = Postgres(cluster, folder.sockets, folder.logs / "postgres.log")
        with _connect(postgres.url(), postgres) as connection:
            if (revision := find_old_revision(connection)) is None:
                return None
        backup = _copy(cluster, report)
        with _connect(postgres.url(), postgres) as connection:
            return _convert(connection, revision, backup=backup, report=report)
    except CannotStart as error:
        raise CannotMigrate(str(error)) from error


def find_old_revision(connection: psycopg.Connection[TupleRow]) -> str | None:
    """Return the database's revision if Proctor 0.1 wrote it, None if this version did.

    Raises CannotMigrate for an empty database and for one of a newer version.
    """
    revision = current_revision(connection)
    if revision is None:
        raise CannotMigrate("the database is empty: there is nothing to convert")
    if revision in revisions()[0]:
        return None
    if all(step.before != revision for step in conversion_steps()):
        raise CannotMigrate(explain_unknown_revision(revision))
    return revision


def _convert(
    connection: psycopg.Connection[TupleRow], revision: str, *, backup: Path | None, report: Callable[[str], None]
) -> MigratedData:
    steps = conversion_steps()
    steps = steps[[step.before for step in steps].index(revision) :]
    counts = "\nUNION ALL ".join(f"SELECT '{table}', count(*) FROM {table}" for table in KEPT_TABLES).encode()
    report(f"converting the database from revision {revision}")
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '5s'")
            before: dict[str, int] = dict(connection.execute(counts).fetchall())
            for step in steps:
                connection.execute(step.sql.encode())
            connection.execute("UPDATE alembic_version SET version_num = %s", [steps[-1].after])
            after: dict[str, int] = dict(connection.execute(counts).fetchall())
            if lost := [table for table in KEPT_TABLES if after[table] != before[table]]:
                raise CannotMigrate(
                    f"the conversion would change the number of rows in {', '.join(lost)}. It was rolled back and "
                    "nothing was changed. Please report this"
                )
    except psycopg.Error as error:
        raise CannotMigrate(f"the conversion failed and was rolled back; nothing was changed: {error}") from error
    return MigratedData(revision, after, backup)


def _copy(cluster: Path, report: Callable[[str], None]) -> Path:
    """Copy the stopped database's folder next to it. An interrupted copy keeps the suffix `.partial`."""
    backup = cluster.with_name(f"postgres-0.1-{time.strftime('%Y%m%d-%H%M%S')}")
    needed = sum(file.stat().st_size for file in cluster.rglob("*") if file.is_file())
    free = shutil.disk_usage(cluster).free
    if free < needed * _BACKUP_HEADROOM:
        raise CannotMigrate(
            f"the backup needs {needed * _BACKUP_HEADROOM / 1e9:.1f} GB of disk space and {free / 1e9:.1f} GB are free "
            f"in {cluster.parent}. Free some disk space and try again. Nothing was changed"
        )
    report(f"copying the database to {backup}")
    partial = backup.with_name(f"{backup.name}.partial")
    try:
        shutil.copytree(cluster, partial)
        partial.rename(backup)
    except (OSError, shutil.Error) as error:
        raise CannotMigrate(f"cannot copy the database to {backup}: {error}. Nothing was changed") from error
    return backup


@contextmanager
def _connect(url: str, postgres: Postgres | None = None) -> Iterator[psycopg.Connection[TupleRow]]:
    """Connect to a database, whose server is `postgres` if it must be started for that."""
    with ExitStack() as stack:
        if postgres:
            stack.callback(postgres.stop)
            postgres.start()
        try:
            connection = psycopg.connect(url.replace("+psycopg", "", 1), connect_timeout=5, autocommit=True)
        except psycopg.OperationalError as error:
            raise CannotMigrate(f"cannot connect to the database: {error}") from error
        yield stack.enter_context(connection)
