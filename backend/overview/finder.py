"""Find what a member looks for by its name or id, and what they may do."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field
from sqlalchemy import ColumnElement, Select, String, cast, func, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.vocabulary import Role
from backend.environments.tables import Environment, EnvironmentVersion
from backend.graders.tables import Grader
from backend.operations.ids import ends_with, parse_id
from backend.operations.schemas import Request, Response
from backend.policies.tables import Policy
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.identity import Actor
from backend.web.page import NAVIGATION, SIDE_DOORS

MAX_TEXT = 200
SHORTEST_ID = 6
"""Pages show the last 8 characters of an id."""


class FoundKind(StrEnum):
    ACTION = "action"
    PAGE = "page"
    ENVIRONMENT = "environment"
    RUN = "run"
    POLICY = "policy"
    CHECKPOINT = "checkpoint"
    ROLLOUT = "rollout"
    GRADER = "grader"
    MEMBER = "member"


class FindRequest(Request):
    text: str = Field("", max_length=MAX_TEXT, description="Part of a name, an id, or the last characters of an id.")
    limit: int = Field(20, ge=1, le=100, description="Maximum number of results.")


class FoundResponse(Response):
    """Something that was found, and where it is."""

    kind: FoundKind
    name: str
    detail: str
    """What distinguishes it from others of the same name."""
    url: str
    """Address of its page, without the host."""
    id: uuid.UUID | None = None

    table_columns: ClassVar[tuple[str, ...]] = ("kind", "name", "detail", "url")
    table_empty: ClassVar[str] = "Nothing has this name or id."


ACTIONS = (
    ("New evaluation", "/evaluations/new", Role.AUTHOR),
    ("New training", "/training/new", Role.TRAINER),
    ("New environment", "/environments/new", Role.AUTHOR),
    ("Import an environment", "/imports/new", Role.AUTHOR),
    ("Import rollouts", "/runs/import", Role.AUTHOR),
    ("New policy", "/policies/new", Role.TRAINER),
    ("New grader", "/graders/new", Role.AUTHOR),
)
"""Pages that begin something, with the role that may use each."""


@dataclass(frozen=True)
class _Source:
    """The rows of one kind. The statement selects an id, a name, a detail and an address."""

    kind: FoundKind
    statement: Select[uuid.UUID, str, str, str]
    id: InstrumentedAttribute[uuid.UUID]
    name: ColumnElement[str] | InstrumentedAttribute[str]

    def found(self, session: Session, where: ColumnElement[bool], text: str, limit: int) -> Iterator[FoundResponse]:
        """Exact names first, then names that start with the text, then the newest."""
        lower = func.lower(self.name)
        closest = (lower != text.lower(), ~lower.startswith(text.lower(), autoescape=True), self.id.desc())
        for row in session.execute(self.statement.where(where).order_by(*closest).limit(limit)):
            yield FoundResponse(kind=self.kind, id=row[0], name=row[1], detail=row[2] or "", url=row[3])


def find(session: Session, actor: Actor, request: FindRequest) -> list[FoundResponse]:
    """Return what has `text` in its name, or the given id or end of an id. Without a text: actions and pages."""
    text = " ".join(request.text.split())
    found = [each for each in _actions_and_pages(actor) if text.lower() in each.name.lower()]
    if text:
        for source in _SOURCES:
            where = source.name.icontains(text, autoescape=True)
            found.extend(source.found(session, where, text, request.limit))
        found.extend(_by_id(session, text))
    found.sort(key=lambda each: _distance(each.name, text))  # stable: within a distance in the order of the kinds
    return found[: request.limit]


def _actions_and_pages(actor: Actor) -> Iterator[FoundResponse]:
    for name, url, role in ACTIONS:
        if actor.may(role):
            yield FoundResponse(kind=FoundKind.ACTION, name=name, detail="", url=url)
    for entry in (*(entry for group in NAVIGATION.values() for entry in group), *SIDE_DOORS):
        yield FoundResponse(kind=FoundKind.PAGE, name=entry.label, detail="", url=entry.url)


def _by_id(session: Session, text: str) -> Iterator[FoundResponse]:
    """A complete id is looked up everywhere, its end not among rollouts, which may be millions."""
    if whole := parse_id(text):
        for source in (*_SOURCES, _CHECKPOINTS, _ROLLOUTS):
            yield from source.found(session, source.id == whole, text, 1)
        return
    for source in (*_SOURCES, _CHECKPOINTS):
        if (ends_so := ends_with(source.id, text, shortest=SHORTEST_ID)) is not None:
            yield from source.found(session, ends_so, text, 3)


def _distance(name: str, text: str) -> int:
    """0: the same. 1: begins with it. 2: a word begins with it. 3: contains it, or was found by its id."""
    name, text = name.lower(), text.lower()
    if name == text:
        return 0
    if name.startswith(text):
        return 1
    return 2 if f" {text}" in name or f"-{text}" in name else 3


def _address(prefix: str, last: ColumnElement[Any] | InstrumentedAttribute[Any]) -> ColumnElement[str]:
    return literal(prefix).concat(cast(last, String))


_RUN_DETAIL = func.concat(
    cast(Run.kind, String), " · ", Environment.name, " v", EnvironmentVersion.number, " · ", Run.status
)
_SOURCES = (
    _Source(
        FoundKind.ENVIRONMENT,
        select(
            Environment.id,
            Environment.name,
            func.left(Environment.description, 80),
            _address("/environments/", Environment.name),
        ).where(Environment.archived_at.is_(None)),
        Environment.id,
        Environment.name,
    ),
    _Source(
        FoundKind.RUN,
        select(Run.id, Run.name, _RUN_DETAIL, _address("/runs/", Run.id))
        .join(Run.version)
        .join(EnvironmentVersion.environment),
        Run.id,
        Run.name,
    ),
    _Source(
        FoundKind.POLICY,
        select(Policy.id, Policy.name, cast(Policy.kind, String), _address("/policies/", Policy.id)).where(
            Policy.deleted_at.is_(None)
        ),
        Policy.id,
        Policy.name,
    ),
    _Source(
        FoundKind.GRADER,
        select(Grader.id, Grader.name, cast(Grader.kind, String), _address("/graders/", Grader.id)).where(
            Grader.deleted_at.is_(None)
        ),
        Grader.id,
        Grader.name,
    ),
    _Source(
        FoundKind.MEMBER,
        select(Person.id, Person.name, cast(Person.role, String), literal("/team")).where(Person.disabled_at.is_(None)),
        Person.id,
        Person.name,
    ),
)
_CHECKPOINT_NAME = func.concat(Policy.name, " · ", Checkpoint.stage, " ", Checkpoint.step)
_CHECKPOINTS = _Source(
    FoundKind.CHECKPOINT,
    select(
        Checkpoint.id,
        _CHECKPOINT_NAME,
        literal(""),
        func.coalesce(
            literal("/runs/").concat(cast(Checkpoint.run_id, String)).concat("/checkpoints"),
            _address("/policies/", Checkpoint.policy_id),
        ),
    ).join(Checkpoint.policy),
    Checkpoint.id,
    _CHECKPOINT_NAME,
)
_ROLLOUTS = _Source(
    FoundKind.ROLLOUT,
    select(Rollout.id, literal("rollout ").concat(Rollout.seq), Run.name, _address("/rollouts/", Rollout.id)).join(
        Run, Run.id == Rollout.run_id
    ),
    Rollout.id,
    cast(Rollout.id, String),
)
