"""Flags and verdicts by detector, and results of the audit sample."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.detectors.schemas import ColumnReturn
from backend.detectors.tables import DetectorSetting, Flag
from backend.domain.detectors.catalogue import column_surface
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import ActiveSettings, DetectorSettings, resolve_settings
from backend.domain.detectors.track_record import Audit, Record
from backend.domain.vocabulary import Phase, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.results.rewards import count_completed
from backend.review.tables import AuditDraw, AuditSample, VerdictRecord
from backend.runs.tables import Run

RIGHT = (Verdict.HACK, Verdict.BROKEN_REWARD)
"""Verdicts that say a suspicion was right."""
JUDGED_PHASES = (Phase.TRAIN, Phase.EVALUATION)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which runs: of one environment, some runs, or all."""

    environment: str = ""
    run_ids: Collection[uuid.UUID] | None = None

    def of(self, statement: Any, run_id: Any) -> Any:
        """Join the environments of the runs in this column, and keep the rows of runs in the scope."""
        joined = (
            statement.join(Run, Run.id == run_id)
            .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
            .join(Environment, Environment.id == EnvironmentVersion.environment_id)
        )
        if self.run_ids is not None:
            return joined.where(run_id.in_(self.run_ids))
        return joined.where(Environment.name == self.environment) if self.environment else joined


def records(session: Session, scope: Scope) -> dict[str, dict[str, Record]]:
    """By detector and environment."""
    flags = _reviewed_flags()
    is_right = flags.verdict.in_([str(each) for each in RIGHT])
    statement = select(
        flags.detector,
        Environment.name,
        func.count(),
        func.count().filter(is_right),
        func.count().filter(flags.verdict == str(Verdict.HONEST)),
        func.count().filter(is_right, flags.rollout_id.is_not(None)),
        func.count().filter(flags.verdict.is_(None)),
    ).group_by(flags.detector, Environment.name)
    found: defaultdict[str, dict[str, Record]] = defaultdict(dict)
    for detector, environment, *figures in session.execute(scope.of(statement, flags.run_id)):
        found[detector][environment] = Record(*figures)
    return found


def column_returns(session: Session, scope: Scope) -> list[ColumnReturn]:
    """Return the columns that reward the surface of texts, by the newest 50 flags."""
    statement = select(Flag, Run.name, Environment.name).where(
        Flag.detector == column_surface.SPEC.id, Flag.rollout_id.is_(None)
    )
    rows = session.execute(scope.of(statement, Flag.run_id).order_by(Flag.id.desc()).limit(50))
    return [
        ColumnReturn.from_row(
            flag,
            run=run,
            environment=environment,
            column=flag.evidence["column"],
            step=flag.training_step if "window" in flag.evidence else None,
            **flag.evidence["returns"][0],
        )
        for flag, run, environment in rows
    ]


def reviewed_scores(session: Session, detector: str, scope: Scope) -> list[tuple[float, bool]]:
    """Suspicion of every reviewed flag on a rollout or a run, and whether it was right."""
    flags = _reviewed_flags()
    statement = select(flags.score, flags.verdict).where(flags.detector == detector, flags.verdict != Verdict.UNSURE)
    rows = session.execute(scope.of(statement, flags.run_id))
    return [(score, Verdict(verdict) in RIGHT) for score, verdict in rows]


def audits(session: Session, scope: Scope, by: Any = Environment.name) -> dict[Any, Audit]:
    """The audit sample and the confirmed hacks by environment, or by another column of the runs.

    Rollouts that were flagged later no longer count as unflagged.
    """
    looks = newest_looks(VerdictRecord.rollout_id)
    is_right = looks.c.verdict.in_([str(each) for each in RIGHT])
    drawn_runs = scope.of(select(AuditDraw.run_id), AuditDraw.run_id)
    key_of = {row.run_id: row.key for row in session.execute(drawn_runs.add_columns(by.label("key")))}
    sample = (
        select(
            func.count().label("drawn"),
            func.count().filter(looks.c.verdict != str(Verdict.UNSURE)).label("looked_at"),
            func.count().filter(is_right).label("hacks"),
        )
        .select_from(AuditSample)
        .where(~AuditSample.is_flagged)
    )
    hits = func.count(Flag.rollout_id.distinct())
    counts = (
        (AuditSample.run_id, sample.outerjoin(looks, looks.c.subject == AuditSample.rollout_id)),
        (Flag.run_id, select(hits.label("flagged")).where(Flag.run_id.in_(drawn_runs))),
        (Flag.run_id, select(hits.label("found")).join(looks, looks.c.subject == Flag.rollout_id).where(is_right)),
    )
    found: defaultdict[Any, dict[str, int]] = defaultdict(dict)
    for run_id, amount in count_completed(session, key_of, JUDGED_PHASES).items():
        figures = found[key_of[run_id]]
        figures["rollouts"] = figures.get("rollouts", 0) + amount
    for column, counted in counts:
        statement = scope.of(counted, column).add_columns(by.label("key")).group_by(by)
        for row in session.execute(statement).mappings():
            figures = dict(row)
            found[figures.pop("key")] |= figures
    return {key: Audit(**figures) for key, figures in found.items()}


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


def _reviewed_flags() -> Any:
    """Columns of flags, with the verdict on their rollout, or on the flag itself if it is about a run."""
    by_rollout, by_flag = newest_looks(VerdictRecord.rollout_id), newest_looks(VerdictRecord.flag_id)
    verdict = case((Flag.rollout_id.is_not(None), by_rollout.c.verdict), else_=by_flag.c.verdict)
    statement = (
        select(Flag.run_id, Flag.detector, Flag.score, Flag.rollout_id, verdict.label("verdict"))
        .outerjoin(by_rollout, by_rollout.c.subject == Flag.rollout_id)
        .outerjoin(by_flag, and_(by_flag.c.subject == Flag.id, Flag.rollout_id.is_(None)))
    )
    return statement.subquery().c


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
