"""The HTTP servers of workers: the env host's and that of `proctor serve`."""

from aiohttp import web, web_response

HEADER_SECONDS = 30.0
"""A connection without a complete request head is closed after this. Longer than clients keep idle connections, so
that they close them first."""

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
