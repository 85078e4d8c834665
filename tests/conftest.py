"""A real Postgres for the tests: one embedded server a session, built by the migrations, one database a worker.

Each test gets a session inside an outer transaction that is rolled back; code under test may commit as usual.
"""

import gc
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from backend.core.embedded import Postgres, Valkey
from backend.core.session import make_engine
from backend.settings import PROJECT_ROOT, get_settings
from tests.sharing import Together

pytest_plugins = ["tests.envhost_fixture", "tests.installation", "tests.ops.standing"]

gc.disable()  # until all is imported: nothing of it is garbage


def pytest_collection_finish() -> None:
    """Modules stay: no collection, which training asks for time and again, walks through them.

    Collections are rare: with Python's own thresholds they took 7% of the time of tests of pages.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules that `-m` excludes as a whole are not imported."""
    excluded = re.findall(r"not (slow|browser)\b", config.option.markexpr)
    if collection_path.is_dir():
        return True if collection_path.name in excluded else None
    if not excluded or collection_path.suffix != ".py":
        return None
    marks = re.search(r"^pytestmark = (.*)", collection_path.read_text(), re.M)
    return True if marks and set(re.findall(r"pytest\.mark\.(\w+)", marks[1])) & set(excluded) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, so that no worker is left alone with them; browsers last, in one piece."""
    items.sort(key=lambda item: ("browser" in item.keywords, "slow" not in item.keywords))


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """A short path: sockets live in it."""
    folder = Path(tempfile.mkdtemp(prefix="pt-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def database_url(server_folder: Path) -> Iterator[str]:
    """An empty, migrated database of this test process; and `committed`, a second one for tests that commit."""
    sockets = server_folder / "run"
    sockets.mkdir()
    postgres = Postgres(server_folder / "postgres", sockets, server_folder / "postgres.log", is_disposable=True)
    postgres.start()
    url = postgres.url()
    with pytest.MonkeyPatch.context() as patch:
        _use(patch, data=server_folder, database_url=url)
        config = Config(PROJECT_ROOT / "alembic.ini")
        config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        command.upgrade(config, "head")
        other = url.replace("+psycopg", "").replace("/postgres?", "/template1?")
        with psycopg.connect(other, autocommit=True) as connection:  # a copy takes a tenth of the time of migrations
            connection.execute("CREATE DATABASE committed TEMPLATE postgres")
        yield url
    postgres.stop()


@pytest.fixture(scope="session")
def redis_url(server_folder: Path) -> Iterator[str]:
    sockets = server_folder / "run"
    sockets.mkdir(exist_ok=True)
    valkey = Valkey(server_folder / "valkey", sockets, server_folder / "valkey.log")
    valkey.start()
    yield valkey.url
    valkey.stop()


def _use(patch: pytest.MonkeyPatch, *, data: Path, database_url: str) -> None:
    """Point the settings of this process at the tests' servers."""
    patch.setenv("PROCTOR_STAGE", "test")
    patch.setenv("PROCTOR_DATA", str(data))
    patch.setenv("DATABASE_URL", database_url)
    get_settings.cache_clear()


@pytest.fixture(scope="session")
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session whose work is rolled back after the test; a commit inside only ends a savepoint."""
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
            yield session
        outer.rollback()
