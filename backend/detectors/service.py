"""The record of each detector, and its settings for an environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from backend.detectors import queries
from backend.detectors.grader_detectors import (
    SampledRecord,
    audits_of_graders,
    grader_detectors,
    is_grader_detector,
    sampled_record,
)
from backend.detectors.queries import Scope
from backend.detectors.schemas import (
    AuditResponse,
    CutOffResponse,
    DetectorDetail,
    DetectorResponse,
    DetectorSettingsResponse,
    EnvironmentRecord,
    GraderQuestionResponse,
    SampledRecordResponse,
)
from backend.detectors.tables import DetectorSetting
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import ActiveSettings, DetectorChanges, DetectorSettings, resolve_settings
from backend.domain.detectors.spec import DetectorSpec, Subject
from backend.domain.detectors.track_record import FEWEST_REVIEWED, TARGET_PRECISION, Audit, Record, least_recall, total
from backend.environments.tables import Environment
from backend.errors import Conflict, InvalidInput, NotFound
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor


class GraderHasNoSettings(Conflict):
    """A grader has no settings here: it runs on demand, and a reviewer decides on its flags."""


def get_spec(detector: str) -> DetectorSpec:
    if is_grader_detector(detector):
        raise GraderHasNoSettings
    if detector not in SPECS:
        raise NotFound("There is no such detector.")
    return SPECS[detector]


def list_detectors(session: Session, scope: Scope) -> tuple[list[DetectorResponse], Audit]:
    """All built-in detectors and graders that raise flags, most flags first; and the audit sample of all runs."""
    records, sample = queries.records(session, scope), total(Audit, queries.audits(session, scope).values())
    found = [_response(spec, records.get(spec.id, {}).values(), sample) for spec in SPECS.values()]
    if graders := grader_detectors(session, records):
        graded = audits_of_graders(session, scope)
        for name, grader in graders.items():
            own = total(Audit, graded.get(name, {}).values())
            found.append(_response(grader.spec, records.get(name, {}).values(), own, grader.questions))
    return sorted(found, key=lambda each: (-each.record.flags, each.id)), sample


def get_detector(
    session: Session, detector: str, scope: Scope
) -> tuple[DetectorDetail, Mapping[str, DetectorSettings]]:
    """Everything about a detector, and its settings by environment. Cut-offs only where a suspicion raises its flags
    and not an answer."""
    questions: Sequence[GraderQuestionResponse] = ()
    settings: Mapping[str, DetectorSettings] = {}
    sampled: SampledRecord | None = None
    if is_grader_detector(detector):
        grader = grader_detectors(session, {detector}).get(detector)
        if grader is None:
            raise NotFound("There is no such detector.")
        spec, questions = grader.spec, grader.questions
        audits = audits_of_graders(session, scope).get(detector, {})
        sampled = sampled_record(session, detector, scope)
    else:
        spec, settings, audits = (
            get_spec(detector),
            queries.settings_of(session, detector),
            queries.audits(session, scope),
        )
    records = queries.records(session, scope).get(detector, {})
    scores = queries.reviewed_scores(session, detector, scope) if spec.settings else []
    kept = {score: [is_right for each, is_right in scores if each >= score] for score in dict(scores)}
    cut_offs = [
        CutOffResponse(score=score, caught=sum(right), cost=len(right) - sum(right))
        for score, right in sorted(kept.items())
    ]
    precise = (each for each in cut_offs if each.caught / (each.caught + each.cost) >= TARGET_PRECISION)
    sample = total(Audit, audits.values())
    detail = DetectorDetail(
        **dict(_response(spec, records.values(), sample, questions)),
        by_environment={
            name: EnvironmentRecord.from_row(record, recall_at_least=_recall(spec, record, audits.get(name, Audit())))
            for name, record in records.items()
        },
        audit=AuditResponse.of(sample),
        cut_offs=cut_offs[:: max(1, -(-len(cut_offs) // 12))],
        suggested=next(precise, None) if len(scores) >= FEWEST_REVIEWED else None,
        settings={name: DetectorSettingsResponse.of(resolve_settings(spec, [each])) for name, each in settings.items()},
        sampled=SampledRecordResponse.of(sampled) if sampled else None,
    )
    return detail, settings


def _response(
    spec: DetectorSpec, records: Iterable[Record], sample: Audit, questions: Sequence[GraderQuestionResponse] = ()
) -> DetectorResponse:
    record = total(Record, records)
    recall = _recall(spec, record, sample)
    return DetectorResponse.from_row(spec, record=record, recall_at_least=recall, questions=questions)


def _recall(spec: DetectorSpec, record: Record, sample: Audit) -> float | None:
    return least_recall(record.hacks, sample) if spec.subject is Subject.ROLLOUT else None


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
        names = {"environment_id": environment.id, "detector": detector, "changed_by": actor.person_id}
        session.add(DetectorSetting(**names, **settings))
    setting = wanted.model_dump(mode="json", exclude_none=True)
    audit(session, actor, "detector.set", "environment", environment.id, detector=detector, setting=setting)
    return resolve_settings(spec, [wanted])


def change_for_environment(
    session: Session, actor: Actor, environment: Environment, detector: str, changes: DetectorChanges
) -> ActiveSettings:
    get_spec(detector)
    of_environment = DetectorSetting.environment_id == environment.id, DetectorSetting.detector == detector
    row = session.scalars(select(DetectorSetting).where(*of_environment)).one_or_none()
    known = DetectorSettings.model_validate(row, from_attributes=True) if row else DetectorSettings()
    return set_for_environment(session, actor, environment, detector, changes.over(known))
