"""/detectors: the precision and recall of each detector, and its settings for an environment."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response

from backend.detectors import benchmarks, learned, queries, service
from backend.detectors.queries import Scope
from backend.detectors.schemas import CutOffForm, SettingForm
from backend.domain.detectors.benchmark import flagged_share
from backend.domain.detectors.catalogue import column_surface
from backend.domain.detectors.labeled import LabeledSplit
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import DetectorChanges, DetectorSettings
from backend.domain.detectors.spec import SUSPICION, Action, Need, Subject
from backend.domain.detectors.track_record import FEWEST_REVIEWED, TARGET_PRECISION
from backend.domain.statistics import wilson
from backend.environments.queries import get_environment
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()
TEXT_NEEDS = {Need.CODE, Need.TOKENS}
"""Inputs that labeled sets have. Other detectors cannot flag there, and have no shares unless they did."""
KINDS = (True, False)
"""Hacks, honest rollouts."""
EnvironmentName = Annotated[str, Query(max_length=40)]


@router.get("/detectors", response_class=HTMLResponse)
def show_detectors(request: Request, session: SessionDep, _: Viewer, environment: EnvironmentName = "") -> HTMLResponse:
    detectors, audit = service.list_detectors(session, Scope(environment))
    found = benchmarks.newest(session)
    counts = [each for each, _ in found]
    published = [each for each in counts if each.source != benchmarks.OWN_SOURCE]
    shares = {  # on families that no threshold was chosen on
        each.id: [flagged_share(published, is_hack=kind, split=LabeledSplit.TEST, detector=each.id) for kind in KINDS]
        for each in detectors
        if each.subject is Subject.ROLLOUT
        and (set(each.needs) <= TEXT_NEEDS or flagged_share(published, is_hack=True, detector=each.id).found)
    }
    context = {
        "detectors": detectors,
        "audit": audit,
        "environment": environment,
        "environments": queries.environments(session),
        "benchmarks": found,
        "shares": shares if any(hacks.looked_at for hacks, _ in shares.values()) else {},
        "flagged_share": flagged_share,
        "wilson": wilson,
    }
    return page(request, "detectors/list.html", context)


@router.get("/detectors/{detector}", response_class=HTMLResponse)
def show_detector(
    request: Request, session: SessionDep, _: Viewer, detector: str, environment: EnvironmentName = ""
) -> HTMLResponse:
    found, settings = service.get_detector(session, detector, Scope(environment))
    context = {
        "detector": found,
        "specified": SPECS[detector].settings if detector in SPECS else {},
        "wanted": settings.get(environment),
        "environment": environment,
        "environments": queries.environments(session),
        "actions": tuple(Action),
        "wanted_precision": TARGET_PRECISION,
        "fewest_reviewed": FEWEST_REVIEWED,
        "benchmarks": benchmarks.newest(session) if found.subject is Subject.ROLLOUT else [],
        "wilson": wilson,
        "columns": queries.column_returns(session, Scope(environment)) if detector == column_surface.SPEC.id else [],
        "learned": learned.list_all(session, environment) if Need.VERDICTS in found.needs else None,
    }
    return page(request, "detectors/detail.html", context)


@router.post("/detectors/{detector}/settings")
def set_detector(
    session: SessionDep, actor: Author, detector: str, form: Annotated[SettingForm, Depends(read_form(SettingForm))]
) -> Response:
    environment = get_environment(session, form.environment)
    thresholds = dict(zip(form.name, form.value, strict=True))
    settings = DetectorSettings(enabled=form.enabled, action=form.action, thresholds=thresholds)
    service.set_for_environment(session, actor, environment, detector, settings)
    return see_other(
        f"/detectors/{detector}#settings",
        notice=f"Settings saved for {environment.name}. They apply from the next batch.",
    )


@router.post("/detectors/{detector}/suspicion")
def set_least_suspicion(
    session: SessionDep, actor: Author, detector: str, form: Annotated[CutOffForm, Depends(read_form(CutOffForm))]
) -> Response:
    """Change the lowest suspicion only; empty restores the default."""
    environment = get_environment(session, form.environment)
    changes = DetectorChanges(thresholds={SUSPICION: form.suspicion})
    service.change_for_environment(session, actor, environment, detector, changes)
    done = "All flags are raised again in" if form.suspicion is None else "Cut-off applied to"
    query = urlencode({"environment": environment.name})
    return see_other(
        f"/detectors/{detector}?{query}#settings", notice=f"{done} {environment.name}, from the next scan."
    )
