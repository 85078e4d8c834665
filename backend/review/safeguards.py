"""The safeguards report of a run, read at one moment. Free of the web, because it goes into every export's card."""

import uuid
from collections import Counter
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.detectors import queries
from backend.detectors.grader_detectors import grader_detectors, is_grader_detector
from backend.detectors.queries import Scope
from backend.detectors.schemas import ColumnReturn
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Action
from backend.domain.detectors.track_record import Audit, least_recall, total
from backend.domain.studies.effort import EffortMeasure, EffortOutcome
from backend.domain.studies.study import StudyKind
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, CheckStatus, RunKind, RunStatus
from backend.environments.queries import newest_certificate
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.operations.schemas import Response
from backend.results.rewards import count_completed
from backend.review.corrected_rates import CorrectedRate, corrected_rates
from backend.review.judged_curves import curve_of, has_verdicts, judgements_of
from backend.review.tables import VerdictFixture, VerdictRecord
from backend.runs.tables import Run
from backend.studies.patterns import describe_onset, pattern_name
from backend.studies.queries import checkpoints_of_studies, list_studies
from backend.team.tables import Person
from backend.training.tables import Alarm, Intervention, SettingChange


class CertificateTold(Response):
    """The newest one of the version, whatever it was when the run began."""

    status: CheckStatus
    passed: int
    total: int
    failed: list[str]
    issued_at: datetime


class DetectorTold(Response):
    id: str
    title: str
    flags: int
    open: int
    confirmed: int
    honest: int
    precision_low: float
    precision_high: float
    recall_at_least: float | None


class AuditTold(Response):
    """The random audit sample of this run."""

    unflagged: int
    drawn: int
    looked_at: int
    hacks: int
    rate_low: float
    rate_high: float
    """95% interval of the hack rate among unflagged rollouts."""


class RewardTold(Response):
    """At the newest step with rollouts; of an evaluation, all of it."""

    step: int
    trained: float
    judged: float
    low: float | None
    high: float | None


class Intervened(Response):
    """An alarm or a detector that screened, and what came of it."""

    step: int
    """Only for detectors that screened: the first step."""
    name: str
    sentence: str
    action: AlarmAction | Action
    answer: AlarmAnswer | None
    answered_by: str | None


class Change(Response):
    """A setting that was changed while the run trained, or where it branched off."""

    step: int | None
    name: str
    before: Any
    after: Any
    by: str
    """A person, or `an alarm`."""


class BestTold(Response):
    stage: str
    step: int
    heldout_reward: float | None
    judged_reward: float | None


class OnsetTold(Response):
    """A search for the checkpoint at which a confirmed pattern began."""

    pattern: str
    status: RunStatus
    found: str
    honest_step: int | None
    hacking_step: int | None
    sampled: int
    """Checkpoints, the starting policy included."""
    remarks: list[str]


class EffortTold(Response):
    """How much of its reasoning a checkpoint needs for its reward, against the policy that reinforcement began with."""

    checkpoint: str
    base: str
    """Empty without a base."""
    measure: EffortMeasure
    status: RunStatus
    outcome: EffortOutcome | None
    """Null while the study runs."""
    found: str
    """The result as a sentence."""
    difference: float | None
    """Checkpoint minus base, over the tasks that both solved."""
    low: float | None
    high: float | None
    """95% interval."""
    tasks: int | None
    asked_at: datetime
    ended_at: datetime | None


class Safeguards(Response):
    """All of the report."""

    run_id: uuid.UUID
    run: str
    kind: RunKind
    environment: str
    version: int
    content_hash: str
    certificate: CertificateTold | None
    without_certificate: str
    """Reason for training without a passing certificate."""
    fixtures_hack: int
    fixtures_honest: int
    """Judged episodes of the environment that every certificate replays."""
    rollouts: int
    watching: list[str]
    switched_off: list[str]
    """Detectors that the environment or the run disables."""
    detectors: list[DetectorTold]
    """Those with flags, most flags first."""
    columns: list[ColumnReturn]
    """Reward columns that reward the surface of texts, newest first."""
    audit: AuditTold
    rates: list[CorrectedRate]
    """The share of hacks by detectors and by each judge, corrected by verdicts."""
    verdicts: dict[str, int]
    """The newest verdict on each rollout."""
    reviewers: int
    given_in_bulk: int
    """Verdicts given to a whole cluster at once."""
    reward: RewardTold | None
    """Null without verdicts."""
    interventions: list[Intervened]
    changes: list[Change]
    onsets: list[OnsetTold]
    """Newest first."""
    efforts: list[EffortTold]
    """Newest first."""
    best: BestTold | None


def safeguards_of(session: Session, run_id: uuid.UUID) -> Safeguards:
    with_version = joinedload(Run.version).joinedload(EnvironmentVersion.environment)
    run = session.scalars(select(Run).options(with_version).where(Run.id == run_id)).one_or_none()
    if run is None:
        raise NotFound("There is no such run.")
    certificate = newest_certificate(session, run.version)
    results = certificate.results if certificate else ()
    statuses = {str(result["check"]): CheckStatus(result["status"]) for result in results}
    judgements = judgements_of(session, run.id)
    settings = queries.active_settings_for(session, run.version.environment_id)
    audit = total(Audit, queries.audits(session, Scope(run_ids=[run.id])).values())
    replayed = select(VerdictFixture).where(
        VerdictFixture.environment_id == run.version.environment_id, VerdictFixture.withdrawn_at.is_(None)
    )
    fixtures = Counter(fixture.is_positive for fixture in session.scalars(replayed))
    reviewers = select(func.count(VerdictRecord.person_id.distinct())).where(
        VerdictRecord.run_id == run.id, VerdictRecord.taken_back_at.is_(None)
    )
    points = curve_of(session, run) if has_verdicts(session, run.id) else []
    best = session.scalar(select(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.is_best).limit(1))
    return Safeguards(
        run_id=run.id,
        run=run.name,
        kind=run.kind,
        environment=run.version.environment.name,
        version=run.version.number,
        content_hash=run.version.content_hash,
        certificate=certificate
        and CertificateTold.from_row(
            certificate,
            passed=sum(status is CheckStatus.PASSED for status in statuses.values()),
            total=len(statuses),
            failed=[name for name, status in statuses.items() if status is CheckStatus.FAILED],
            issued_at=certificate.created_at,
        ),
        without_certificate=str(run.configuration.get("without_certificate") or ""),
        fixtures_hack=fixtures[False],
        fixtures_honest=fixtures[True],
        rollouts=count_completed(session, [run.id]).get(run.id, 0),
        watching=[name for name, force in settings.items() if force.enabled],
        switched_off=[name for name, force in settings.items() if not force.enabled],
        detectors=_detectors(session, run.id, audit),
        columns=queries.column_returns(session, Scope(run_ids=[run.id])),
        audit=AuditTold.from_row(audit, rate_low=audit.rate.low, rate_high=audit.rate.high),
        rates=corrected_rates(session, run),
        verdicts=dict(Counter(str(each.verdict) for each in judgements.values()).most_common()),
        reviewers=session.scalar(reviewers) or 0,
        given_in_bulk=sum(each.is_bulk for each in judgements.values()),
        reward=RewardTold.of(points[-1]) if points else None,
        interventions=_interventions(session, run.id),
        changes=_changes(session, run),
        onsets=_onsets(session, run.id),
        efforts=_efforts(session, run.id),
        best=BestTold.from_row(best, judged_reward=(best.heldout.get("judged") or {}).get("mean")) if best else None,
    )


def _detectors(session: Session, run_id: uuid.UUID, audit: Audit) -> list[DetectorTold]:
    records = queries.records(session, Scope(run_ids=[run_id]))
    graders = grader_detectors(session, records) if any(map(is_grader_detector, records)) else {}
    specs = {**SPECS, **{name: each.spec for name, each in graders.items()}}
    rows = []
    for detector, by_environment in records.items():
        (record,) = by_environment.values()
        spec = specs.get(detector)
        counts_recall = spec is not None and spec.subject == "rollout"
        row = DetectorTold.from_row(
            record,
            id=detector,
            title=spec.title if spec else detector,
            precision_low=record.precision.low,
            precision_high=record.precision.high,
            recall_at_least=least_recall(record.hacks, audit) if counts_recall else None,
        )
        rows.append(row)
    return sorted(rows, key=lambda each: (-each.flags, each.id))


def _interventions(session: Session, run_id: uuid.UUID) -> list[Intervened]:
    """Rollouts that each detector kept out of the gradient, then alarms."""
    first = func.min(Intervention.step)
    screened = (
        select(Intervention.detector, first, func.max(Intervention.step), func.sum(Intervention.rollouts))
        .where(Intervention.run_id == run_id, Intervention.action == Action.SCREEN)
        .group_by(Intervention.detector)
        .order_by(first, Intervention.detector)
    )
    rows = []
    for name, step, last, rollouts in session.execute(screened):
        sentence = f"{rollouts} rollouts of steps {step} to {last} were kept out of the gradient until judged."
        intervened = Intervened(
            step=step, name=name, sentence=sentence, action=Action.SCREEN, answer=None, answered_by=None
        )
        rows.append(intervened)
    alarms = select(Alarm).options(joinedload(Alarm.answerer)).where(Alarm.run_id == run_id).order_by(Alarm.id)
    for alarm in session.scalars(alarms):
        rows.append(Intervened.from_row(alarm, answered_by=alarm.answerer.name if alarm.answerer else None))
    return rows


def _changes(session: Session, run: Run) -> list[Change]:
    """Changes where the run continued with another run's weights, such as another version, then those of settings."""
    changes = []
    with_version = select(Run).options(joinedload(Run.version)).where(Run.id == run.source_run_id)
    source = session.scalar(with_version) if run.source_run_id and run.branch_step is not None else None
    if source:
        creator = session.get(Person, run.created_by) if run.created_by else None
        step, by = run.branch_step, creator.name if creator else "a former member"
        changes.append(Change(step=step, name="branched off", before=source.name, after=run.name, by=by))
        if source.version_id != run.version_id:
            before, after = f"v{source.version.number}", f"v{run.version.number}"
            changes.append(Change(step=step, name="environment version", before=before, after=after, by=by))
    settings = select(SettingChange).options(joinedload(SettingChange.asker)).where(SettingChange.run_id == run.id)
    for each in session.scalars(settings.order_by(SettingChange.id)):
        person = each.asker.name if each.asker else "an alarm" if each.alarm_id else "a former member"
        changes.append(Change(step=each.step, name=each.name, before=each.before, after=each.after, by=person))
    return changes


def _onsets(session: Session, run_id: uuid.UUID) -> list[OnsetTold]:
    studies = list_studies(session, run_id, StudyKind.ONSET)
    samples = checkpoints_of_studies(session, [study.id for study in studies])
    onsets = []
    for study in studies:
        settings, result = study.onset_settings, study.onset_result
        onset = OnsetTold(
            pattern=pattern_name(settings.detector, settings.cluster),
            status=study.status,
            found=describe_onset(result),
            honest_step=result.honest_step if result else None,
            hacking_step=result.hacking_step if result else None,
            sampled=sum(sample.rollouts is not None for sample in samples[study.id]),
            remarks=result.remarks if result else [],
        )
        onsets.append(onset)
    return onsets


def _efforts(session: Session, run_id: uuid.UUID) -> list[EffortTold]:
    studies = list_studies(session, run_id, StudyKind.EFFORT)
    sides = checkpoints_of_studies(session, [study.id for study in studies])
    efforts = []
    for study in studies:
        names = {side.is_base: side.name for side in sides[study.id]}
        result = study.effort_result
        effort = EffortTold.from_row(
            study,
            checkpoint=names[False],
            base=names.get(True, ""),
            measure=study.effort_settings.measure,
            found=result.sentence if result else study.reason or "",
            asked_at=study.created_at,
            **{name: getattr(result, name, None) for name in ("outcome", "difference", "low", "high", "tasks")},
        )
        efforts.append(effort)
    return efforts
