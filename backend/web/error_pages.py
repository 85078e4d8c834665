"""Errors, rendered once: as a page, as a notice for htmx, or as JSON, by who asked."""

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.routing import iter_route_contexts
from psycopg.errors import (
    DatatypeMismatch,
    ProgramLimitExceeded,
    QueryCanceled,
    StatementTooComplex,
    UndefinedFunction,
)
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import AppError, InvalidInput, NotFound, NotSignedIn, TooManyRequests
from backend.web.addresses import page_above
from backend.web.page import page, wants_block
from backend.web.refill import refill

logger = logging.getLogger(__name__)

_TITLES = {
    403: "Not allowed",
    400: "Not readable",
    404: "Not found",
    405: "Not here",
    409: "Changed in the meantime",
    413: "Too large",
    422: "Something needs another look",
    429: "Too many attempts",
    503: "Not running",
    504: "Took too long",
}


@dataclass(frozen=True, slots=True)
class ErrorPage:
    title: str
    message: str
    status: int
    fields: Mapping[str, str]
    incident: str


def install(app: FastAPI) -> None:
    app.add_exception_handler(AppError, _on_app_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(DataError, _on_data_error)
    app.add_exception_handler(OperationalError, _on_operational_error)
    app.add_exception_handler(ProgrammingError, _on_programming_error)
    for kind in (RecursionError, OverflowError, UnicodeError):
        app.add_exception_handler(kind, _on_unreadable_value)
    app.add_middleware(Incidents)


def respond(request: Request, error: AppError, incident: str = "") -> Response:
    """The answer that fits the asker."""
    response = _rendered(request, error, incident)
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    return response


def _rendered(request: Request, error: AppError, incident: str) -> Response:
    fields = error.fields if isinstance(error, InvalidInput) else {}
    if _wants_json(request):
        body = {"error": type(error).__name__, "detail": error.message, "fields": fields}
        headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, NotSignedIn) else None
        return JSONResponse(body | ({"incident": incident} if incident else {}), error.status, headers=headers)
    if isinstance(error, NotSignedIn):
        return _to_sign_in(request)
    title = _TITLES.get(error.status, "Something went wrong")
    context = ErrorPage(title, error.message, error.status, fields, incident)
    if not wants_block(request):
        return page(request, "errors/error.html", context, status=error.status)
    response = page(request, "errors/error.html", context, block="partial", status=error.status)
    response.headers["HX-Reswap"] = "none"
    return response


def _wants_json(request: Request) -> bool:
    is_api = request.url.path.startswith("/api/") or request.url.path == "/mcp"
    return is_api or "application/json" in request.headers.get("accept", "").split(",")[0]


def _to_sign_in(request: Request) -> Response:
    """Back to where the person was: the page itself, or the page on which htmx asked."""
    if wants_block(request):
        try:
            current = urlsplit(request.headers.get("hx-current-url", "/"))
        except ValueError:  # a bracket without its end
            current = urlsplit("/")
        where = current.path + (f"?{current.query}" if current.query else "")
        return Response(status_code=401, headers={"HX-Redirect": f"/sign-in?next={quote(where)}"})
    if request.method != "GET":
        return RedirectResponse("/sign-in", status_code=303)
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/sign-in?next={quote(where)}", status_code=303)


async def _on_app_error(request: Request, error: Exception) -> Response:
    known = cast(AppError, error)
    logger.info("%s: %s", type(known).__name__, known.message)
    return await _respond_with_form(request, known)


async def _respond_with_form(request: Request, error: AppError) -> Response:
    """A page gets its form back, filled in; htmx keeps the form itself and is sent only the messages."""
    form = None if _wants_json(request) or wants_block(request) else await refill(request, error)
    if form is None:
        return respond(request, error)
    if isinstance(error, TooManyRequests):
        form.headers["Retry-After"] = str(error.retry_after_seconds)
    return form


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the framework refuses itself: unknown paths and methods."""
    http = cast(HTTPException, error)
    if http.status_code == 405 and (place := page_above(request)):
        return RedirectResponse(place, status_code=303)
    kind = _KINDS.get(http.status_code)
    known = kind() if kind else AppError(str(http.detail))
    known.status = http.status_code
    response = respond(request, known)
    if http.status_code == 405:
        response.headers["Allow"] = ", ".join(sorted(_methods_at(request)))
    return response


def _methods_at(request: Request) -> set[str]:
    """What the path of a request takes; a path may be several routes, and the framework names the first one's only."""
    found: set[str] = set()
    for context in iter_route_contexts(request.app.routes):
        pattern = compile_path(context.path)[0] if context.path else None
        if pattern is not None and pattern.match(request.url.path):
            found |= set(context.methods or ())
    return found


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """A malformed id in a path is simply nothing there; the rest is named by parameter."""
    items = cast(RequestValidationError, error).errors()
    if any(item["loc"][0] == "path" for item in items):
        if place := page_above(request, is_id_malformed=True):
            return RedirectResponse(place, status_code=303)
        return respond(request, NotFound())
    fields = {".".join(str(part) for part in item["loc"][1:]) or "body": str(item["msg"]) for item in items}
    return await _respond_with_form(request, InvalidInput(fields=fields))


async def _on_data_error(request: Request, error: Exception) -> Response:
    """Postgres cannot hold a value that was sent, and nothing was changed."""
    logger.info("a value that cannot be stored: %s", cast(DataError, error).orig)
    return await _respond_with_form(request, ValueCannotBeStored())


async def _on_programming_error(request: Request, error: Exception) -> Response:
    """An integer beyond 64 bits has no type that Postgres could compare with a column."""
    if not isinstance(cast(ProgrammingError, error).orig, UndefinedFunction | DatatypeMismatch):
        raise error
    return await _on_unreadable_value(request, error)


async def _on_unreadable_value(request: Request, error: Exception) -> Response:
    """Nested too deep, too large a number or date, half a character: what only foreign input brings about. The log
    keeps the traceback, should it be our own fault after all."""
    logger.warning("a value that cannot be read: %s %s", request.method, request.url.path, exc_info=error)
    return respond(request, ValueCannotBeStored())


def is_timeout(error: OperationalError) -> bool:
    """Did the statement run into the web's time limit?"""
    return isinstance(error.orig, QueryCanceled)


async def _on_operational_error(request: Request, error: Exception) -> Response:
    """A statement that took too long is ended, so that no page keeps the database busy."""
    if isinstance(cast(OperationalError, error).orig, ProgramLimitExceeded | StatementTooComplex):
        return await _on_unreadable_value(request, error)
    if not is_timeout(cast(OperationalError, error)):
        raise error
    logger.warning("a statement took too long: %s %s", request.method, request.url.path)
    return respond(request, TookTooLong())


class Unreadable(AppError):
    """The request cannot be read: its body is malformed or does not have the declared type."""

    status = 400


class WrongMethod(AppError):
    """This address does not take this method."""

    status = 405


class TooLarge(AppError):
    """The body is larger than this address takes. Send less, or send it in parts."""

    status = 413


_KINDS: dict[int, type[AppError]] = {400: Unreadable, 404: NotFound, 405: WrongMethod, 413: TooLarge}
"""What the framework refuses, in our words."""


class TookTooLong(AppError):
    """This took the database too long and was ended. Ask for less: a narrower filter, a smaller run, fewer groups."""

    status = 504


class ValueCannotBeStored(InvalidInput):
    """A value here cannot be stored or searched for: it is out of range, nested too deep or has a NUL character."""


class OneForm:
    """The framework refuses a body that is too large outside of all handlers, as plain text: here it gets our form."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        is_replaced = False

        async def replace(message: Message) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start" and message["status"] == 413:
                is_replaced = Headers(raw=message["headers"]).get("content-type", "").startswith("text/plain")
                if is_replaced:
                    return await respond(Request(scope), TooLarge())(scope, receive, send)
            if not is_replaced:
                await send(message)

        await self.app(scope, receive, replace)


class Incidents:
    """An unknown exception becomes a page with an incident id, and the log holds the same id with the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, note_start)
        except ClientDisconnect:
            logger.info("the client went away: %s %s", scope["method"], scope["path"])
        except Exception:
            incident = secrets.token_hex(4)
            logger.exception("incident %s: %s %s", incident, scope["method"], scope["path"])
            if started:
                raise
            error = AppError("An error that nobody foresaw. It was recorded; nothing was half-written.")
            await respond(Request(scope, receive), error, incident)(scope, receive, send)
