"""Browsers of every role, and purges in the test's transaction with files in a temporary folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.core.row_access import unlimited
from backend.core.tables import Job
from tests.web_fixtures import *  # noqa: F403
from workers.tasks import deletions, housekeeping
from workers.tasks.registry import JobContext


@pytest.fixture
def purging(session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Jobs run in the test's transaction. Returns the folder of artifacts."""

    @contextmanager
    def transaction() -> Iterator[Session]:
        with unlimited(session):
            yield session
            session.flush()
            session.expire_all()

    monkeypatch.setattr(deletions, "transaction", transaction)
    monkeypatch.setattr(deletions, "BATCH", 2)
    monkeypatch.setattr(artifacts, "_filesystem", partial(_local_store, tmp_path))
    return tmp_path


def _local_store(folder: Path, key: str = "") -> tuple[object, str]:
    return LocalFileSystem(), str(folder / key)


def purge(session: Session) -> None:
    with session.begin_nested():
        housekeeping.purge_deleted(session)
    for job in session.scalars(select(Job).where(Job.name == "deletions.purge")):
        deletions.run(JobContext(job.id, None, job.arguments, 1))
