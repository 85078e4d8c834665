"""A whole installation for tests that commit: a database of its own on the tests' server, and the tests' Valkey."""

from collections.abc import Iterator

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from backend.db.models import Base
from backend.db.session import forget_engine, transaction
from backend.queue import get_celery
from backend.settings import PROJECT_ROOT, get_settings


@pytest.fixture(scope="session")
def jobs_url(database_url: str) -> str:
    """A second migrated database: what job tests commit disturbs nobody."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE jobs")
    url = database_url.replace("/postgres?", "/jobs?")
    config = Config(PROJECT_ROOT / "alembic.ini")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, "head")
    return url


@pytest.fixture
def installation(jobs_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process and those that it starts use the jobs' database and the tests' Valkey."""
    monkeypatch.setenv("DATABASE_URL", jobs_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    _forget_everything()
    with get_celery().connection_for_write() as connection:
        get_celery().control.purge(connection)
    yield
    with transaction() as session:
        session.execute(text(f"TRUNCATE {', '.join(Base.metadata.tables)} CASCADE"))
    _forget_everything()


def _forget_everything() -> None:
    if get_celery.cache_info().currsize:
        get_celery().close()
    get_settings.cache_clear()
    get_celery.cache_clear()
    forget_engine()
