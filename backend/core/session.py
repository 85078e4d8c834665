"""The engine and `transaction()`: one request or one job step is one transaction, committed here and nowhere else."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from backend.domain.text import json_text
from backend.settings import get_settings

logger = logging.getLogger(__name__)

WEB_STATEMENT_TIMEOUT_MS = 10_000
THREADPOOL_SIZE = 40
"""Starlette's worker threads. Each may hold one connection."""

_AFTER_COMMIT = "after_commit"


def make_engine(url: str, *, statement_timeout_ms: int = 0) -> Engine:
    return create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1),  # psycopg 3, for a plain URL too
        pool_size=10,
        max_overflow=THREADPOOL_SIZE - 10 + 5,
        pool_pre_ping=True,
        json_serializer=json_text,
        # compiling a statement would take longer than ours should run
        connect_args={"options": f"-c statement_timeout={statement_timeout_ms} -c timezone=UTC -c jit=off"},
    )


@lru_cache(maxsize=1)
def get_engine() -> Engine:
    return make_engine(get_settings().database_url)


def forget_engine(*, is_forked: bool = False) -> None:
    """Read the settings again at the next use. After a fork, the parent's connections stay open."""
    if get_engine.cache_info().currsize:
        get_engine().dispose(close=not is_forked)
    get_engine.cache_clear()


def after_commit(session: Session, send: Callable[[], None]) -> None:
    """Call `send` once the transaction is committed, never when it is rolled back."""
    session.info.setdefault(_AFTER_COMMIT, []).append(send)


@contextmanager
def transaction() -> Iterator[Session]:
    """One request or one job step. Queued jobs are sent only after the commit."""
    with Session(get_engine(), expire_on_commit=False) as session:
        with session.begin():
            yield session
        run_after_commit(session)


def run_after_commit(session: Session) -> None:
    """Send everything that waited for the commit. A failure is logged: housekeeping sends it again from the row."""
    for send in session.info.pop(_AFTER_COMMIT, ()):
        try:
            send()
        except Exception as error:
            logger.warning("could not send a wake-up; housekeeping will: %s: %s", type(error).__name__, error)
            logger.debug("where the wake-up failed", exc_info=True)
