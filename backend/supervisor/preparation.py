"""Prepare the database before Proctor serves: `python -m backend.supervisor.preparation [--local]`, at every start.

Migrates, then creates missing built-in environments, scripted policies and, until the first sign-in, a sign-in link;
with `--local` also the command line's token. Prints each step on standard output as a line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from backend.core.logs import configure_logging
from backend.settings import PROJECT_ROOT, get_settings

WAIT_SECONDS = 120.0
_MIGRATION_LOCK = 7_305_001
"""Key of the advisory lock: an arbitrary number."""
_REVISION = re.compile(r"^revision\b.*?=\s*[\"'](\w+)[\"']", re.MULTILINE)
_DOWN_REVISION = re.compile(r"^down_revision\b.*?=\s*[\"'](\w+)[\"']", re.MULTILINE)
_STEP = re.compile(r"^-- (\w+) -> (\w+)\n", re.MULTILINE)


class CannotPrepare(RuntimeError):
    """The database cannot be used. The message explains why."""


def main() -> None:
    configure_logging("preparation")
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
    try:
        _print_event("migrated", revision=migrate())
        os.nice(5)  # the web starts now
        _print_event("ready", **furnish(is_local="--local" in sys.argv[1:]))
    except CannotPrepare as error:
        _print_event("failed", message=str(error))
        sys.exit(1)


def migrate() -> str:
    """Upgrade the database to the newest revision and return it."""
    known, head = revisions()
    url = get_settings().database_url.replace("postgresql+psycopg://", "postgresql://", 1)
    deadline = time.monotonic() + WAIT_SECONDS  # it may still be starting
    while True:
        try:
            connected = psycopg.connect(url, connect_timeout=5, autocommit=True)
            break
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                raise CannotPrepare(f"the database does not answer: {error}") from error
            time.sleep(0.05)
    with connected as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [_MIGRATION_LOCK])  # several may start at once
        current = current_revision(connection)
        if current is not None and current not in known:
            raise CannotPrepare(explain_unknown_revision(current))
        if current != head:
            from alembic import command
            from alembic.config import Config

            command.upgrade(Config(PROJECT_ROOT / "alembic.ini"), "head")
    return head


def revisions(folder: Path = PROJECT_ROOT / "migrations" / "versions") -> tuple[set[str], str]:
    """Return all revisions and the newest one, read from the files: importing Alembic takes longer than all else."""
    texts = [file.read_text() for file in folder.glob("*.py")]
    known = {match[1] for text in texts if (match := _REVISION.search(text))}
    older = {match[1] for text in texts if (match := _DOWN_REVISION.search(text))}
    (head,) = known - older
    return known, head


def explain_unknown_revision(revision: str) -> str:
    """Return why Proctor does not open a database of this revision, and what to do."""
    this = f"Proctor {version('proctor')}"
    if any(step.before == revision for step in conversion_steps()):
        return (
            f"this database was written by Proctor 0.1 (schema revision {revision}), and {this} cannot open it before "
            "it is converted. Nothing was changed. Run `proctor migrate-data` with the same --data and settings: it "
            "makes a backup, then converts the database. See docs/upgrade.md"
        )
    return (
        f"this database has schema revision {revision}, which {this} does not know: it was written by a newer "
        "version. Nothing was changed. Update Proctor, restore a backup made by this version, or choose another --data"
    )


@dataclass(frozen=True)
class ConversionStep:
    """SQL that takes a database of Proctor 0.1 from one revision to the next."""

    before: str
    after: str
    sql: str


def conversion_steps() -> list[ConversionStep]:
    """Return the sections of `migrations/from_0_1.sql`, oldest revision first."""
    text = (PROJECT_ROOT / "migrations" / "from_0_1.sql").read_text()
    _introduction, *parts = _STEP.split(text)
    return [ConversionStep(*parts[start : start + 3]) for start in range(0, len(parts), 3)]


def furnish(*, is_local: bool) -> dict[str, str | None]:
    """Create everything that the services expect. Idempotent."""
    from backend.core.session import transaction
    from backend.environments.service import import_builtins
    from backend.policies.service import ensure_scripted_policies
    from backend.team.auth import first_admin_link
    from backend.team.service import is_local_token, issue_local_token

    with transaction() as session:
        link = first_admin_link(session)
        file = get_settings().data / "cli-token"
        has_token = file.exists() and is_local_token(session, file.read_text().strip())
        token = issue_local_token(session) if is_local and not has_token else None
    with transaction() as session:
        ensure_scripted_policies(session)
        import_builtins(session)
    return {"link": link, "token": token}


def current_revision(connection: psycopg.Connection[TupleRow]) -> str | None:
    if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def _print_event(event: str, **details: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
