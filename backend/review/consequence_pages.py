"""Pages of what verdicts lead to: an environment's judged fixtures, a rollout's fixture, the curve as judged."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.environments.queries import get_environment
from backend.environments.tables import Environment
from backend.review import fixtures, judged_curves
from backend.review.consequence_schemas import BoundForm, KeepForm, WithdrawForm
from backend.review.tables import Fixture
from backend.web.dependencies import Author, Reviewer, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()


@dataclass(frozen=True, slots=True)
class FixturesPage:
    environment: Environment
    active: Sequence[Fixture]
    withdrawn: Sequence[Fixture]
    most_by_verdict: int


@router.get("/environments/{name}/judged", response_class=HTMLResponse)
def show_fixtures(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    environment = get_environment(session, name)
    found = fixtures.fixtures_of(session, environment.id)
    context = FixturesPage(
        environment,
        active=[fixture for fixture in found if fixture.withdrawn_at is None],
        withdrawn=[fixture for fixture in found if fixture.withdrawn_at is not None],
        most_by_verdict=fixtures.MOST_BY_VERDICT,
    )
    return page(request, "review/fixtures.html", context)


@router.post("/rollouts/{rollout_id}/fixture")
def keep_rollout(
    session: SessionDep, actor: Reviewer, rollout_id: uuid.UUID, form: Annotated[KeepForm, Depends(read_form(KeepForm))]
) -> Response:
    fixture = fixtures.keep(session, actor, rollout_id, form.bound)
    return _to_list(session, fixture, f"{fixture.name} is replayed by every certificate from now on.")


@router.post("/fixtures/{fixture_id}/bound")
def change_bound(
    session: SessionDep,
    actor: Author,
    fixture_id: uuid.UUID,
    form: Annotated[BoundForm, Depends(read_form(BoundForm))],
) -> Response:
    fixture = fixtures.change_bound(session, actor, fixtures.get_fixture(session, fixture_id), form.bound)
    return _to_list(session, fixture, "The bound is changed; the old one stays in the history.")


@router.post("/fixtures/{fixture_id}/withdraw")
def withdraw(
    session: SessionDep,
    actor: Author,
    fixture_id: uuid.UUID,
    form: Annotated[WithdrawForm, Depends(read_form(WithdrawForm))],
) -> Response:
    fixture = fixtures.get_fixture(session, fixture_id)
    fixtures.withdraw(session, actor, fixture, form.because)
    return _to_list(session, fixture, f"{fixture.name} is taken back.")


@router.get("/runs/{run_id}/judged.json")
def judged_points(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> dict[str, Any]:
    """Points of the reward as trained and as judged."""
    return judged_curves.chart_of(session, judged_curves.get_run(session, run_id))


def _to_list(session: SessionDep, fixture: Fixture, notice: str) -> Response:
    return see_other(f"/environments/{fixtures.environment_of(session, fixture).name}/judged", notice=notice)
