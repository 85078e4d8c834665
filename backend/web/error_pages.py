"""Errors, rendered once: as a page, as a notice for htmx, or as JSON, depending on the request."""

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
from sqlalchemy.exc import DataError, DBAPIError, OperationalError, ProgrammingError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import AppError, InvalidInput, NotFound, NotSignedIn, TooManyRequests
from backend.web.moved import new_address
from backend.web.page import page, wants_block
from backend.web.refill import refill
from backend.web.routing import page_above

logger = logging.getLogger(__name__)

_TITLES = {
    400: "Unreadable request",
    403: "Not allowed",
    404: "Not found",
    405: "Wrong method",
    409: "Changed in the meantime",
    413: "Too large",
    422: "Check your input",
    429: "Too many attempts",
    503: "Not running",
    504: "Took too long",
}
_UNREADABLE = (ProgramLimitExceeded, StatementTooComplex, UndefinedFunction, DatatypeMismatch)
"""Postgres: an expression that is too large, or an integer beyond 64 bits that no type can be compared with."""


class Unreadable(AppError):
    """The request cannot be read: its body is malformed or does not have the declared type."""

    status = 400


class WrongMethod(AppError):
    """This address does not accept this method."""

    status = 405


class TooLarge(AppError):
    """The body exceeds the size limit of this address. Send less, or send it in parts."""

    status = 413


class TookTooLong(AppError):
    """The database query took too long and was canceled. Use a narrower filter, a smaller run or fewer groups."""

    status = 504


class ValueCannotBeStored(InvalidInput):
    """A value cannot be stored or searched for: it is out of range, nested too deep or has a NUL character."""


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
    for kind in (DataError, OperationalError, ProgrammingError, RecursionError, OverflowError, UnicodeError):
        app.add_exception_handler(kind, _on_hostile_value)
    app.add_middleware(Incidents)


def respond(request: Request, error: AppError, incident: str = "") -> Response:
    """Render an error as JSON, as a page or as a notice for htmx."""
    fields = error.fields if isinstance(error, InvalidInput) else {}
    response: Response
    if _wants_json(request):
        body = {"error": type(error).__name__, "detail": error.message, "fields": fields}
        headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, NotSignedIn) else None
        response = JSONResponse(body | ({"incident": incident} if incident else {}), error.status, headers=headers)
    elif isinstance(error, NotSignedIn):
        if wants_block(request):  # after sign-in, return to the page on which htmx made the request
            try:
                current = urlsplit(request.headers.get("hx-current-url", "/"))
            except ValueError:  # an unclosed bracket
                current = urlsplit("/")
            path = current.path + (f"?{current.query}" if current.query else "")
            response = Response(status_code=401, headers={"HX-Redirect": f"/sign-in?next={quote(path)}"})
        else:
            path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            back = f"?next={quote(path)}" if request.method == "GET" else ""
            response = RedirectResponse(f"/sign-in{back}", status_code=303)
    else:
        title = _TITLES.get(error.status, "Something went wrong")
        context = ErrorPage(title, error.message, error.status, fields, incident)
        is_block = wants_block(request)
        block = "partial" if is_block else None
        response = page(request, "errors/error.html", context, block=block, status=error.status)
        if is_block:
            response.headers["HX-Reswap"] = "none"
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    return response


def _wants_json(request: Request) -> bool:
    is_api = request.url.path.startswith("/api/") or request.url.path == "/mcp"
    return is_api or "application/json" in request.headers.get("accept", "").split(",")[0]


async def _respond_with_form(request: Request, error: AppError) -> Response:
    """A page gets its form back, filled in. htmx keeps the form and gets only the messages."""
    form = None if _wants_json(request) or wants_block(request) else await refill(request, error)
    if form is None:
        return respond(request, error)
    if isinstance(error, TooManyRequests):
        form.headers["Retry-After"] = str(error.retry_after_seconds)
    return form


async def _on_app_error(request: Request, error: Exception) -> Response:
    known = cast(AppError, error)
    logger.info("%s: %s", type(known).__name__, known.message)
    return await _respond_with_form(request, known)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Render what the framework refuses itself: unknown paths and methods, unreadable and too large bodies."""
    http = cast(HTTPException, error)
    if http.status_code == 405 and (place := page_above(request)):
        return RedirectResponse(place, status_code=303)
    if http.status_code == 404 and (address := new_address(request)):
        return RedirectResponse(address, status_code=308)  # with the same method and body
    kinds: dict[int, type[AppError]] = {400: Unreadable, 404: NotFound, 405: WrongMethod, 413: TooLarge}
    kind = kinds.get(http.status_code)
    known = kind() if kind else AppError(str(http.detail))
    known.status = http.status_code
    response = respond(request, known)
    if http.status_code == 405:  # several routes may share a path; the framework names only the first one's methods
        methods: set[str] = set()
        for context in iter_route_contexts(request.app.routes):
            if context.path and compile_path(context.path)[0].match(request.url.path):
                methods |= set(context.methods or ())
        response.headers["Allow"] = ", ".join(sorted(methods))
    return response


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """A malformed id in a path means that there is nothing; other errors are listed by parameter."""
    items = cast(RequestValidationError, error).errors()
    if any(item["loc"][0] == "path" for item in items):
        if place := page_above(request, is_id_malformed=True):
            return RedirectResponse(place, status_code=303)
        return respond(request, NotFound())
    fields = {".".join(str(part) for part in item["loc"][1:]) or "body": str(item["msg"]) for item in items}
    return await _respond_with_form(request, InvalidInput(fields=fields))


async def _on_hostile_value(request: Request, error: Exception) -> Response:
    """Refuse values that Postgres cannot hold, compare or find in time, and text or numbers that cannot be read."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(error, DataError):  # nothing was changed
        logger.info("a value that cannot be stored: %s", cause)
        return await _respond_with_form(request, ValueCannotBeStored())
    if isinstance(error, OperationalError) and is_timeout(error):  # canceled, so that no page keeps the database busy
        logger.warning("a statement took too long: %s %s", request.method, request.url.path)
        return respond(request, TookTooLong())
    if isinstance(error, DBAPIError) and not isinstance(cause, _UNREADABLE):
        raise error
    # only hostile input causes this; the log keeps the traceback in case the fault is ours
    logger.warning("a value that cannot be read: %s %s", request.method, request.url.path, exc_info=error)
    return respond(request, ValueCannotBeStored())


def is_timeout(error: OperationalError) -> bool:
    """Whether the statement exceeded the web's time limit."""
    return isinstance(error.orig, QueryCanceled)


class OwnTooLarge:
    """Replaces the framework's plain-text refusal of a too large body, which passes no handler, by ours."""

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
    """Turns an unknown exception into a page with an incident id; the log has the same id with the traceback."""

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
            logger.info("the client disconnected: %s %s", scope["method"], scope["path"])
        except Exception:
            incident = secrets.token_hex(4)
            logger.exception("incident %s: %s %s", incident, scope["method"], scope["path"])
            if started:
                raise
            error = AppError("An unexpected error occurred. It was logged, and nothing was changed.")
            await respond(Request(scope, receive), error, incident)(scope, receive, send)
