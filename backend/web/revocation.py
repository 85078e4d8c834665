"""Live pages and downloads end with the session or token that they are sent to."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

import anyio
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.core.events import Hub, access_topic
from backend.domain.vocabulary import Role
from backend.web.identity import Actor, find_actor

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""Until the next try where the database did not answer."""
_LONGEST_TIMER_SECONDS = 3600.0
"""Timers are set anew after this long: a wall clock may have been changed."""


class Revocation:
    """Ends streamed responses when their session or token is revoked or expires or its role no longer suffices.

    A NOTIFY on the person's topic or the time of expiry leads to one look at the rows; nothing is polled. An event
    stream ends cleanly, and also when the role changed in any way: the page connects again with what it may see now.
    A download is cut off, so that nobody takes it for complete.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope.setdefault("state", {})  # shared with everything inside
        request = Request(scope, receive)
        watch: _Watch | None = None
        is_event_stream = False
        with anyio.CancelScope() as serving:

            async def watched(message: Message) -> None:
                nonlocal watch, is_event_stream
                if message["type"] == "http.response.start":
                    content_type = Headers(raw=message.get("headers", [])).get("content-type", "")
                    is_event_stream = content_type.startswith("text/event-stream")
                    if is_event_stream:
                        watch = _Watch.begin(request, serving.cancel, is_event_stream=True)
                elif watch is None and message.get("more_body"):
                    watch = _Watch.begin(request, serving.cancel, is_event_stream=False)
                await send(message)

            try:
                await self.app(scope, receive, watched)
            finally:
                if watch is not None:
                    with anyio.CancelScope(shield=True):
                        await watch.stop()
        if serving.cancelled_caught:
            logger.info("access ended during %s %s", scope["method"], scope["path"])
            if is_event_stream:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Watch:
    """Follows the access of one request's actor until `stop`."""

    def __init__(self, request: Request, actor: Actor, end: Callable[[], None], *, is_event_stream: bool) -> None:
        self._request, self._actor, self._end = request, actor, end
        self._needed: Role = getattr(request.state, "needed_role", actor.role)
        self._is_event_stream = is_event_stream
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None
        self._is_outdated = False
        hub: Hub = request.app.state.hub
        self._unsubscribe = hub.subscribe(access_topic(actor.person_id), self._look)

    @classmethod
    def begin(cls, request: Request, end: Callable[[], None], *, is_event_stream: bool) -> "_Watch | None":
        """None for a response to a stranger."""
        actor: Actor | None = getattr(request.state, "actor", None)
        if actor is None:
            return None
        watch = cls(request, actor, end, is_event_stream=is_event_stream)
        watch._look()  # what was revoked since the request was let in has been announced already
        return watch

    async def stop(self) -> None:
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        if self._check is not None:
            self._is_outdated = False
            await asyncio.gather(self._check, return_exceptions=True)

    def _look(self) -> None:
        """One look at a time; news during it lead to another."""
        self._is_outdated = True
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self._look_until_current())

    async def _look_until_current(self) -> None:
        while self._is_outdated:
            self._is_outdated = False
            try:
                actor = await run_in_threadpool(self._find_actor)
            except Exception as error:
                logger.warning("could not check the access of a stream, trying again: %s", error)
                self._look_in(_RETRY_SECONDS)
                return
            if actor is None or not self._suffices(actor):
                self._end()
                return
            if actor.valid_until is not None:
                self._look_in((actor.valid_until - datetime.now(UTC)).total_seconds())

    def _find_actor(self) -> Actor | None:
        with self._request.app.state.transaction() as session:
            return find_actor(session, self._request, is_use=False)

    def _suffices(self, actor: Actor) -> bool:
        return actor.role is self._actor.role if self._is_event_stream else actor.role.includes(self._needed)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = min(max(seconds, 0.0) + 0.01, _LONGEST_TIMER_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)
