"""What a page and the JSON API alike are asked: which runs to compare, which leaderboard."""

import uuid

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.environments.tables import Environment
from backend.errors import InvalidInput, NotFound
from backend.results.comparison import MOST_SIDES, Side, side_of
from backend.results.leaderboard import Leaderboard, find_version, leaderboard
from backend.runs import queries


class CompareQuery(BaseModel):
    """Runs, the first is what the others are held against; or, of two, `a` and `b`."""

    model_config = ConfigDict(extra="ignore")

    run: list[str] = Field(default=[], max_length=MOST_SIDES)
    """A run's id; of a training run `id@step` for one of its held-out examinations (left out: the newest)."""
    a: uuid.UUID | None = None
    b: uuid.UUID | None = None
    a_step: int | None = None
    b_step: int | None = None

    def chosen(self) -> list[tuple[uuid.UUID, int | None]]:
        """Ids and steps in their order; a form's empty choices are left out."""
        named = [(self.a, self.a_step), (self.b, self.b_step)]
        found = [(run_id, step) for run_id, step in named if run_id is not None]
        return found + [_read(reference) for reference in self.run if reference.strip()]


def _read(reference: str) -> tuple[uuid.UUID, int | None]:
    run_id, at, step = reference.strip().partition("@")
    try:
        return uuid.UUID(run_id), int(step) if at else None
    except ValueError as error:
        raise InvalidInput(fields={"run": f"{reference[:80]} is not a run's id, or id@step."}) from error


def sides_of(session: Session, wanted: CompareQuery) -> list[Side]:
    return [side_of(session, queries.get_run(session, run_id), step) for run_id, step in wanted.chosen()]


class LeaderboardQuery(BaseModel):
    """Which version, and which examination of it."""

    model_config = ConfigDict(extra="ignore")

    version: int | None = None
    """Left out: the newest that was evaluated."""
    exam: str = ""
    """Left out: the one that most contenders sat."""


def board_of(session: Session, name: str, wanted: LeaderboardQuery) -> Leaderboard:
    environment = environment_of(session, name)
    version = find_version(session, environment.id, wanted.version)
    if version is None:
        raise NotFound(f"{name} has no such version." if wanted.version else f"{name} has no published version.")
    return leaderboard(session, version, wanted.exam)


def environment_of(session: Session, name: str) -> Environment:
    environment = session.scalars(select(Environment).where(Environment.name == name)).one_or_none()
    if environment is None:
        raise NotFound(f"There is no environment named {name}.")
    return environment
