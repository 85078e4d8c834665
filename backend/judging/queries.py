"""What is asked of flags and verdicts."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, exists, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import InstrumentedAttribute, Session, joinedload, undefer

from backend.db.models import Environment, EnvironmentVersion, Flag, Group, Rollout, Run, VerdictRecord
from backend.domain.vocabulary import Severity, Verdict
from backend.errors import NotFound
from backend.judging.forms import FlagFilter, Order, Shown
from backend.web.paging import make_cursor, read_cursor

_RANK = case({str(severity): rank for rank, severity in enumerate(Severity)}, value=Flag.severity)
_SUBJECT: ColumnElement[uuid.UUID] = func.coalesce(Flag.rollout_id, Flag.run_id)
"""What flags are grouped by: the rollout, or the run where no rollout is meant."""
_IS_REVIEWED = exists().where(VerdictRecord.flag_id == Flag.id)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rollout or run of the queue with the flags on it."""

    flags: list[Flag]
    verdicts: dict[uuid.UUID, Verdict]
    """Newest verdict by flag, where there is one."""

    @property
    def first(self) -> Flag:
        """The one to open: unreviewed before reviewed."""
        return next((flag for flag in self.flags if flag.id not in self.verdicts), self.flags[0])

    @property
    def severity(self) -> Severity:
        return max((flag.severity for flag in self.flags), key=list(Severity).index)

    @property
    def run(self) -> Run:
        return self.flags[0].run

    @property
    def rollout(self) -> Rollout | None:
        return self.flags[0].rollout

    @property
    def latest(self) -> datetime:
        return max(flag.created_at for flag in self.flags)


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


def queue(
    session: Session, chosen: FlagFilter, *, after: str | None = None, limit: int
) -> tuple[list[Suspect], str | None]:
    """Suspects in the order of the queue, and the cursor of the next page."""
    keys = _group_keys(chosen)
    statement = select(*keys)
    if after:
        statement = statement.where(_below(keys, read_cursor(after, keys)))
    rows = session.execute(statement.order_by(*(key.desc() for key in keys)).limit(limit + 1)).all()
    suspects = _suspects(session, chosen, [row[-1] for row in rows[:limit]])
    return suspects, make_cursor(*rows[limit - 1]) if len(rows) > limit else None


def _group_keys(chosen: FlagFilter) -> list[ColumnElement[Any]]:
    """The columns by which suspects are ordered, all descending; the last is the subject."""
    grouped = (
        flags_matching(chosen)
        .with_only_columns(
            _SUBJECT.label("subject"), func.max(_RANK).label("rank"), func.max(Flag.created_at).label("at")
        )
        .group_by(_SUBJECT)
        .subquery()
    )
    worst = [grouped.c.rank] if chosen.order is Order.WORST else []
    return [*worst, grouped.c.at, grouped.c.subject]


def _below(keys: Sequence[ColumnElement[Any]], values: Sequence[Any]) -> ColumnElement[bool]:
    return or_(
        *(
            and_(*(keys[before] == values[before] for before in range(position)), key < values[position])
            for position, key in enumerate(keys)
        )
    )


def _suspects(session: Session, chosen: FlagFilter, subjects: Sequence[uuid.UUID]) -> list[Suspect]:
    statement = flags_matching(chosen).where(_SUBJECT.in_(subjects)).options(*_WITH_RUN, joinedload(Flag.rollout))
    by_subject: defaultdict[uuid.UUID, list[Flag]] = defaultdict(list)
    for flag in session.scalars(statement.order_by(_RANK.desc(), Flag.score.desc())):
        by_subject[flag.rollout_id or flag.run_id].append(flag)
    newest = newest_verdicts(session, [flag.id for flags in by_subject.values() for flag in flags])
    return [Suspect(by_subject[subject], newest) for subject in subjects if subject in by_subject]


_WITH_RUN = (
    joinedload(Flag.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
    joinedload(Flag.run).joinedload(Run.policy),
)


def newest_verdicts(session: Session, flag_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
    """The verdict that counts, by flag."""
    statement = (
        select(VerdictRecord.flag_id, VerdictRecord.verdict)
        .where(VerdictRecord.flag_id.in_(list(flag_ids)))
        .order_by(VerdictRecord.flag_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.flag_id))
    )
    return {flag_id: verdict for flag_id, verdict in session.execute(statement) if flag_id is not None}


def count_unreviewed(session: Session) -> int:
    """How many rollouts and runs wait for a person."""
    statement = select(func.count(_SUBJECT.distinct())).where(~_IS_REVIEWED)
    return session.scalar(statement) or 0


def get_flag(session: Session, flag_id: uuid.UUID) -> Flag:
    """With its run, and its rollout's whole transcript."""
    with_transcript = joinedload(Flag.rollout).options(*_TRANSCRIPT)
    flag = session.scalar(select(Flag).options(*_WITH_RUN, with_transcript).where(Flag.id == flag_id))
    if flag is None:
        raise NotFound("There is no such flag.")
    return flag


_TRANSCRIPT = (undefer(Rollout.steps), undefer(Rollout.messages), joinedload(Rollout.group).joinedload(Group.task))


def rollouts_with_transcripts(session: Session, run_id: uuid.UUID, ids: Sequence[uuid.UUID]) -> list[Rollout]:
    """Examples of a run-level flag, in the order given."""
    statement = select(Rollout).where(Rollout.run_id == run_id, Rollout.id.in_(ids)).options(*_TRANSCRIPT)
    found = {rollout.id: rollout for rollout in session.scalars(statement)}
    return [found[id] for id in ids if id in found]


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


def next_suspect(session: Session, chosen: FlagFilter, flag: Flag) -> Flag | None:
    """Whom to look at after this flag: another flag on the same run, further down the queue, else its top."""
    waiting = FlagFilter(**chosen.model_dump() | {"shown": Shown.UNREVIEWED})
    if flag.rollout_id is None and (other := _first_flag(session, waiting, flag.run_id, but=flag.id)):
        return other
    here = flag.rollout_id or flag.run_id
    keys = _group_keys(waiting)
    statement = select(keys[-1]).where(keys[-1] != here).order_by(*(key.desc() for key in keys)).limit(1)
    subject = None
    if place := _place(session, chosen, here):
        subject = session.scalar(statement.where(_below(keys, place)))
    subject = subject or session.scalar(statement)
    return _first_flag(session, waiting, subject) if subject else None


def _place(session: Session, chosen: FlagFilter, subject: uuid.UUID) -> Sequence[Any] | None:
    """Where a suspect stands in the queue, reviewed or not."""
    keys = _group_keys(FlagFilter(**chosen.model_dump() | {"shown": Shown.ALL}))
    return session.execute(select(*keys).where(keys[-1] == subject)).one_or_none()


def _first_flag(session: Session, chosen: FlagFilter, subject: uuid.UUID, but: uuid.UUID | None = None) -> Flag | None:
    statement = flags_matching(chosen).where(
        _SUBJECT.is_not_distinct_from(subject), Flag.id != (but or uuid.UUID(int=0))
    )
    return session.scalar(statement.order_by(_RANK.desc(), Flag.score.desc(), Flag.id).limit(1))


def choices(session: Session) -> tuple[list[str], list[str]]:
    """Detectors and environments that have flags, for the filters."""
    detectors = session.scalars(select(Flag.detector).distinct().order_by(Flag.detector)).all()
    names: InstrumentedAttribute[str] = Environment.name
    environments = (
        select(names).join(EnvironmentVersion).join(Run, Run.version_id == EnvironmentVersion.id).join(Flag).distinct()
    )
    return list(detectors), sorted(session.scalars(environments))


def get_rollout(session: Session, rollout_id: uuid.UUID) -> Rollout:
    rollout = session.get(Rollout, rollout_id)
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout
