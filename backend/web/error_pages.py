"""Errors, rendered once: as a page, as a notice for htmx, or as JSON, depending on the request."""

import logging
import secrets
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import AppError, InvalidInput, NotFound, NotSignedIn, TooManyRequests
from backend.web.docs_links import section_about_error
from backend.web.field_messages import sentence_about
from backend.web.page import page, wants_block
from backend.web.refill import refill
from backend.web.routing import new_address, page_above

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
_HOSTILE = (DataError, OperationalError, ProgrammingError, RecursionError, OverflowError, UnicodeError)
"""Causes: values that Postgres cannot hold, compare or find in time, and text or numbers that cannot be read."""
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


def install(app: FastAPI) -> None:
    for kind in (AppError, HTTPException, RequestValidationError, *_HOSTILE):
        app.add_exception_handler(kind, _on_error)
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
        context = {"title": title, "message": error.message, "status": error.status, "fields": fields}
        context |= {"incident": incident, "docs_url": section_about_error(error, request.url.path)}
        response = page(request, "errors/error.html", context, block="partial", status=error.status)
        if wants_block(request):
            response.headers["HX-Reswap"] = "none"
    return response


def _wants_json(request: Request) -> bool:
    is_api = request.url.path.startswith("/api/") or request.url.path == "/mcp"
    return is_api or "application/json" in request.headers.get("accept", "").split(",")[0]


async def _on_error(request: Request, error: Exception) -> Response:
    """Respond to a refusal. A page gets its form back, filled in; htmx keeps the form and gets only the messages."""
    refusal: AppError
    match error:
        case AppError():
            logger.info("%s: %s", type(error).__name__, error.message)
            refusal = error
        case HTTPException():
            return _respond_to_framework(request, error)
        case RequestValidationError():
            items = error.errors()
            if any(item["loc"][0] == "path" for item in items):  # a malformed id: there is nothing
                place = page_above(request, is_id_malformed=True)
                return RedirectResponse(place, status_code=303) if place else respond(request, NotFound())
            fields = {".".join(str(part) for part in item["loc"][1:]) or "body": sentence_about(item) for item in items}
            refusal = InvalidInput(fields=fields)
        case DataError():  # nothing was changed
            logger.info("a value that cannot be stored: %s", error.orig)
            refusal = ValueCannotBeStored()
        case OperationalError() if is_timeout(error):  # canceled, so that no page keeps the database busy
            logger.warning("a statement took too long: %s %s", request.method, request.url.path)
            return respond(request, TookTooLong())
        case DBAPIError() if not isinstance(error.orig, _UNREADABLE):
            raise error
        case _:  # only hostile input causes this; the log keeps the traceback in case the fault is ours
            logger.warning("a value that cannot be read: %s %s", request.method, request.url.path, exc_info=error)
            return respond(request, ValueCannotBeStored())
    form = None if _wants_json(request) or wants_block(request) else await refill(request, refusal)
    response = form or respond(request, refusal)
    if isinstance(refusal, TooManyRequests):
        response.headers["Retry-After"] = str(refusal.retry_after_seconds)
    return response


def _respond_to_framework(request: Request, error: HTTPException) -> Response:
    """Render what the framework refuses itself: unknown paths and methods, unreadable and too large bodies."""
    status = error.status_code
    if status == 405 and (place := page_above(request)):
        return RedirectResponse(place, status_code=303)
    if status == 404 and (address := new_address(request)):
        return RedirectResponse(address, status_code=308)  # with the same method and body
    kinds: dict[int, type[AppError]] = {400: Unreadable, 404: NotFound, 405: WrongMethod, 413: TooLarge}
    known = kinds[status]() if status in kinds else AppError(str(error.detail))
    known.status = status
    response = respond(request, known)
    if status == 405:  # several routes may share a path; the framework names only the first one's methods
        methods: set[str] = set()
        for route in request.app.routes:
            if isinstance(route, APIRoute) and route.path_regex.match(request.url.path):
                methods |= set(route.methods or ())
        response.headers["Allow"] = ", ".join(sorted(methods))
    return response


def is_timeout(error: OperationalError) -> bool:
    """Whether the statement exceeded the web's time limit."""
    return isinstance(error.orig, QueryCanceled)


@dataclass
class OwnTooLarge:
    """Replaces the framework's plain-text refusal of a too large body, which passes no handler, by ours."""

    app: ASGIApp

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


@dataclass
class Incidents:
    """Turns an unknown exception into a page with an incident id; the log has the same id with the traceback."""

    app: ASGIApp

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
