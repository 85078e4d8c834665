"""Routes of operations: JSON under `/api/v1`, and the forms of pages."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi import Request as HttpRequest
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import ValidationError

from backend.operations.declaration import Operation
from backend.operations.schemas import Download, Progress
from backend.web.dependencies import RequireRole, SessionDep, limited_transaction
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import see_other

PREFIX = "/api/v1"
_FIELD = re.compile(r"{(\w+)}")
_VERBS = {"PUT": "edit", "PATCH": "edit", "DELETE": "delete"}
"""HTML forms can only POST, so changes and deletions have separate addresses."""


def add_json_routes(router: APIRouter, operations: Iterable[Operation]) -> None:
    """Add a route for each operation to the app's own router: FastAPI builds the routes of included routers twice.

    Literal segments come before parameters in the same place.
    """
    for operation in sorted(
        operations, key=lambda each: [(part.startswith("{"), part) for part in each.path.split("/")]
    ):
        result = operation.result
        generic = getattr(result, "__pydantic_generic_metadata__", None)
        item = generic["args"][0] if generic and generic["args"] else result  # of a page of items
        is_progress = isinstance(result, type) and issubclass(result, Progress)
        known = {
            "role": operation.role.value,
            "command": operation.command,
            "tool": operation.tool or None,
            "poll": operation.poll,
            "notice": operation.notice or None,
            "columns": getattr(item, "table_columns", None) or None,
            "empty": getattr(item, "table_empty", None) or None,
            "limit": getattr(operation.request, "command_limit", None),
            "waits": (operation.waits and operation.poll is not None and is_progress) or None,
            "downloads": result is Download or None,
            "uploads": operation.uploads or None,
        }  # what the command line, the client and agents need beyond OpenAPI
        extra: dict[str, Any] = {"x-proctor": {name: value for name, value in known.items() if value is not None}}
        if operation.uploads and operation.request:  # FastAPI does not see the body of an operation that takes files
            schema = operation.request.model_json_schema(ref_template="#/components/schemas/{model}")
            for name in operation.uploads:
                schema["properties"][name] |= {"format": "binary"}
            content = {"multipart/form-data": {"schema": schema}}
            extra["requestBody"] = {"required": True, "content": content}
        router.add_api_route(
            PREFIX + operation.path,
            _endpoint(operation, is_form=bool(operation.uploads)),
            methods=[operation.method],
            status_code=operation.status,
            response_model=None if operation.status == 204 or result is Download else result,
            max_body_size=operation.max_body_size,
            name=operation.function.__name__,
            operation_id=f"{operation.noun}.{operation.name}",
            summary=operation.summary.split("\n")[0],
            description=operation.summary,
            tags=[operation.noun],
            openapi_extra=extra,
        )


def add_form_routes(router: APIRouter, operations: Iterable[Operation]) -> None:
    """Add a route for each operation with a page: a POST of the page's form calls it and shows the page."""
    for operation in operations:
        if operation.page is None:
            continue
        path = operation.path if operation.method == "POST" else f"{operation.path}/{_VERBS[operation.method]}"
        router.add_api_route(
            path,
            _endpoint(operation, is_form=True, shows_page=True),
            methods=["POST"],
            response_class=HTMLResponse,
            include_in_schema=False,
            max_body_size=operation.max_body_size,
            name=f"{operation.function.__name__}_form",
        )


def _endpoint(operation: Operation, *, is_form: bool, shows_page: bool = False) -> Callable[..., object]:
    """Return a function whose signature declares for FastAPI what to read and which role to check."""

    def endpoint(http: HttpRequest, session: SessionDep, actor: Actor, **arguments: object) -> object:
        result = operation.run(session, actor, arguments)
        if shows_page:
            url, notice = (
                _FIELD.sub(lambda name: str(getattr(result, name[1], arguments.get(name[1], ""))), text)
                for text in (operation.page or "/", operation.notice)
            )
            return see_other(url, notice)
        return stream_download(http, result) if isinstance(result, Download) else result

    hints = inspect.signature(operation.function, eval_str=True).parameters
    annotations: dict[str, object] = {
        "http": HttpRequest,
        "actor": Annotated[
            Actor, Depends(RequireRole(operation.role, is_elsewhere=bool(operation.rows) or operation.in_project))
        ],
        "session": SessionDep,
        **{
            name: Annotated[str, Path(description=rows.description, max_length=200)]
            for name, rows in operation.rows.items()
        },
        **{name: hints[name].annotation for name in operation.plain},
    }
    if model := operation.request:
        if is_form:
            source = Depends(read_form(model))
        elif operation.method in {"GET", "DELETE"}:
            source = Query()
        else:
            try:
                model()
                source = Body(default_factory=model)
            except ValidationError:
                source = Body()
        annotations["request"] = Annotated[model, source]
    endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation) for name, annotation in annotations.items()]
    )
    endpoint.__doc__ = operation.summary
    return endpoint


def stream_download(http: HttpRequest, download: Download) -> StreamingResponse:
    """Send a file while it is written, in a separate transaction."""

    def content() -> Iterator[bytes]:
        with limited_transaction(http) as session:
            yield from download.content(session)

    headers = {"Content-Disposition": f'attachment; filename="{download.name}"', "Cache-Control": "no-store"}
    return StreamingResponse(content(), media_type=download.media_type, headers=headers)
