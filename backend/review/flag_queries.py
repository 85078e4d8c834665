"""What is asked of flags and verdicts."""

import uuid
from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Select, and_, case, exists, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, joinedload, undefer

from backend.detectors.tables import Flag
from backend.domain.vocabulary import Severity, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.review.tables import VerdictRecord
from backend.review.verdict_schemas import FlagFilter, Shown
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run

_RANK = case({str(severity): rank for rank, severity in enumerate(Severity)}, value=Flag.severity)
_IS_REVIEWED = exists().where(VerdictRecord.flag_id == Flag.id, VerdictRecord.taken_back_at.is_(None))


def flags_matching(chosen: FlagFilter) -> Select[Flag]:
    statement = select(Flag)
    if chosen.shown is not Shown.ALL:
        statement = statement.where(_IS_REVIEWED if chosen.shown is Shown.REVIEWED else ~_IS_REVIEWED)
    if chosen.detector:
        statement = statement.where(Flag.detector == chosen.detector)
    if chosen.run:
        statement = statement.where(Flag.run_id == chosen.run)
    if chosen.environment:
        statement = statement.join(Flag.run).join(Run.version).join(EnvironmentVersion.environment)
        statement = statement.where(Environment.name == chosen.environment)
    return statement


_WITH_RUN = (
    joinedload(Flag.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
    joinedload(Flag.run).joinedload(Run.policy),
)


def newest_verdicts(session: Session, flag_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
    """The verdict that counts, by flag."""
    statement = (
        select(VerdictRecord.flag_id, VerdictRecord.verdict)
        .where(VerdictRecord.flag_id.in_(list(flag_ids)), VerdictRecord.taken_back_at.is_(None))
        .order_by(VerdictRecord.flag_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.flag_id))
    )
    return {flag_id: verdict for flag_id, verdict in session.execute(statement) if flag_id is not None}


def get_flag(session: Session, flag_id: uuid.UUID) -> Flag:
    """With its run, and its rollout's whole transcript."""
    with_transcript = joinedload(Flag.rollout).options(*_TRANSCRIPT)
    flag = session.scalar(select(Flag).options(*_WITH_RUN, with_transcript).where(Flag.id == flag_id))
    if flag is None:
        raise NotFound("There is no such flag.")
    return flag


_TRANSCRIPT = (undefer(Rollout.steps), undefer(Rollout.messages), joinedload(Rollout.group).joinedload(Group.task))


def flags_of_subject(session: Session, flag: Flag) -> Sequence[Flag]:
    """All flags on the same rollout; of a run-level flag only itself, because each says something else."""
    if flag.rollout_id is None:
        return [flag]
    return flags_of_rollout(session, flag.rollout_id)


def flags_of_rollout(session: Session, rollout_id: uuid.UUID) -> Sequence[Flag]:
    statement = select(Flag).where(Flag.rollout_id == rollout_id)
    return session.scalars(statement.order_by(_RANK.desc(), Flag.score.desc(), Flag.id)).all()


def verdicts_on(session: Session, flag: Flag) -> Sequence[VerdictRecord]:
    """The history of a flag, and of its rollout where a verdict was given without a flag. Newest first."""
    about: list[ColumnElement[bool]] = [VerdictRecord.flag_id == flag.id]
    if flag.rollout_id:
        about.append(and_(VerdictRecord.rollout_id == flag.rollout_id, VerdictRecord.flag_id.is_(None)))
    statement = select(VerdictRecord).options(joinedload(VerdictRecord.person)).where(or_(*about))
    return session.scalars(statement.order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())).all()


def get_rollout(session: Session, rollout_id: uuid.UUID) -> Rollout:
    rollout = session.get(Rollout, rollout_id)
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout
