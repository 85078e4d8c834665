"""Declare operations, and how a segment of an address identifies a row."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from fastapi import UploadFile
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.core.row_access import project_of
from backend.core.tables import Base
from backend.domain.vocabulary import Role
from backend.errors import NotAllowed
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
_DECLARED: dict[Callable[..., object], Operation] = {}


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


@dataclass(eq=False)
class Operation:
    """Declares an operation: `@operation("POST /graders", role=Role.TRAINER, command="grader create")`.

    The function takes a session, the actor, a row or value for each `{name}` in the route, and at most one `request`.
    A request with a field of type `fastapi.UploadFile` is a multipart form. A result of type `Download` is a file.
    It remains an ordinary function that pages and tests may call.
    """

    route: str
    _: KW_ONLY
    role: Role
    command: str | None = None
    """Words of the command. The rows of the address are its arguments."""
    noun: str = ""
    """The client's namespace and the tag in the API's description. Default: the package of the function."""
    status: int = 0
    """Status of a successful response. Default: 200, or 204 if the function returns None."""
    tool: bool = False
    """Whether agents may call it."""
    poll: str | None = None
    """Address that returns the current state of a `Progress`, filled from the result's fields."""
    waits: bool = True
    """Whether the command waits until such a result has finished."""
    page: str | None = None
    """The address without `/api/v1` accepts the request as an HTML form, then shows this page with `notice`.

    Both are filled from the result's fields.
    """
    notice: str = ""
    audited: bool | None = None
    """Whether calls are recorded in the audit log. Default: all but GET."""
    max_body_size: int | None = None
    """In bytes. None: the app's limit."""
    in_project: bool = False
    """Whether the role in any project suffices to call it. Changes are checked by row."""

    def __call__(self, function: F) -> F:
        if not (parts := _ROUTE.fullmatch(self.route)):
            raise ValueError(f"{self.route!r} is not a method and an address")
        self.method, self.path = parts.groups()
        self.function: Callable[..., object] = function
        hints = get_type_hints(function)
        self.result: object = hints.pop("return")
        self.request: type[BaseModel] | None = hints.get("request")
        segments = _SEGMENT.findall(self.path)
        self.rows = {name: _REFERENCES[hints[name]] for name in segments if hints[name] in _REFERENCES}
        self.plain = [name for name in segments if name not in self.rows]  # parameters that are not rows
        fields = self.request.model_fields if self.request else {}
        self.uploads = [name for name, each in fields.items() if each.annotation is UploadFile]
        self.status = self.status or (204 if self.result is type(None) else 200)
        self.noun = self.noun or function.__module__.split(".")[1]
        noun = {self.noun, self.noun.removesuffix("s")}  # `create_grader` of `graders` is `create`
        words = [word for word in function.__name__.split("_") if word not in noun]
        self.name = "_".join(words) or function.__name__
        self.audited = self.method != "GET" if self.audited is None else self.audited
        self.summary = inspect.getdoc(function) or ""
        _DECLARED[function] = self
        return function

    def run(self, session: Session, actor: Actor, arguments: Mapping[str, object]) -> object:
        """Find the rows of the address, call the function and record the change in the audit log."""
        found = {name: rows.find(session, str(arguments[name])) for name, rows in self.rows.items()}
        if not actor.access.is_uniform:
            actor = self._within_projects(session, actor, found.values())
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

    def _within_projects(self, session: Session, actor: Actor, rows: Iterable[object]) -> Actor:
        """Return the actor with the lowest role in the projects of the rows. Raises NotAllowed if it is too low."""
        parts = [part for row in rows for part in (row if isinstance(row, tuple) else (row,))]
        places = [project_of(session, part) for part in parts if isinstance(part, Base)]
        actors = [actor.within(place) for place in places if place] or [actor]
        lowest = min(actors, key=lambda each: list(Role).index(each.role))
        if not lowest.may(self.role) and not (self.in_project and not places):
            raise NotAllowed(f"This needs the role {self.role}; yours is {lowest.role}.")
        return lowest


operation = Operation


def operations_of(module: ModuleType) -> list[Operation]:
    """List the operations that a module declares, in their order."""
    return [_DECLARED[each] for each in vars(module).values() if inspect.isfunction(each) and each in _DECLARED]
