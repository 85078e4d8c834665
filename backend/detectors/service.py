"""The record of each detector, and its settings for an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.detectors import queries
from backend.detectors.grader_detectors import (
    GraderQuestion,
    ReviewedRuns,
    grader_detectors,
    is_grader_detector,
    reviewed_around,
)
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
class DetectorSummary:
    """A detector with its record in a scope."""

    spec: DetectorSpec
    record: Record
    recall_at_least: float | None
    """A lower bound; None if the audit sample was not reviewed."""
    questions: Sequence[GraderQuestion] = ()
    """Graders that raise its flags; built-in detectors have none."""


@dataclass(frozen=True, slots=True)
class DetectorReport:
    """Everything about one detector."""

    summary: DetectorSummary
    by_environment: Mapping[str, DetectorSummary]
    audit: Audit
    cut_offs: Sequence[CutOff]
    suggested: CutOff | None
    settings: Mapping[str, DetectorSettings]
    """By environment, where anything is set."""

    def active_settings(self, environment: str) -> ActiveSettings:
        return resolve_settings(self.summary.spec, [self.settings[environment]])


class GraderHasNoSettings(Conflict):
    """A grader has no settings here: it runs on demand, and a reviewer decides on its flags."""


def get_spec(detector: str) -> DetectorSpec:
    """The declaration of a built-in detector."""
    if is_grader_detector(detector):
        raise GraderHasNoSettings
    if detector not in SPECS:
        raise NotFound("There is no such detector.")
    return SPECS[detector]


def summaries(session: Session, scope: Scope) -> tuple[list[DetectorSummary], Audit]:
    """All built-in detectors and graders that raise flags, most flags first; and the audit sample of all runs."""
    records, reviewed = queries.records(session, scope), _reviewed_runs(session, scope)
    found = [_summary(spec, records.get(spec.id, {}), reviewed) for spec in SPECS.values()]
    if graders := grader_detectors(session, records):
        around_graders = reviewed_around(session, scope)
        found += [
            _summary(each.spec, records.get(name, {}), around_graders.get(name, {}), each.questions)
            for name, each in graders.items()
        ]
    audit_sample = sum(reviewed.values(), ReviewedRuns()).audit
    return sorted(found, key=lambda each: (-each.record.flags, each.spec.id)), audit_sample


def get_report(session: Session, detector: str, scope: Scope) -> DetectorReport:
    """Everything about a detector. Cut-offs only where a suspicion raises its flags and not an answer."""
    questions: Sequence[GraderQuestion] = ()
    settings: Mapping[str, DetectorSettings] = {}
    if is_grader_detector(detector):
        grader = grader_detectors(session, {detector}).get(detector)
        if grader is None:
            raise NotFound("There is no such detector.")
        spec, questions = grader.spec, grader.questions
        reviewed = reviewed_around(session, scope).get(detector, {})
    else:
        spec, settings = get_spec(detector), queries.settings_of(session, detector)
        reviewed = _reviewed_runs(session, scope)
    records = queries.records(session, scope).get(detector, {})
    scores = queries.reviewed_scores(session, detector, scope) if spec.settings else []
    steps = cut_offs(scores)
    return DetectorReport(
        summary=_summary(spec, records, reviewed, questions),
        by_environment={
            name: _summary(spec, {name: record}, {name: reviewed.get(name, ReviewedRuns())})
            for name, record in records.items()
        },
        audit=sum(reviewed.values(), ReviewedRuns()).audit,
        cut_offs=steps[:: max(1, -(-len(steps) // SHOWN_CUT_OFFS))],
        suggested=suggested(scores),
        settings=settings,
    )


def set_for_environment(
    session: Session, actor: Actor, environment: Environment, detector: str, wanted: DetectorSettings
) -> ActiveSettings:
    """Replace the settings for an environment. Missing values are the defaults."""
    spec = get_spec(detector)
    if problems := wanted.problems(spec):
        raise InvalidInput(fields={"thresholds": " ".join(problems)})
    of_environment = DetectorSetting.environment_id == environment.id, DetectorSetting.detector == detector
    session.execute(delete(DetectorSetting).where(*of_environment))
    if (settings := wanted.model_dump()) != DetectorSettings().model_dump():
        values = settings | {"id": new_id(), "environment_id": environment.id, "detector": detector}
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
    """Change some settings for an environment and keep the others."""
    get_spec(detector)
    of_environment = DetectorSetting.environment_id == environment.id, DetectorSetting.detector == detector
    row = session.scalars(select(DetectorSetting).where(*of_environment)).one_or_none()
    known = DetectorSettings.model_validate(row, from_attributes=True) if row else DetectorSettings()
    return set_for_environment(session, actor, environment, detector, changes.over(known))


def _summary(
    spec: DetectorSpec,
    records: Mapping[str, Record],
    reviewed: Mapping[str, ReviewedRuns],
    questions: Sequence[GraderQuestion] = (),
) -> DetectorSummary:
    record, runs = sum(records.values(), Record()), sum(reviewed.values(), ReviewedRuns())
    recall = least_recall(record.hacks, runs.hacks, runs.audit) if spec.subject is Subject.ROLLOUT else None
    return DetectorSummary(spec, record, recall, questions)


def _reviewed_runs(session: Session, scope: Scope) -> dict[str, ReviewedRuns]:
    """Of all runs, by environment."""
    audits, hacks = queries.audits(session, scope), queries.hacks_found(session, scope)
    return {name: ReviewedRuns(audits.get(name, Audit()), hacks[name]) for name in audits.keys() | hacks.keys()}
