"""The complete web application on a separate empty database, for real browsers."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy.orm import Session

from backend.app import create_app
from backend.core.embedded import Postgres
from backend.core.session import forget_engine
from backend.settings import PROJECT_ROOT, get_settings
from backend.team.tables import Person, WebSession
from backend.web.identity import hash_secret, new_secret
from tests.web_server import web_served

CHROMIUM = "/usr/bin/chromium"


@contextmanager
def installation() -> Iterator[str]:
    """Serve the application on a separate empty database and return its address."""
    folder = Path(tempfile.mkdtemp(prefix="ps-"))
    (folder / "run").mkdir()
    postgres = Postgres(folder / "postgres", folder / "run", folder / "postgres.log", is_disposable=True)
    postgres.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "PROCTOR_STAGE": "test",
                "PROCTOR_DATA": str(folder),
                "DATABASE_URL": postgres.url(),
            }.items():
                patch.setenv(name, value)
            get_settings.cache_clear()
            forget_engine()
            config = Config(PROJECT_ROOT / "alembic.ini")
            config.set_main_option("sqlalchemy.url", postgres.url().replace("%", "%%"))
            command.upgrade(config, "head")
            other = postgres.url().replace("+psycopg", "").replace("/postgres?", "/template1?")
            with psycopg.connect(other, autocommit=True) as connection:
                connection.execute("CREATE DATABASE separate TEMPLATE postgres")
            with web_served(create_app()) as address:
                yield address
    finally:
        forget_engine()
        get_settings.cache_clear()
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def separate_database() -> Iterator[None]:
    """Let this process use an installation's second database, which has no rows yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", get_settings().database_url.replace("/postgres?", "/separate?"))
        get_settings.cache_clear()
        forget_engine()
        try:
            yield
        finally:
            forget_engine()
    get_settings.cache_clear()


def cookie_for(session: Session, person: Person) -> str:
    secret = new_secret()
    expires_at = datetime.now(UTC) + timedelta(days=1)
    session.add(
        WebSession(person_id=person.id, token_hash=hash_secret(secret), csrf_token=new_secret(), expires_at=expires_at)
    )
    session.flush()
    return secret
