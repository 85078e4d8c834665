"""A small installation for a measurement: Postgres and an env host in a temporary folder, no web, no workers."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config

from backend.core.embedded import Postgres
from backend.core.session import forget_engine
from backend.settings import PROJECT_ROOT, get_settings

READY = b"env host is ready"
START_SECONDS = 60.0


@contextmanager
def installation() -> Iterator[Path]:
    """This process and those that it starts use it; the folder is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pb-"))
    try:
        with _postgres(folder), _env_host(folder):
            yield folder
    finally:
        forget_engine()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _postgres(folder: Path) -> Iterator[None]:
    sockets = folder / "run"
    sockets.mkdir()
    postgres = Postgres(folder / "postgres", sockets, folder / "postgres.log")
    postgres.start()
    try:
        chosen = {"PROCTOR_DATA": str(folder), "DATABASE_URL": postgres.url(), "PROCTOR_STAGE": "test"}
        os.environ.update(chosen)  # noqa: TID251 - settings are read from the environment, here and in children
        get_settings.cache_clear()
        config = Config(PROJECT_ROOT / "alembic.ini")
        config.set_main_option("sqlalchemy.url", postgres.url().replace("%", "%%"))
        command.upgrade(config, "head")
        yield
    finally:
        forget_engine()
        postgres.stop()


@contextmanager
def _env_host(folder: Path) -> Iterator[None]:
    log = folder / "envhost.log"
    with log.open("wb") as output:
        module = [sys.executable, "-m", "workers.environments.host"]
        host = subprocess.Popen(module, cwd=PROJECT_ROOT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while READY not in log.read_bytes():
            if host.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the env host did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield
    finally:
        host.terminate()
        host.wait(20)
