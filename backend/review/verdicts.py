"""Verdicts: each is a new record, the newest that stands counts, nothing is overwritten. Whoever gave one may take it
back; it stays in the history."""

import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, run_topic
from backend.detectors.tables import Flag
from backend.review import flag_queries, queue
from backend.review.consequences import follow_undo, follow_verdict, weigh_again
from backend.review.tables import VerdictRecord
from backend.review.verdict_schemas import VerdictForm
from backend.rollouts.tables import Rollout
from backend.web.audit import audit
from backend.web.identity import Actor

RESENT_WITHIN = timedelta(seconds=10)
"""The same verdict by the same person within this time is a form sent twice."""


def judge_flag(session: Session, actor: Actor, flag: Flag, form: VerdictForm) -> list[VerdictRecord]:
    """A decision on what was flagged: it counts for every flag on the same rollout."""
    flags = flag_queries.flags_of_subject(session, flag)
    return _record(session, actor, form, flag.run_id, flag.rollout_id, [each.id for each in flags])


def judge_rollout(
    session: Session, actor: Actor, rollout: Rollout, form: VerdictForm, *, is_blind: bool = False
) -> list[VerdictRecord]:
    """A decision on a rollout, flagged or not; blind where the transcript alone was shown."""
    flags = flag_queries.flags_of_rollout(session, rollout.id)
    flag_ids: list[uuid.UUID | None] = [each.id for each in flags]
    return _record(session, actor, form, rollout.run_id, rollout.id, flag_ids or [None], is_blind=is_blind)


def _record(
    session: Session,
    actor: Actor,
    form: VerdictForm,
    run_id: uuid.UUID,
    rollout_id: uuid.UUID | None,
    flag_ids: Sequence[uuid.UUID | None],
    *,
    is_blind: bool = False,
) -> list[VerdictRecord]:
    records = [_find_resent(session, actor, form, run_id, rollout_id, flag_id) for flag_id in flag_ids]
    if known := [record for record in records if record]:
        return known
    made = [
        VerdictRecord(
            run_id=run_id,
            rollout_id=rollout_id,
            flag_id=flag_id,
            verdict=form.verdict,
            comment=form.comment,
            is_blind=is_blind,
            person_id=actor.person_id,
        )
        for flag_id in flag_ids
    ]
    session.add_all(made)
    session.flush()
    queue.mark(session, {rollout_id} if rollout_id else {flag_id for flag_id in flag_ids if flag_id})
    if rollout_id:
        follow_verdict(session, actor, run_id, rollout_id, form.verdict)
    subject = ("rollout", rollout_id) if rollout_id else ("run", run_id)
    audit(session, actor, "verdict.give", *subject, verdict=str(form.verdict), flags=len(flag_ids))
    announce(session, REVIEW, run_topic(run_id))
    return made


def take_back(session: Session, actor: Actor, records: Collection[VerdictRecord]) -> None:
    """One decision, stored for each flag and each rollout that it was about: what it caused is withdrawn."""
    now = datetime.now(UTC)
    for record in records:
        record.taken_back_at = now
    session.flush()
    queue.mark(session, {id for record in records if (id := record.rollout_id or record.flag_id)})
    looks = {(each.run_id, each.rollout_id): each for each in records if each.rollout_id and not each.is_bulk}
    for (run_id, rollout_id), record in looks.items():
        if rollout_id:
            follow_undo(session, actor, run_id, rollout_id, record.verdict, record.created_at)
    weigh_again(session, {record.run_id for record in records if record.is_bulk})
    for record in list(looks.values()) or list(records)[:1]:
        subject = ("rollout", record.rollout_id) if record.rollout_id and not record.is_bulk else ("run", record.run_id)
        audit(session, actor, "verdict.take_back", *subject, verdict=str(record.verdict), count=len(records))
    announce(session, REVIEW, *{run_topic(record.run_id) for record in records})


def _find_resent(
    session: Session,
    actor: Actor,
    form: VerdictForm,
    run_id: uuid.UUID,
    rollout_id: uuid.UUID | None,
    flag_id: uuid.UUID | None,
) -> VerdictRecord | None:
    statement = select(VerdictRecord).where(
        VerdictRecord.run_id == run_id,
        VerdictRecord.rollout_id == rollout_id,
        VerdictRecord.flag_id == flag_id,
        VerdictRecord.taken_back_at.is_(None),
    )
    newest = session.scalar(statement.order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc()).limit(1))
    is_same = (
        newest is not None
        and newest.person_id == actor.person_id
        and (newest.verdict, newest.comment) == (form.verdict, form.comment)
        and datetime.now(UTC) - newest.created_at < RESENT_WITHIN
    )
    return newest if is_same else None
