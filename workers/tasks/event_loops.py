"""Event loops inside jobs: uvloop's where it is installed."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from workers.tasks.execute import INTERRUPT, Interrupted

try:
    import uvloop
except ImportError:
    _new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_loop = uvloop.new_event_loop

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for a job's body: an interrupt cancels `main`, whose clean-up then runs, and comes out of it.

    The exception that a signal handler raises may arise in one of asyncio's callbacks, which would only log it.
    """
    handler = signal.getsignal(INTERRUPT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return _run(main)
    was_interrupted = False

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal was_interrupted
            if not was_interrupted:  # once is enough: the clean-up must not be interrupted too
                was_interrupted = True
                task.cancel()

        loop.add_signal_handler(INTERRUPT, interrupt)
        try:
            return await main
        finally:
            loop.remove_signal_handler(INTERRUPT)
            signal.signal(INTERRUPT, handler)

    try:
        return _run(guarded())
    except asyncio.CancelledError:
        if was_interrupted:
            raise Interrupted from None
        raise


def _run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)
