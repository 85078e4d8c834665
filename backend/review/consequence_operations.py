"""JSON of what verdicts lead to."""

import uuid
from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from backend.environments.queries import get_environment
from backend.review import fixtures
from backend.review.consequence_schemas import BoundForm, KeepForm
from backend.review.tables import Fixture
from backend.web.dependencies import Author, Reviewer, SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["judging"])


class JudgedFixtureAnswer(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    name: str
    environment_id: uuid.UUID
    rollout_id: uuid.UUID | None
    lowest: float | None
    """An honest episode must earn at least this."""
    highest: float | None
    """A hack must earn at most this."""
    created_by: uuid.UUID | None
    created_at: datetime
    withdrawn_by: uuid.UUID | None
    withdrawn_at: datetime | None
    withdrawn_because: str


@router.get("/environments/{name}/judged-fixtures")
def judged_fixtures(name: str, session: SessionDep, _: Viewer) -> Page[JudgedFixtureAnswer]:
    """Those in force first, then those that were taken back; newest first."""
    found = fixtures.fixtures_of(session, get_environment(session, name).id)
    return Page(items=[_answer(fixture) for fixture in found])


@router.post("/rollouts/{rollout_id}/fixture", status_code=201)
def keep_rollout(rollout_id: uuid.UUID, form: KeepForm, session: SessionDep, actor: Reviewer) -> JudgedFixtureAnswer:
    """Every later certificate replays this judged rollout."""
    return _answer(fixtures.keep(session, actor, rollout_id, form.bound))


@router.patch("/fixtures/{fixture_id}")
def change_bound(fixture_id: uuid.UUID, form: BoundForm, session: SessionDep, actor: Author) -> JudgedFixtureAnswer:
    """Another row with the new bound; the old one is taken back."""
    return _answer(fixtures.change_bound(session, actor, fixtures.get_fixture(session, fixture_id), form.bound))


@router.delete("/fixtures/{fixture_id}")
def withdraw(fixture_id: uuid.UUID, session: SessionDep, actor: Author) -> JudgedFixtureAnswer:
    fixture = fixtures.get_fixture(session, fixture_id)
    fixtures.withdraw(session, actor, fixture)
    return _answer(fixture)


def _answer(fixture: Fixture) -> JudgedFixtureAnswer:
    return JudgedFixtureAnswer.model_validate(fixture)
