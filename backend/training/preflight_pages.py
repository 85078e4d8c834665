"""The page of a pre-flight: what is known at once, then live what a worker finds."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.checkpoints.queries import find_certificate
from backend.core.events import preflight_topic
from backend.domain.ids import new_id
from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding
from backend.domain.vocabulary import CheckStatus
from backend.environments.tables import Certificate
from backend.training.choices import changed_choices
from backend.training.launch_form import launch_command
from backend.training.launch_queries import get_preflight
from backend.training.preflight import configuration_of, findings_of, verdict_of
from backend.training.tables import Preflight
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page
from backend.web.streams import live_blocks

router = APIRouter()


@dataclass(frozen=True, slots=True)
class PreflightPage:
    """A look at a training run before it is queued."""

    preflight: Preflight
    findings: Sequence[PreflightFinding]
    verdict: FindingStatus
    is_over: bool
    arithmetic: Sequence[str]
    command: str
    needs_reason: bool
    """There is no passing certificate: starting asks why."""
    key: str


def _context(session: Session, preflight_id: uuid.UUID) -> PreflightPage:
    preflight = get_preflight(session, preflight_id)
    configuration = configuration_of(preflight)
    version = preflight.version
    environment = f"{version.environment.name}@{version.number}"
    return PreflightPage(
        preflight=preflight,
        findings=findings_of(preflight),
        verdict=verdict_of(preflight),
        is_over=preflight.status.is_over,
        arithmetic=batch_in_words(configuration).split("; "),
        command=launch_command(environment, None, changed_choices(configuration, TrainingConfiguration())),
        needs_reason=_needs_reason(find_certificate(session, version.id)),
        key=new_id().hex,
    )


def _needs_reason(certificate: Certificate | None) -> bool:
    return certificate is None or certificate.status is CheckStatus.FAILED


@router.get("/training/preflights/{preflight_id}", response_class=HTMLResponse)
def show_preflight(request: Request, preflight_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "training/preflight.html", _context(session, preflight_id))


@router.get("/training/preflights/{preflight_id}/events", response_class=EventSourceResponse)
async def preflight_events(request: Request, preflight_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> PreflightPage:
        return _context(session, preflight_id)

    blocks = ("preflight_state", "preflight_findings")
    async for event in live_blocks(request, (preflight_topic(preflight_id),), "training/preflight.html", blocks, read):
        yield event
