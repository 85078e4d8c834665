"""What the detector pages tell, and setting a detector for an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.db.models import DetectorSetting, Environment
from backend.domain.detector_record import Audit, CutOff, Record, cut_offs, least_recall, suggested
from backend.domain.detectors.catalogue import FACES
from backend.domain.detectors.face import Face
from backend.domain.detectors.settings import DetectorSettings, InForce, in_force
from backend.domain.ids import new_id
from backend.errors import Conflict, InvalidInput, NotFound
from backend.judging.detectors import queries
from backend.judging.detectors.asked import Asked, AskedQuestion, asked_detectors, is_asked
from backend.judging.detectors.asked_queries import Around, around
from backend.judging.detectors.queries import Scope
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

SHOWN_CUT_OFFS = 12


@dataclass(frozen=True, slots=True)
class Line:
    """One detector with what is known of it in a scope."""

    face: Face
    record: Record
    recall: float | None
    """At least so much, where the blind sample was looked at."""
    questions: Sequence[AskedQuestion] = ()
    """By which it looks, where it is asked; a built-in one has none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A detector as an environment wants it."""

    environment: str
    force: InForce


@dataclass(frozen=True, slots=True)
class Portrait:
    """All about one detector."""

    line: Line
    by_environment: Mapping[str, Record]
    audit: Audit
    cut_offs: Sequence[CutOff]
    suggested: CutOff | None
    settings: Sequence[Setting]


class AskedHasNoSettings(Conflict):
    """What is asked has no settings: it looks where somebody asks it, and what it flags waits for a person."""


def get_face(detector: str) -> Face:
    """Of a built-in one."""
    if is_asked(detector):
        raise AskedHasNoSettings
    if detector not in FACES:
        raise NotFound("There is no such detector.")
    return FACES[detector]


def lines(session: Session, scope: Scope) -> tuple[list[Line], Audit]:
    """Every detector, built in or asked; those with flags first."""
    known, audit_found = queries.records(session, scope), queries.audit_of(session, scope)
    by_any = queries.hacks_found(session, scope)
    found = [_line(face, known.get(face.id, {}), by_any, audit_found) for face in FACES.values()]
    if asked := asked_detectors(session, known):
        there = around(session, scope)
        found += [_asked_line(each, known.get(name, {}), there.get(name, Around())) for name, each in asked.items()]
    return sorted(found, key=lambda line: (-line.record.flags, line.face.id)), audit_found


def portrait(session: Session, detector: str, scope: Scope) -> Portrait:
    if is_asked(detector):
        return _asked_portrait(session, detector, scope)
    face = get_face(detector)
    by_environment = queries.records(session, scope).get(detector, {})
    audit_found = queries.audit_of(session, scope)
    reviewed = queries.reviewed_scores(session, detector, scope)
    steps = cut_offs(reviewed)
    return Portrait(
        line=_line(face, by_environment, queries.hacks_found(session, scope), audit_found),
        by_environment=by_environment,
        audit=audit_found,
        cut_offs=_shown(steps),
        suggested=suggested(reviewed),
        settings=[
            Setting(name, in_force(face, [_settings(row)])) for row, name in queries.settings_of(session, detector)
        ],
    )


def _asked_portrait(session: Session, detector: str, scope: Scope) -> Portrait:
    """Without settings; a cut-off only where a suspicion decides, not an answer."""
    by_environment = queries.records(session, scope).get(detector, {})
    asked = asked_detectors(session, {detector}).get(detector)
    if asked is None:
        raise NotFound("There is no such detector.")
    there = around(session, scope).get(detector, Around())
    reviewed = queries.reviewed_scores(session, detector, scope) if asked.face.thresholds else []
    return Portrait(
        line=_asked_line(asked, by_environment, there),
        by_environment=by_environment,
        audit=there.audit,
        cut_offs=_shown(cut_offs(reviewed)),
        suggested=suggested(reviewed),
        settings=[],
    )


def set_for_environment(
    session: Session, actor: Actor, environment: Environment, detector: str, wanted: DetectorSettings
) -> InForce:
    """All of what is set for the environment; what is left out is as it is by default."""
    face = get_face(detector)
    if unknown := wanted.unknown_thresholds(face):
        told = f"{detector} has no threshold {', '.join(unknown)}; it has {', '.join(face.thresholds)}."
        raise InvalidInput(fields={"thresholds": told})
    of_environment = DetectorSetting.environment_id == environment.id, DetectorSetting.detector == detector
    session.execute(delete(DetectorSetting).where(*of_environment))
    if wanted != DetectorSettings():
        values = wanted.model_dump() | {"id": new_id(), "environment_id": environment.id, "detector": detector}
        session.execute(insert(DetectorSetting).values(**values, changed_by=actor.person_id))
    audit(
        session,
        actor,
        "detector.set",
        "environment",
        environment.id,
        detector=detector,
        setting=wanted.model_dump(mode="json", exclude_none=True),
    )
    return in_force(face, [wanted])


def _line(face: Face, by_environment: Mapping[str, Record], by_any: int, audit_found: Audit) -> Line:
    record = sum(by_environment.values(), Record())
    recall = least_recall(record.hacks, by_any, audit_found) if face.subject == "rollout" else None
    return Line(face, record, recall)


def _asked_line(asked: Asked, by_environment: Mapping[str, Record], there: Around) -> Line:
    return replace(_line(asked.face, by_environment, there.hacks, there.audit), questions=asked.questions)


def _shown(steps: Sequence[CutOff]) -> Sequence[CutOff]:
    return steps[:: max(1, -(-len(steps) // SHOWN_CUT_OFFS))]


def _settings(row: DetectorSetting) -> DetectorSettings:
    return DetectorSettings(enabled=row.enabled, thresholds=row.thresholds, action=row.action)
