"""Event loops inside jobs: uvloop's if it is installed."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from workers.tasks.execute import INTERRUPT, Interrupted

try:
    import uvloop
except ImportError:
    _new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_loop = uvloop.new_event_loop

T = TypeVar("T")


def run_async(main: Coroutine[object, None, T]) -> T:
    """`asyncio.run` for a job's body: an interrupt cancels `main`, waits for its clean-up and raises Interrupted.

    An exception that a signal handler raises could arise in one of asyncio's callbacks, which would only log it.
    """
    handler = signal.getsignal(INTERRUPT)
    was_interrupted = False

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal was_interrupted
            if not was_interrupted:  # once: the clean-up must not be interrupted too
                was_interrupted = True
                task.cancel()

        loop.add_signal_handler(INTERRUPT, interrupt)
        try:
            return await main
        finally:
            loop.remove_signal_handler(INTERRUPT)
            signal.signal(INTERRUPT, handler)

    is_interruptible = callable(handler) and threading.current_thread() is threading.main_thread()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            return runner.run(guarded() if is_interruptible else main)
        except asyncio.CancelledError:
            if was_interrupted:
                raise Interrupted from None
            raise
