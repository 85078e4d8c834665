"""/detectors: how often each was right, what it may have missed, and how it is set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response

from backend.detectors import queries, service
from backend.detectors.queries import Scope
from backend.detectors.schemas import CutOffForm, SettingForm
from backend.detectors.service import Line, Portrait
from backend.domain.detectors.settings import DetectorChanges
from backend.domain.detectors.spec import SUSPICION, Action
from backend.domain.detectors.track_record import FEWEST_REVIEWED, WANTED_PRECISION, Audit
from backend.environments.queries import get_environment
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()
EnvironmentName = Annotated[str, Query(max_length=40)]


@dataclass(frozen=True, slots=True)
class DetectorsPage:
    lines: Sequence[Line]
    audit: Audit
    environment: str
    environments: Sequence[str]


@dataclass(frozen=True, slots=True)
class DetectorPage:
    portrait: Portrait
    environment: str
    environments: Sequence[str]
    actions: Sequence[Action] = tuple(Action)
    wanted_precision: float = WANTED_PRECISION
    fewest_reviewed: int = FEWEST_REVIEWED


@router.get("/detectors", response_class=HTMLResponse)
def show_detectors(request: Request, session: SessionDep, _: Viewer, environment: EnvironmentName = "") -> HTMLResponse:
    lines, audit = service.lines(session, Scope(environment))
    context = DetectorsPage(lines, audit, environment, queries.environments(session))
    return page(request, "detectors/list.html", context)


@router.get("/detectors/{detector}", response_class=HTMLResponse)
def show_detector(
    request: Request, session: SessionDep, _: Viewer, detector: str, environment: EnvironmentName = ""
) -> HTMLResponse:
    portrait = service.portrait(session, detector, Scope(environment))
    return page(request, "detectors/detail.html", DetectorPage(portrait, environment, queries.environments(session)))


@router.post("/detectors/{detector}/settings")
def set_detector(
    session: SessionDep, actor: Author, detector: str, form: Annotated[SettingForm, Depends(read_form(SettingForm))]
) -> Response:
    environment = get_environment(session, form.environment)
    service.set_for_environment(session, actor, environment, detector, form.settings())
    return see_other(f"/detectors/{detector}#settings", notice=f"Set for {environment.name}, from the next batch on.")


@router.post("/detectors/{detector}/suspicion")
def set_least_suspicion(
    session: SessionDep, actor: Author, detector: str, form: Annotated[CutOffForm, Depends(read_form(CutOffForm))]
) -> Response:
    """Nothing else of what is set changes; left empty it is the default again."""
    environment = get_environment(session, form.environment)
    changes = DetectorChanges(thresholds={SUSPICION: form.suspicion})
    service.change_for_environment(session, actor, environment, detector, changes)
    told = (
        f"{environment.name} is told every suspicion again" if form.suspicion is None else f"Set for {environment.name}"
    )
    query = urlencode({"environment": environment.name})
    return see_other(f"/detectors/{detector}?{query}#settings", notice=f"{told}, from the next look on.")
