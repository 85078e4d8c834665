"""Middleware: security headers, secure cookies, the refusal of cross-site changes, and the end of revoked streams."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import anyio
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.core.events import topic_of
from backend.domain.vocabulary import Role
from backend.settings import get_settings
from backend.web.dependencies import ForgedRequest, in_transaction, is_cross_site
from backend.web.error_pages import respond
from backend.web.identity import Actor, find_actor
from backend.web.refill import RECEIVED_HEADERS

logger = logging.getLogger(__name__)

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_TLS_HEADERS = _HEADERS | {"Strict-Transport-Security": "max-age=31536000"}
"""One year. Without `includeSubDomains`: other hosts of the domain are not Proctor's."""
_ORIGIN = re.compile(r"^https?://[^/]*")
_OUR_COOKIES = "proctor_"
_HOST_PREFIX, _SECURE_PREFIX = "__Host-", "__Secure-"
"""Browsers accept cookies with these prefixes only over TLS, so that no other host can plant them."""


@dataclass
class Guard:
    """Refuses cross-site changes before any route runs, and adds the security headers to every response.

    Over TLS, our cookies have a prefixed name in the browser and their plain name in the application.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        is_secure = scope["scheme"] == "https" or get_settings().has_secure_cookies
        if is_secure:
            scope[RECEIVED_HEADERS] = scope["headers"]
            scope["headers"] = [  # in place: outer layers share the scope
                (name, _plain_cookies(value) if name == b"cookie" else value) for name, value in scope["headers"]
            ]
        request = Request(scope, receive)
        is_htmx = request.headers.get("hx-request") == "true"

        async def decorated(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_secure:
                    message["headers"] = [
                        (name, _secure_cookie(value) if name == b"set-cookie" else value)
                        for name, value in message["headers"]
                    ]
                headers = MutableHeaders(scope=message)
                for name, value in (_TLS_HEADERS if is_secure else _HEADERS).items():
                    headers.setdefault(name, value)
                if is_htmx and message["status"] == 303:
                    # fetch would follow a 303 and swap the whole next page into the form
                    message["status"] = 200
                    address, _, place = headers["location"].partition("#")
                    shown = request.headers.get("hx-current-url", "").partition("#")[0]
                    if place and address == _ORIGIN.sub("", shown):
                        headers["HX-Refresh"] = "true"  # to another place of the shown page, a browser only scrolls
                    else:
                        headers["HX-Redirect"] = headers["location"]
                    del headers["location"]
            await send(message)

        app = respond(request, ForgedRequest()) if is_cross_site(request) else self.app
        await app(scope, receive, decorated)


def _plain_cookies(header: bytes) -> bytes:
    """Give our cookies their plain names, and drop those of them that arrived without a prefix."""
    kept = []
    for cookie in header.decode("latin-1").split(";"):
        plain = cookie.strip().removeprefix(_HOST_PREFIX).removeprefix(_SECURE_PREFIX)
        if plain != cookie.strip() or not plain.startswith(_OUR_COOKIES):
            kept.append(plain)
    return "; ".join(kept).encode("latin-1")


def _secure_cookie(header: bytes) -> bytes:
    """Prefix the name of our cookie, and mark it as secure."""
    cookie = header.decode("latin-1")
    if not cookie.startswith(_OUR_COOKIES):
        return header
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    prefix = _HOST_PREFIX if "path=/" in attributes else _SECURE_PREFIX
    return (prefix + cookie + ("" if "secure" in attributes else "; Secure")).encode("latin-1")


@dataclass
class Revocation:
    """Ends streamed responses when their session or token is revoked or expires, or its role no longer suffices.

    A NOTIFY on the member's topic or the time of expiry triggers one check of the rows; nothing is polled. An event
    stream ends cleanly, and also when the role changed in any way: the page reconnects with what it may see now.
    A download is cut off, so that it is not mistaken for complete.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope.setdefault("state", {})  # shared with everything inside
        request = Request(scope, receive)
        watch: asyncio.Task[None] | None = None
        watching = anyio.CancelScope()
        is_event_stream = False
        with anyio.CancelScope() as serving:

            async def watched(message: Message) -> None:
                nonlocal watch, is_event_stream
                is_start = message["type"] == "http.response.start"
                if is_start:
                    content_type = Headers(raw=message.get("headers", [])).get("content-type", "")
                    is_event_stream = content_type.startswith("text/event-stream")
                is_streamed = is_event_stream if is_start else watch is None and message.get("more_body")
                actor: Actor | None = getattr(request.state, "actor", None)
                if is_streamed and actor is not None:
                    access = _watch_access(request, actor, serving.cancel, watching, is_event_stream=is_event_stream)
                    watch = asyncio.create_task(access)
                await send(message)

            try:
                await self.app(scope, receive, watched)
            finally:
                if watch is not None:
                    watching.cancel()  # not the task itself: a check in its thread ends first
                    with anyio.CancelScope(shield=True):
                        await asyncio.gather(watch, return_exceptions=True)
        if serving.cancelled_caught:
            logger.info("access ended during %s %s", scope["method"], scope["path"])
            if is_event_stream:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _watch_access(
    request: Request, actor: Actor, end: Callable[[], None], watching: anyio.CancelScope, *, is_event_stream: bool
) -> None:
    """Call `end` when the actor no longer has the access that the request needed. Runs until `watching` is canceled."""
    needed = getattr(request.state, "needed_role", actor.role)
    find = partial(find_actor, request=request, is_use=False)
    news = asyncio.Event()
    with watching, request.app.state.hub.subscribed(topic_of("access", actor.person_id), news.set):
        while True:  # first at once: a revocation since the request was admitted has already been announced
            news.clear()  # news during a check triggers another
            try:
                found = await run_in_threadpool(in_transaction, request, find)
            except Exception as error:
                logger.warning("could not check the access of a stream, trying again: %s", error)
                pause = 1.0
            else:
                if found is None or not _is_unchanged(found, actor, needed, is_event_stream=is_event_stream):
                    end()
                    return
                pause = 3600.0  # not longer, because the wall clock may change
                if found.valid_until is not None:
                    left = (found.valid_until - datetime.now(UTC)).total_seconds()
                    pause = min(max(left, 0.0) + 0.01, pause)
            with anyio.move_on_after(pause):
                await news.wait()


def _is_unchanged(found: Actor, actor: Actor, needed: Role, *, is_event_stream: bool) -> bool:
    """Whether an open response may continue: an event stream with the same access, a download with enough of it."""
    if found.access == actor.access or is_event_stream:
        return found.access == actor.access
    return found.access.is_uniform and actor.access.is_uniform and found.role.includes(needed)
