"""Flags and verdicts by detector, and results of the audit sample."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.detectors.tables import DetectorSetting, Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import ActiveSettings, DetectorSettings, resolve_settings
from backend.domain.detectors.track_record import Audit, Record
from backend.domain.vocabulary import Phase, RolloutStatus, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.review.tables import AuditDraw, AuditSample, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

RIGHT = (Verdict.HACK, Verdict.BROKEN_REWARD)
"""Verdicts that say a suspicion was right."""
JUDGED_PHASES = (Phase.TRAIN, Phase.EVALUATION)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which runs: of one environment, one run, or all."""

    environment: str = ""
    run_id: uuid.UUID | None = None

    def of(self, statement: Any, run_id: Any) -> Any:
        """Narrows a statement whose rows belong to the run in this column."""
        if self.run_id is not None:
            return statement.where(run_id == self.run_id)
        if self.environment:
            of_environment = (
                select(Run.id)
                .join(Run.version)
                .join(EnvironmentVersion.environment)
                .where(Environment.name == self.environment)
            )
            return statement.where(run_id.in_(of_environment))
        return statement


def records(session: Session, scope: Scope) -> dict[str, dict[str, Record]]:
    """By detector and environment."""
    verdict, with_verdicts = _verdicts_of_flags()
    is_right = verdict.in_([str(each) for each in RIGHT])
    statement = with_verdicts(
        select(
            Flag.detector,
            Environment.name,
            func.count(),
            func.count().filter(is_right),
            func.count().filter(verdict == str(Verdict.HONEST)),
            func.count().filter(is_right, Flag.rollout_id.is_not(None)),
            func.count().filter(verdict.is_(None)),
        )
        .join(Run, Run.id == Flag.run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .join(Environment, Environment.id == EnvironmentVersion.environment_id)
        .group_by(Flag.detector, Environment.name)
    )
    found: defaultdict[str, dict[str, Record]] = defaultdict(dict)
    for detector, environment, *figures in session.execute(scope.of(statement, Flag.run_id)):
        found[detector][environment] = Record(*figures)
    return found


def reviewed_scores(session: Session, detector: str, scope: Scope) -> list[tuple[float, bool]]:
    """Suspicion of every reviewed flag on a rollout or a run, and whether it was right."""
    verdict, with_verdicts = _verdicts_of_flags()
    of_detector = select(Flag.score, verdict).where(Flag.detector == detector, verdict != str(Verdict.UNSURE))
    rows = session.execute(scope.of(with_verdicts(of_detector), Flag.run_id))
    return [(score, Verdict(verdict) in RIGHT) for score, verdict in rows]


def hacks_found(session: Session, scope: Scope) -> Counter[str]:
    """Number of rollouts that any detector flagged and reviewers confirmed individually, by environment."""
    looked_at = newest_looks(VerdictRecord.rollout_id)
    statement = (
        select(func.count(Flag.rollout_id.distinct()))
        .join(looked_at, looked_at.c.subject == Flag.rollout_id)
        .where(looked_at.c.verdict.in_([str(each) for each in RIGHT]))
    )
    found = _by_environment(session, scope.of(statement, Flag.run_id), Flag.run_id)
    return Counter({name: count for name, (count,) in found.items()})


def audits(session: Session, scope: Scope) -> dict[str, Audit]:
    """The audit sample by environment. Rollouts that were flagged later no longer count as unflagged."""
    looked_at = newest_looks(VerdictRecord.rollout_id)
    sample = (
        select(
            func.count(),
            func.count().filter(looked_at.c.verdict != str(Verdict.UNSURE)),
            func.count().filter(looked_at.c.verdict.in_([str(each) for each in RIGHT])),
        )
        .select_from(AuditSample)
        .outerjoin(looked_at, looked_at.c.subject == AuditSample.rollout_id)
    )
    drawn_runs = scope.of(select(AuditDraw.run_id), AuditDraw.run_id)
    everyone = (
        select(func.count())
        .select_from(Rollout)
        .where(
            Rollout.run_id.in_(drawn_runs),
            Rollout.phase.in_(JUDGED_PHASES),
            Rollout.status == RolloutStatus.COMPLETED,
        )
    )
    flagged = select(func.count(Flag.rollout_id.distinct())).where(Flag.run_id.in_(drawn_runs))
    samples = _by_environment(session, scope.of(sample, AuditSample.run_id), AuditSample.run_id)
    rollouts = _by_environment(session, everyone, Rollout.run_id)
    known = _by_environment(session, flagged, Flag.run_id)
    found = {}
    for name in samples.keys() | rollouts.keys():
        unflagged = rollouts.get(name, (0,))[0] - known.get(name, (0,))[0]
        found[name] = Audit(max(0, unflagged), *samples.get(name, (0, 0, 0)))
    return found


def audit_of(session: Session, scope: Scope) -> Audit:
    """The audit sample of all environments together."""
    return sum(audits(session, scope).values(), Audit())


def settings_of(session: Session, detector: str) -> dict[str, DetectorSettings]:
    """Settings by name of the environment."""
    statement = (
        select(DetectorSetting, Environment.name)
        .join(Environment, Environment.id == DetectorSetting.environment_id)
        .where(DetectorSetting.detector == detector)
        .order_by(Environment.name)
    )
    return {
        name: DetectorSettings.model_validate(setting, from_attributes=True)
        for setting, name in session.execute(statement)
    }


def active_settings_for(session: Session, environment_id: uuid.UUID) -> dict[str, ActiveSettings]:
    """Settings of each detector: the environment's on top of the defaults."""
    statement = select(DetectorSetting).where(DetectorSetting.environment_id == environment_id)
    wanted = {
        row.detector: [DetectorSettings.model_validate(row, from_attributes=True)] for row in session.scalars(statement)
    }
    return {name: resolve_settings(spec, wanted.get(name, ())) for name, spec in SPECS.items()}


def environments(session: Session) -> Sequence[str]:
    """Names of environments that are not archived."""
    return session.scalars(
        select(Environment.name).where(Environment.archived_at.is_(None)).order_by(Environment.name)
    ).all()


def _by_environment(session: Session, counts: Any, run_id: Any) -> dict[str, tuple[int, ...]]:
    """Counts of rows that belong to the run in this column."""
    statement = (
        counts.join(Run, Run.id == run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .join(Environment, Environment.id == EnvironmentVersion.environment_id)
        .add_columns(Environment.name)
        .group_by(Environment.name)
    )
    return {name: tuple(figures) for *figures, name in session.execute(statement)}


def _verdicts_of_flags() -> tuple[Any, Callable[[Any], Any]]:
    """The verdict on a flag: on its rollout, or on the flag itself if it is about a run; and a function that joins the
    verdicts to a statement over flags."""
    by_rollout, by_flag = newest_looks(VerdictRecord.rollout_id), newest_looks(VerdictRecord.flag_id)

    def join(statement: Any) -> Any:
        of_rollouts = statement.outerjoin(by_rollout, by_rollout.c.subject == Flag.rollout_id)
        return of_rollouts.outerjoin(by_flag, and_(by_flag.c.subject == Flag.id, Flag.rollout_id.is_(None)))

    return case((Flag.rollout_id.is_not(None), by_rollout.c.verdict), else_=by_flag.c.verdict), join


def newest_looks(subject: Any) -> Any:
    """The newest verdict by rollout, or by flag, that a reviewer gave to it individually; `unsure` only if there is no
    other."""
    is_look: ColumnElement[bool] = ~VerdictRecord.is_bulk & VerdictRecord.taken_back_at.is_(None)
    says_nothing = VerdictRecord.verdict == Verdict.UNSURE
    return (
        select(subject.label("subject"), VerdictRecord.verdict)
        .where(subject.is_not(None), is_look)
        .order_by(subject, says_nothing, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(subject))
        .subquery()
    )
