"""JSON of the detectors."""

import uuid
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from backend.detectors import service
from backend.detectors.queries import Scope
from backend.detectors.service import EnvironmentLine, Line
from backend.domain.detectors.settings import DetectorChanges, DetectorSettings
from backend.domain.detectors.spec import Action, Need, Subject
from backend.domain.detectors.track_record import Audit, CutOff, Record
from backend.domain.review.judged_curve import Share
from backend.environments.queries import get_environment
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["judging"])
EnvironmentName = Annotated[str, Query(max_length=40)]


class ShareOut(BaseModel):
    value: float | None
    low: float
    high: float
    found: int
    looked_at: int

    @classmethod
    def of(cls, share: Share) -> "ShareOut":
        return cls(value=share.value, **asdict(share))


class RecordOut(BaseModel):
    flags: int
    open: int
    reviewed: int
    confirmed: int
    honest: int
    precision: ShareOut
    """With Wilson's 95 % limits."""

    @classmethod
    def of(cls, record: Record) -> "RecordOut":
        return cls(
            flags=record.flags,
            open=record.open,
            reviewed=record.reviewed,
            confirmed=record.confirmed,
            honest=record.honest,
            precision=ShareOut.of(record.precision),
        )


class EnvironmentRecordOut(RecordOut):
    """In one environment."""

    recall_at_least: float | None
    """By the environment's own blind sample; null where nobody looked at it, or it flags runs."""

    @classmethod
    def of_line(cls, line: EnvironmentLine) -> "EnvironmentRecordOut":
        return cls(**dict(RecordOut.of(line.record)), recall_at_least=line.recall)


class AskedOut(BaseModel):
    """A question by which a detector looks."""

    id: uuid.UUID
    name: str
    policy: str
    flags: str
    """What raises a flag, in words."""
    is_deleted: bool


class DetectorOut(BaseModel):
    id: str
    title: str
    description: str
    formula: str
    source: str
    subject: Subject
    needs: list[Need]
    cost: str
    """Of a look, in words."""
    thresholds: dict[str, float]
    action: Action
    record: RecordOut
    recall_at_least: float | None
    """null: nobody looked at the blind sample, or it flags runs. Of one that is asked: in the runs that it was asked
    about."""
    questions: list[AskedOut]
    """By which it looks, where it is asked; a built-in one has none, one that is asked has no settings."""

    @classmethod
    def fields_of(cls, line: Line) -> dict[str, Any]:
        spec = line.spec
        return {
            **{
                name: getattr(spec, name)
                for name in ("id", "title", "description", "formula", "source", "subject", "cost")
            },
            "needs": list(spec.needs),
            "thresholds": dict(spec.thresholds),
            "action": spec.action,
            "record": RecordOut.of(line.record),
            "recall_at_least": line.recall,
            "questions": [AskedOut.model_validate(each, from_attributes=True) for each in line.questions],
        }


class CutOffOut(BaseModel):
    score: float
    caught: int
    cost: int

    @classmethod
    def of(cls, cut_off: CutOff) -> "CutOffOut":
        return cls(**asdict(cut_off))


class InForceOut(BaseModel):
    """A detector as an environment has it, with the defaults of what is not set."""

    enabled: bool
    thresholds: dict[str, float]
    action: Action


class AuditOut(BaseModel):
    unflagged: int
    drawn: int
    looked_at: int
    hacks: int
    missed_at_most: float

    @classmethod
    def of(cls, audit: Audit) -> "AuditOut":
        return cls(**asdict(audit), missed_at_most=audit.missed_at_most)


class DetectorWhole(DetectorOut):
    by_environment: dict[str, EnvironmentRecordOut]
    audit: AuditOut
    cut_offs: list[CutOffOut]
    suggested: CutOffOut | None
    """The lowest cut-off of the suspicion that reaches a precision of 0.8 over the reviewed flags. null too where an
    answer raises flags, not a suspicion."""
    settings: dict[str, InForceOut]
    """By environment, where something is set."""


@router.get("/detectors")
def detectors(session: SessionDep, _: Viewer, environment: EnvironmentName = "") -> Page[DetectorOut]:
    """Built in and asked; those with most flags first."""
    found, _audit = service.lines(session, Scope(environment))
    return Page(items=[DetectorOut(**DetectorOut.fields_of(line)) for line in found])


@router.get("/detectors/{detector}")
def detector(detector: str, session: SessionDep, _: Viewer, environment: EnvironmentName = "") -> DetectorWhole:
    found = service.portrait(session, detector, Scope(environment))
    return DetectorWhole(
        **DetectorOut.fields_of(found.line),
        by_environment={name: EnvironmentRecordOut.of_line(each) for name, each in found.by_environment.items()},
        audit=AuditOut.of(found.audit),
        cut_offs=[CutOffOut.of(each) for each in found.cut_offs],
        suggested=CutOffOut.of(found.suggested) if found.suggested else None,
        settings={each.environment: InForceOut(**asdict(each.force)) for each in found.settings},
    )


@router.put("/detectors/{detector}/settings/{environment}")
def set_detector(
    detector: str, environment: str, wanted: DetectorSettings, session: SessionDep, actor: Author
) -> InForceOut:
    """All of what is set for the environment; an empty object is the default again."""
    place = get_environment(session, environment)
    return InForceOut(**asdict(service.set_for_environment(session, actor, place, detector, wanted)))


@router.patch("/detectors/{detector}/settings/{environment}")
def change_detector(
    detector: str, environment: str, changes: DetectorChanges, session: SessionDep, actor: Author
) -> InForceOut:
    """Only what is named; null is the default again. `{"thresholds": {"suspicion": 0.7}}` applies a cut-off."""
    place = get_environment(session, environment)
    return InForceOut(**asdict(service.change_for_environment(session, actor, place, detector, changes)))
