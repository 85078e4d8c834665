"""The JSON API of looking at a stored run with the detectors."""

import uuid
from dataclasses import asdict
from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel

from backend.detectors.scans import Detection, DetectionRequest, newest_detection, start_detection
from backend.domain.vocabulary import JobStatus
from backend.runs import queries
from backend.web.dependencies import Author, SessionDep, Viewer

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["judging"])


class DetectionAnswer(BaseModel):
    """A look of all detectors at what a run stored."""

    id: uuid.UUID
    status: JobStatus
    is_over: bool
    altered: int
    done: int
    """Rollouts that were looked at."""
    total: int
    phase: str
    new_flags: int | None
    """null until it is over."""
    by_detector: dict[str, int]
    """New flags so far."""
    thresholds: list[str]
    """That were given for this look."""
    error: str | None
    is_early: bool
    """At what an evaluation that still played had stored."""
    asked_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, detection: Detection) -> "DetectionAnswer":
        return cls(**asdict(detection), is_over=detection.is_over)


@router.post("/detection", status_code=202)
def start(run_id: uuid.UUID, session: SessionDep, actor: Author, request: DetectionRequest) -> DetectionAnswer:
    """Let the detectors look at all completed rollouts. What is flagged already is not flagged again; a look that is
    under way is given back."""
    return DetectionAnswer.of(start_detection(session, actor, queries.get_run(session, run_id), request))


@router.get("/detection")
def show(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> DetectionAnswer | None:
    """The newest look, how far it is and how many flags it added; null where there was none."""
    found = newest_detection(session, queries.get_run(session, run_id).id)
    return DetectionAnswer.of(found) if found else None
