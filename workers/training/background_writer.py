"""Writing behind the training: what a step leaves is stored while the next one is played."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import structlog

logger = structlog.get_logger(__name__)


class BackgroundWriter:
    """One thread that writes in order, at most one step behind. What goes wrong there is raised at the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="storing")
        self._last: Future[None] | None = None

    def write(self, work: Callable[[], None]) -> None:
        """Begin this work once the one before is done."""
        self.wait()
        self._last = self._thread.submit(work)

    def wait(self) -> None:
        """Until everything is written: before a state is called complete, and before what refers to it is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
            logger.exception("the last step could not be stored")  # what ended the training is the greater news
        finally:
            self._thread.shutdown()
