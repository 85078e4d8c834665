"""Verdicts: each is a new record, the newest one in force counts, and none is overwritten.

Reviewers can take back their own verdict. The record stays in the history and its consequences are withdrawn.
"""

import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, topic_of
from backend.core.queue import FOLLOW_JOB, enqueue
from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.vocabulary import JobStatus, Queue, RunKind, Verdict
from backend.errors import Conflict
from backend.review import queries, queue
from backend.review.fixtures import keep, restore_fixtures, update_fixtures
from backend.review.schemas import KeepFixture, VerdictRequest
from backend.review.tables import ReviewItem, VerdictFixture, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.web.audit import audit
from backend.web.identity import Actor

RESENT_WITHIN = timedelta(seconds=10)
"""The same verdict by the same person within this time is a form that was sent twice."""


def give_verdict(
    session: Session,
    actor: Actor,
    subject: Rollout | Flag | ReviewItem,
    request: VerdictRequest,
    *,
    is_blind: bool = False,
) -> list[VerdictRecord]:
    """Store a verdict and apply its consequences: the fixture at once, the best checkpoint by a job.

    One record is stored for each flag on the rollout. A verdict on a flag about a run covers only that flag.
    `is_blind`: the reviewer saw the transcript only.
    """
    run_id, rollout_id = subject.run_id, subject.id if isinstance(subject, Rollout) else subject.rollout_id
    flag_ids: list[uuid.UUID | None] = [subject.id]
    if rollout_id:
        flag_ids = [flag.id for flag in queries.flags_of_items(session, [rollout_id])[rollout_id]] or [None]
    since = datetime.now(UTC) - RESENT_WITHIN
    resent = select(VerdictRecord).where(
        VerdictRecord.run_id == run_id,
        VerdictRecord.rollout_id == rollout_id,
        VerdictRecord.taken_back_at.is_(None),
        VerdictRecord.created_at > since,
    )
    newest = {
        record.flag_id: record
        for record in session.scalars(resent.order_by(VerdictRecord.created_at, VerdictRecord.id))
        if record.flag_id in flag_ids
    }
    sent = (actor.person_id, request.verdict, request.comment)
    if known := [each for each in newest.values() if (each.person_id, each.verdict, each.comment) == sent]:
        return known
    records = [
        VerdictRecord(
            run_id=run_id,
            rollout_id=rollout_id,
            flag_id=flag_id,
            verdict=request.verdict,
            comment=request.comment,
            is_blind=is_blind,
            person_id=actor.person_id,
        )
        for flag_id in flag_ids
    ]
    session.add_all(records)
    session.flush()
    if rollout_id:
        reselect_best_checkpoints(session, {run_id})
    queue.mark(session, {rollout_id or subject.id})
    if rollout_id:
        update_fixtures(session, actor, rollout_id, request.verdict)
    audited = ("rollout", rollout_id) if rollout_id else ("run", run_id)
    audit(session, actor, "verdict.give", *audited, verdict=str(request.verdict), flags=len(flag_ids))
    announce(session, REVIEW, topic_of("run", run_id))
    return records


def keep_fixture(session: Session, actor: Actor, rollout_id: uuid.UUID, request: KeepFixture) -> VerdictFixture:
    """Make a rollout a fixture, after giving the request's verdict, if any."""
    if request.verdict is not None:
        given = VerdictRequest(verdict=request.verdict)
        give_verdict(session, actor, queries.get_rollout(session, rollout_id), given)
    return keep(session, actor, rollout_id, request.bound)


def judge_cluster(session: Session, actor: Actor, item: ReviewItem, verdict: Verdict) -> int:
    """Give the agreed verdict to all unreviewed items of the item's cluster; `unsure` takes that back.

    No reviewer has seen these rollouts, so they become no fixtures and count in no statistics. Returns their number.
    """
    cluster = queries.cluster_of(session, item)
    is_taken_back = verdict is Verdict.UNSURE
    if cluster is None or (not is_taken_back and cluster.agreed is not verdict):
        raise Conflict("A cluster can be judged at once after reviewers gave three of its rollouts the same verdict.")
    unseen = (
        select(ReviewItem)
        .filter_by(environment_id=item.environment_id, cluster=item.cluster)
        .where(func.cardinality(ReviewItem.reviewers) == 0, ReviewItem.verdict.is_not(None) == is_taken_back)
    )
    members = session.scalars(unseen.order_by(ReviewItem.id)).all()
    if is_taken_back:
        in_force = select(VerdictRecord).where(
            VerdictRecord.rollout_id.in_([member.id for member in members]),
            VerdictRecord.is_bulk,
            VerdictRecord.taken_back_at.is_(None),
        )
        _take_back(session, actor, session.scalars(in_force.order_by(VerdictRecord.id)).all())
        return len(members)
    flags = queries.flags_of_items(session, [member.id for member in members])
    comment = f"same as {sum(cluster.counts.values())} others of {cluster.name}"
    session.add_all(
        VerdictRecord(
            run_id=member.run_id,
            rollout_id=member.rollout_id,
            flag_id=flag.id,
            verdict=verdict,
            comment=comment,
            is_bulk=True,
            person_id=actor.person_id,
        )
        for member in members
        for flag in flags[member.id]
    )
    queue.mark(session, [member.id for member in members])
    reselect_best_checkpoints(session, {member.run_id for member in members})
    audit(session, actor, "verdict.cluster", "run", item.run_id, verdict=str(verdict), count=len(members))
    announce(session, REVIEW, *{topic_of("run", member.run_id) for member in members})
    return len(members)


def undo(session: Session, actor: Actor, record_id: uuid.UUID | None = None) -> Sequence[VerdictRecord]:
    """Take back your latest verdict in force, or the given one; doing it twice changes nothing.

    Returns all records of the verdict. Calling it again takes back the verdict before.
    """
    record = queries.last_given(session, actor.person_id, record_id)
    if record is None:
        raise Conflict("You gave no verdict in the last 12 hours that can be taken back.")
    if record.taken_back_at is not None:
        return [record]
    alike = ("person_id", "created_at", "verdict", "comment", "is_bulk")
    statement = select(VerdictRecord).filter_by(**{name: getattr(record, name) for name in alike}, taken_back_at=None)
    if not record.is_bulk:  # one record per flag on its rollout; of a cluster, all records
        own = {"rollout_id": record.rollout_id} if record.rollout_id else {"id": record.id}
        statement = statement.filter_by(**own)
    decision = session.scalars(statement.order_by(VerdictRecord.id).with_for_update()).all()
    _take_back(session, actor, decision)
    return decision or [record]


def _take_back(session: Session, actor: Actor, records: Collection[VerdictRecord]) -> None:
    """Withdraw the records of one decision and its consequences."""
    now = datetime.now(UTC)
    for record in records:
        record.taken_back_at = now
    session.flush()
    reselect_best_checkpoints(session, {record.run_id for record in records if record.rollout_id})
    queue.mark(session, {id for record in records if (id := record.rollout_id or record.flag_id)})
    reviewed = {each.rollout_id: each for each in records if each.rollout_id and not each.is_bulk}
    for rollout_id, record in reviewed.items():
        if rollout_id:
            restore_fixtures(session, actor, rollout_id, record.verdict, record.created_at)
    for record in list(reviewed.values()) or list(records)[:1]:
        subject = ("rollout", record.rollout_id) if record.rollout_id and not record.is_bulk else ("run", record.run_id)
        audit(session, actor, "verdict.take_back", *subject, verdict=str(record.verdict), count=len(records))
    announce(session, REVIEW, *{topic_of("run", record.run_id) for record in records})


def reselect_best_checkpoints(session: Session, run_ids: Collection[uuid.UUID]) -> None:
    """Queue a job per training run that picks the best checkpoint again, by the verdicts in force.

    A queued job is enough for any number of verdicts; a job at work may have read too early.
    """
    is_queued = (
        select(Job.id).where(Job.run_id == Run.id, Job.name == FOLLOW_JOB, Job.status == JobStatus.QUEUED).exists()
    )
    waiting = select(Run.id).where(Run.id.in_(run_ids), Run.kind == RunKind.TRAINING, ~is_queued)
    for run_id in session.scalars(waiting).all():
        enqueue(session, FOLLOW_JOB, queue=Queue.CPU, run_id=run_id)
