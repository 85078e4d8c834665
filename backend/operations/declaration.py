"""Declare operations, and how a segment of an address identifies a row."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from fastapi import UploadFile
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

F = TypeVar("F", bound=Callable[..., object])
Row = TypeVar("Row")

_ROUTE = re.compile(r"(GET|POST|PUT|PATCH|DELETE) (/\S*)")
_SEGMENT = re.compile(r"{(\w+)}")


@dataclass(frozen=True, slots=True)
class RowReference:
    """How a text identifies a row: in an address, a command's argument, a call of the client."""

    find: Callable[[Session, str], object]
    description: str


_REFERENCES: dict[type, RowReference] = {}


def reference(
    row: type[Row], description: str
) -> Callable[[Callable[[Session, str], Row]], Callable[[Session, str], Row]]:
    """Declare the function that finds a row by a text, such as an id or a name. It raises NotFound.

    Operations with a parameter of that row's type take that text in their address.
    """

    def declare(find: Callable[[Session, str], Row]) -> Callable[[Session, str], Row]:
        _REFERENCES[row] = RowReference(find, description)
        return find

    return declare


@dataclass(frozen=True, slots=True)
class Operation:
    """A declared operation. `function` remains an ordinary function that pages and tests may call."""

    method: str
    path: str
    role: Role
    function: Callable[..., object]
    rows: Mapping[str, RowReference]
    """How to find each row of the address, by parameter."""
    request: type[BaseModel] | None
    """Type of the parameter `request`. None: no input except for the address."""
    result: object
    command: str | None
    status: int
    noun: str
    """Its slice: the client's namespace and the tag in the API's description."""
    is_tool: bool
    poll: str | None
    waits: bool
    page: str | None
    notice: str
    audited: bool
    max_body_size: int | None
    """In bytes. None: the app's limit."""
    plain: Sequence[str]
    """Parameters in the address that are not rows."""

    @property
    def name(self) -> str:
        """Name in the client's namespace: `create_grader` of `graders` is `create`."""
        noun = {self.noun, self.noun.removesuffix("s")}
        words = [word for word in self.function.__name__.split("_") if word not in noun]
        return "_".join(words) or self.function.__name__

    @property
    def uploads(self) -> list[str]:
        """Fields of the request that are files."""
        fields = self.request.model_fields if self.request else {}
        return [name for name, field in fields.items() if field.annotation is UploadFile]

    @property
    def summary(self) -> str:
        return inspect.getdoc(self.function) or ""

    def run(self, session: Session, actor: Actor, arguments: Mapping[str, object]) -> object:
        """Find the rows of the address, call the function and record the change in the audit log."""
        found = {name: rows.find(session, str(arguments[name])) for name, rows in self.rows.items()}
        given = {name: value for name, value in arguments.items() if name not in self.rows}
        result = self.function(session, actor, **found, **given)
        if self.audited:  # the subject is the first row of the address, else the new row
            subject, request = next(iter(found.values()), result), given.get("request")
            detail: dict[str, object] = {}
            if isinstance(request, BaseModel):
                sent = request.model_dump(mode="json", exclude_unset=True, exclude=set(self.uploads))
                detail = {
                    key: value
                    for key, value in sent.items()
                    if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 200)
                }
            if name := getattr(subject, "name", None):
                detail["name"] = name
            kind = self.noun.removesuffix("s")
            audit(session, actor, f"{kind}.{self.name}", kind, getattr(subject, "id", ""), **detail)
        return result


_DECLARED: dict[Callable[..., object], Operation] = {}


def operations_of(module: ModuleType) -> list[Operation]:
    """List the operations that a module declares, in their order."""
    return [_DECLARED[each] for each in vars(module).values() if inspect.isfunction(each) and each in _DECLARED]


def operation(
    route: str,
    *,
    role: Role,
    command: str | None = None,
    noun: str | None = None,
    status: int | None = None,
    tool: bool = False,
    poll: str | None = None,
    waits: bool = True,
    page: str | None = None,
    notice: str = "",
    audited: bool | None = None,
    max_body_size: int | None = None,
) -> Callable[[F], F]:
    """Declare an operation: `@operation("POST /graders", role=Role.TRAINER, command="grader create")`.

    The function takes a session, the actor, a row or value for each `{name}` in the route, and at most one `request`.
    A request with a field of type `fastapi.UploadFile` is a multipart form. A result of type `Download` is a file.

    - `command`: words of the command. The rows of the address are its arguments.
    - `noun`: default: the package of the function.
    - `status`: status of a successful response. Default: 200, or 204 if the function returns None.
    - `tool`: whether agents may call it.
    - `poll`: address that returns the current state of a `Progress`, filled from the result's fields.
    - `waits`: whether the command waits until such a result has finished.
    - `page`: the address without `/api/v1` accepts the request as an HTML form, then shows this page with `notice`.
      Both are filled from the result's fields.
    - `audited`: whether calls are recorded in the audit log. Default: all but GET.
    """
    if not (parts := _ROUTE.fullmatch(route)):
        raise ValueError(f"{route!r} is not a method and an address")
    method, path = parts.groups()

    def declare(function: F) -> F:
        hints = get_type_hints(function)
        result = hints.pop("return")
        segments = _SEGMENT.findall(path)
        rows = {name: _REFERENCES[hints[name]] for name in segments if hints[name] in _REFERENCES}
        _DECLARED[function] = Operation(
            method=method,
            path=path,
            role=role,
            function=function,
            rows=rows,
            plain=[name for name in segments if name not in rows],
            request=hints.get("request"),
            result=result,
            command=command,
            status=status or (204 if result is type(None) else 200),
            noun=noun or function.__module__.split(".")[1],
            is_tool=tool,
            poll=poll,
            waits=waits,
            page=page,
            notice=notice,
            audited=method != "GET" if audited is None else audited,
            max_body_size=max_body_size,
        )
        return function

    return declare
