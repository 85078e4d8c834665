"""What the detector pages tell, and setting a detector for an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.detectors import queries
from backend.detectors.grader_detector_queries import Around, around
from backend.detectors.grader_detectors import Asked, AskedQuestion, asked_detectors, is_asked
from backend.detectors.queries import Scope
from backend.detectors.tables import DetectorSetting
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import ActiveSettings, DetectorChanges, DetectorSettings, resolve_settings
from backend.domain.detectors.spec import DetectorSpec, Subject
from backend.domain.detectors.track_record import Audit, CutOff, Record, cut_offs, least_recall, suggested
from backend.domain.ids import new_id
from backend.environments.tables import Environment
from backend.errors import Conflict, InvalidInput, NotFound
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

SHOWN_CUT_OFFS = 12


@dataclass(frozen=True, slots=True)
class Line:
    """One detector with what is known of it in a scope."""

    spec: DetectorSpec
    record: Record
    recall: float | None
    """At least so much, where the blind sample was looked at."""
    questions: Sequence[AskedQuestion] = ()
    """By which it looks, where it is asked; a built-in one has none."""


@dataclass(frozen=True, slots=True)
class EnvironmentLine:
    """What is known of a detector in one environment."""

    record: Record
    recall: float | None
    """At least so much, where the environment's blind sample was looked at."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A detector as an environment wants it."""

    environment: str
    wanted: DetectorSettings
    """What is set."""
    force: ActiveSettings


@dataclass(frozen=True, slots=True)
class Portrait:
    """All about one detector."""

    line: Line
    by_environment: Mapping[str, EnvironmentLine]
    audit: Audit
    cut_offs: Sequence[CutOff]
    suggested: CutOff | None
    settings: Sequence[Setting]


class AskedHasNoSettings(Conflict):
    """What is asked has no settings: it looks where somebody asks it, and what it flags waits for a person."""


def get_spec(detector: str) -> DetectorSpec:
    """Of a built-in one."""
    if is_asked(detector):
        raise AskedHasNoSettings
    if detector not in SPECS:
        raise NotFound("There is no such detector.")
    return SPECS[detector]


def lines(session: Session, scope: Scope) -> tuple[list[Line], Audit]:
    """Every detector, built in or asked; those with flags first."""
    known, there = queries.records(session, scope), _around_all(session, scope)
    found = [_line(spec, known.get(spec.id, {}), there) for spec in SPECS.values()]
    if asked := asked_detectors(session, known):
        around_asked = around(session, scope)
        found += [_asked_line(each, known.get(name, {}), around_asked.get(name, {})) for name, each in asked.items()]
    return sorted(found, key=lambda line: (-line.record.flags, line.spec.id)), _total(there).audit


def portrait(session: Session, detector: str, scope: Scope) -> Portrait:
    if is_asked(detector):
        return _asked_portrait(session, detector, scope)
    spec = get_spec(detector)
    records = queries.records(session, scope).get(detector, {})
    there = _around_all(session, scope)
    reviewed = queries.reviewed_scores(session, detector, scope)
    return Portrait(
        line=_line(spec, records, there),
        by_environment=_by_environment(spec, records, there),
        audit=_total(there).audit,
        cut_offs=_shown(cut_offs(reviewed)),
        suggested=suggested(reviewed),
        settings=[
            Setting(name, wanted, resolve_settings(spec, [wanted]))
            for name, wanted in queries.settings_of(session, detector).items()
        ],
    )


def _asked_portrait(session: Session, detector: str, scope: Scope) -> Portrait:
    """Without settings; a cut-off only where a suspicion decides, not an answer."""
    records = queries.records(session, scope).get(detector, {})
    asked = asked_detectors(session, {detector}).get(detector)
    if asked is None:
        raise NotFound("There is no such detector.")
    there = around(session, scope).get(detector, {})
    reviewed = queries.reviewed_scores(session, detector, scope) if asked.spec.thresholds else []
    return Portrait(
        line=_asked_line(asked, records, there),
        by_environment=_by_environment(asked.spec, records, there),
        audit=_total(there).audit,
        cut_offs=_shown(cut_offs(reviewed)),
        suggested=suggested(reviewed),
        settings=[],
    )


def set_for_environment(
    session: Session, actor: Actor, environment: Environment, detector: str, wanted: DetectorSettings
) -> ActiveSettings:
    """All of what is set for the environment; what is left out is as it is by default."""
    spec = get_spec(detector)
    if problems := wanted.problems(spec):
        raise InvalidInput(fields={"thresholds": " ".join(problems)})
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
    return resolve_settings(spec, [wanted])


def change_for_environment(
    session: Session, actor: Actor, environment: Environment, detector: str, changes: DetectorChanges
) -> ActiveSettings:
    """Some of what is set for the environment; the rest of it stays."""
    get_spec(detector)
    row = queries.find_setting(session, environment.id, detector)
    known = queries.settings_in(row) if row else DetectorSettings()
    return set_for_environment(session, actor, environment, detector, changes.over(known))


def _line(spec: DetectorSpec, records: Mapping[str, Record], there: Mapping[str, Around]) -> Line:
    record = sum(records.values(), Record())
    return Line(spec, record, _recall(spec, record, _total(there)))


def _asked_line(asked: Asked, records: Mapping[str, Record], there: Mapping[str, Around]) -> Line:
    return replace(_line(asked.spec, records, there), questions=asked.questions)


def _by_environment(
    spec: DetectorSpec, records: Mapping[str, Record], there: Mapping[str, Around]
) -> dict[str, EnvironmentLine]:
    return {
        name: EnvironmentLine(record, _recall(spec, record, there.get(name, Around())))
        for name, record in records.items()
    }


def _recall(spec: DetectorSpec, record: Record, there: Around) -> float | None:
    return least_recall(record.hacks, there.hacks, there.audit) if spec.subject is Subject.ROLLOUT else None


def _around_all(session: Session, scope: Scope) -> dict[str, Around]:
    """Of all runs, by environment."""
    audits, hacks = queries.audits(session, scope), queries.hacks_found(session, scope)
    return {name: Around(audits.get(name, Audit()), hacks[name]) for name in audits.keys() | hacks.keys()}


def _total(there: Mapping[str, Around]) -> Around:
    return sum(there.values(), Around())


def _shown(steps: Sequence[CutOff]) -> Sequence[CutOff]:
    return steps[:: max(1, -(-len(steps) // SHOWN_CUT_OFFS))]
