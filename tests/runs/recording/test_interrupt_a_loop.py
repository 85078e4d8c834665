"""A job's event loop obeys an interrupt wherever it arises, and cleans up."""

import asyncio
import os
import subprocess
import time

import pytest

from workers.tasks.execute import INTERRUPT, Interrupted, _interruptible, run_async


async def _spin(cleaned: list[str]) -> None:
    """Nearly all the time is spent in callbacks of the loop, not in this task."""
    loop = asyncio.get_running_loop()

    def callback() -> None:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        loop.call_soon(callback)

    callback()
    try:
        await asyncio.sleep(5)
    finally:
        await asyncio.sleep(0.01)
        cleaned.append("yes")


def test_an_interrupt_in_the_middle_of_a_callback_is_obeyed() -> None:
    cleaned: list[str] = []
    with _interruptible():
        # from another process: a thread of this one would only get to run between two callbacks
        sender = subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -{INTERRUPT.value} {os.getpid()}"])
        with pytest.raises(Interrupted):
            run_async(_spin(cleaned))
    sender.wait()
    assert cleaned == ["yes"]


def test_afterwards_an_interrupt_is_raised_again() -> None:
    async def answer() -> int:
        return 42

    with _interruptible():
        assert run_async(answer()) == 42
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), INTERRUPT)


def test_its_own_cancellation_stays_one() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with _interruptible(), pytest.raises(asyncio.CancelledError):
        run_async(cancelled())
