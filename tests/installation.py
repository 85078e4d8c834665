"""For tests that commit: a second database on the tests' server, emptied after each, and with Valkey an installation.

`committed_database` redirects `transaction()` there, in this process and in its children.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from backend.core.queue import get_celery
from backend.core.session import forget_engine, transaction
from backend.core.tables import load_tables
from backend.domain.projects.access import DEFAULT_PROJECT
from backend.settings import get_settings

EMPTY = "SET LOCAL session_replication_role = replica;" + "".join(
    f"DELETE FROM {name};" for name in load_tables().tables if name != "projects"
)
EMPTY += f"DELETE FROM projects WHERE id <> '{DEFAULT_PROJECT}';"
"""Without triggers, in any order: twenty times as fast as TRUNCATE where there are few rows."""


@pytest.fixture(scope="session")
def second_database_url(database_url: str) -> str:
    """Migrated. Commits here do not disturb tests that roll back."""
    return database_url.replace("/postgres?", "/committed?")


@pytest.fixture
def committed_database(second_database_url: str) -> Iterator[str]:
    with committing_to(second_database_url):
        yield second_database_url


@contextmanager
def committing_to(url: str, **variables: str) -> Iterator[None]:
    """Redirect `transaction()`, in this process and in its children, to this database, which is emptied at the end;
    `variables`: further settings until then.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "DATABASE_URL": url}.items():
            patch.setenv(name, value)
        forget_settings()
        yield
        with transaction() as session:
            session.execute(text(EMPTY))
    forget_settings()


@pytest.fixture
def installation(committed_database: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database and an empty broker."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    forget_settings()
    with get_celery().connection_for_write() as connection:
        get_celery().control.purge(connection)
    yield
    forget_settings()


def forget_settings() -> None:
    """Close everything that was made from the previous settings; the next use reads them again."""
    if get_celery.cache_info().currsize:
        get_celery().close()
    get_settings.cache_clear()
    get_celery.cache_clear()
    forget_engine()
