"""Store rollouts in batches in a separate thread, so that the episode loop never waits for Postgres."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import psycopg
import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_exponential

from backend.domain.rollouts.rollout import Rollout
from workers.storage.recorder import RunRecorder, is_refusal

BATCH_ROLLOUTS = 500
BATCH_SECONDS = 0.25
WAITING_ROLLOUTS = 1000
"""Rollouts that wait for the thread. Further episodes keep their slots, so memory stays bounded if Postgres is slow."""
OUTAGE_SECONDS = 60.0
"""Time to wait for a lost database."""

logger = structlog.get_logger(__name__)


class RolloutWriter:
    """Connects the engine with a recorder: `put` is the engine's `on_rollout`.

    Everything that was put is stored at the end, even after an error. Errors of the thread are raised by `put` and at
    the end.
    """

    def __init__(
        self, recorder: RunRecorder, *, after_batch: Callable[[Sequence[Rollout]], None] | None = None
    ) -> None:
        self._recorder = recorder
        self._after_batch = after_batch
        self._waiting: queue.Queue[Rollout | None] = queue.Queue(WAITING_ROLLOUTS)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollout-writer", daemon=True)

    async def __aenter__(self) -> "RolloutWriter":
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._waiting.put, None)
        await asyncio.to_thread(self._thread.join)
        if self._error is not None and error is None:
            raise self._error

    async def put(self, rollout: Rollout) -> None:
        while True:
            if self._error is not None:
                raise self._error
            try:
                self._waiting.put_nowait(rollout)
            except queue.Full:
                await asyncio.sleep(0.01)
            else:
                return

    def _run(self) -> None:
        retrying = Retrying(  # storing twice is harmless, because rows are found by their ids
            retry=retry_if_exception(_is_outage),
            wait=wait_exponential(multiplier=0.2, max=5),
            stop=stop_after_delay(OUTAGE_SECONDS),
            before_sleep=_log_retry,
            reraise=True,
        )
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            if not batch or self._error is not None:
                continue  # after an error the queue is only emptied, so that no episode waits forever
            try:
                retrying(self._recorder.store, batch)
                if self._after_batch is not None:
                    self._after_batch(batch)
            except BaseException as error:
                logger.exception("rollouts could not be stored", lost=len(batch))
                self._error = error

    def _gather(self) -> tuple[list[Rollout], bool]:
        """The next batch, and whether more rollouts can follow."""
        batch: list[Rollout] = []
        first = self._waiting.get()
        if first is None:
            return batch, False
        batch.append(first)
        deadline = time.monotonic() + BATCH_SECONDS
        while len(batch) < BATCH_ROLLOUTS:
            try:
                following = self._waiting.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if following is None:
                return batch, False
            batch.append(following)
        return batch, True


def _is_outage(error: BaseException) -> bool:
    """Whether the connection was lost. Exceeded limits of Postgres have the same class, and waiting does not help."""
    lost = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
    return isinstance(error, lost) and not is_refusal(error)


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("could not store a batch, trying again", error=str(error), attempt=state.attempt_number)
