"""The HTTP servers of workers: the env host's, and those of `proctor serve` and `proctor train-api`."""

import asyncio
import json
import signal
import sys

from aiohttp import web, web_response

HEADER_SECONDS = 30.0
"""A connection without a complete request head is closed after this. Longer than clients keep idle connections, so
that they close them first."""
SHUTDOWN_SECONDS = 2.0
"""Time for open requests when a command's server stops."""

# aiohttp names itself, Python and both versions in every answer, also in those that no application sees
web_response.SERVER_SOFTWARE = "proctor"  # type: ignore[attr-defined]


def make_runner(app: web.Application, *, shutdown_seconds: float) -> web.AppRunner:
    """A runner that logs no requests, ends a handler with its connection and waits for no request forever."""
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=shutdown_seconds,
        keepalive_timeout=HEADER_SECONDS,
    )


async def listen(app: web.Application, host: str, port: int) -> web.AppRunner | None:
    """Serve an application of a command. Returns None after it reported why it cannot listen."""
    runner = make_runner(app, shutdown_seconds=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        report(error=f"cannot listen on {host}:{port}: {error.strerror or error}")
        return None
    return runner


async def wait_until_stopped() -> None:
    """Wait for SIGINT or SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()


def report(**fields: object) -> None:
    """Report to the command that started this process, as a line of JSON on the standard output."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
