"""Packages with one fault each, on the real env host; and a database that jobs may commit to."""

from collections.abc import Iterator

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from backend.db.session import forget_engine, transaction
from backend.settings import PROJECT_ROOT, get_settings
from tests.library.conftest import serve

__all__ = ["serve"]


@pytest.fixture(scope="session")
def judging_url(database_url: str) -> str:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE judging")
    url = database_url.replace("/postgres?", "/judging?")
    config = Config(PROJECT_ROOT / "alembic.ini")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, "head")
    return url


@pytest.fixture
def database(judging_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DATABASE_URL", judging_url)
    _forget()
    yield
    with transaction() as session:
        session.execute(text("TRUNCATE people, environments, policies, runs, jobs, workers CASCADE"))
    _forget()


def _forget() -> None:
    get_settings.cache_clear()
    forget_engine()
