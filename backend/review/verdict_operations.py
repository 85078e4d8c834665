"""JSON of the review: flags and verdicts."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict

from backend.detectors.tables import Flag
from backend.domain.vocabulary import Severity, Verdict
from backend.review import flag_queries
from backend.review import verdicts as service
from backend.review.tables import VerdictRecord
from backend.review.verdict_schemas import FlagFilter, VerdictForm, VerdictOut, read_flag_filter
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.paging import LIMIT, After, Key, Limit, Page, slice_of

router = APIRouter(prefix="/api/v1", tags=["judging"])

_NEWEST = (Key(Flag.created_at), Key(Flag.id))


class FlagRecord(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID | None
    """null: the flag is about the run."""
    detector: str
    severity: Severity
    score: float
    sentence: str
    evidence: dict[str, Any]
    cluster: str | None
    """Rollouts that show the same pattern have the same text here."""
    training_step: int | None
    created_at: datetime
    verdict: Verdict | None = None
    """The newest; null while nobody judged."""


@router.get("/flags")
def flags(
    session: SessionDep,
    _: Viewer,
    chosen: Annotated[FlagFilter, Depends(read_flag_filter)],
    after: After = None,
    limit: Limit = LIMIT,
) -> Page[FlagRecord]:
    """Flags, the newest first."""
    found = slice_of(session, flag_queries.flags_matching(chosen), _NEWEST, after=after, limit=limit)
    verdicts = flag_queries.newest_verdicts(session, [flag.id for flag in found.items])
    return Page(items=[_record(flag, verdicts.get(flag.id)) for flag in found.items], next=found.next)


@router.get("/flags/{flag_id}")
def flag(session: SessionDep, _: Viewer, flag_id: uuid.UUID) -> FlagRecord:
    found = flag_queries.get_flag(session, flag_id)
    return _record(found, flag_queries.newest_verdicts(session, [found.id]).get(found.id))


def _record(flag: Flag, verdict: Verdict | None) -> FlagRecord:
    return FlagRecord.model_validate(flag).model_copy(update={"verdict": verdict})


@router.get("/flags/{flag_id}/verdicts")
def verdicts_on_flag(session: SessionDep, _: Viewer, flag_id: uuid.UUID) -> Page[VerdictOut]:
    return _out(list(flag_queries.verdicts_on(session, flag_queries.get_flag(session, flag_id))))


@router.post("/flags/{flag_id}/verdicts", status_code=201)
def judge_flag(session: SessionDep, actor: Reviewer, flag_id: uuid.UUID, form: VerdictForm) -> Page[VerdictOut]:
    """One record for every flag on the same rollout."""
    return _out(service.judge_flag(session, actor, flag_queries.get_flag(session, flag_id), form))


@router.post("/rollouts/{rollout_id}/verdicts", status_code=201)
def judge_rollout(session: SessionDep, actor: Reviewer, rollout_id: uuid.UUID, form: VerdictForm) -> Page[VerdictOut]:
    return _out(service.judge_rollout(session, actor, flag_queries.get_rollout(session, rollout_id), form))


def _out(records: list[VerdictRecord]) -> Page[VerdictOut]:
    return Page(items=[VerdictOut.model_validate(record) for record in records])
