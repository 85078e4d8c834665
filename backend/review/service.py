"""What reviewers do: judge an item or the rest of its cluster, share the work, set themselves a target."""

import uuid
from collections.abc import Sequence

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, run_topic
from backend.domain.ids import new_id
from backend.domain.vocabulary import Role, Verdict
from backend.errors import Conflict, InvalidInput
from backend.review import queries, queue
from backend.review.consequences import weigh_again
from backend.review.flag_queries import get_flag
from backend.review.schemas import ReviewFilter
from backend.review.tables import ReviewAssignment, ReviewItem, ReviewTarget, VerdictRecord
from backend.review.verdict_schemas import VerdictForm
from backend.review.verdicts import judge_flag, judge_rollout, take_back
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor


class NothingToTakeBack(Conflict):
    """You gave no verdict in the last twelve hours that could be taken back."""


class ClusterIsNotAgreed(Conflict):
    """A cluster is judged at once after three of its rollouts were judged alike, and none otherwise."""


def judge(
    session: Session, actor: Actor, item: ReviewItem, form: VerdictForm, *, is_blind: bool
) -> list[VerdictRecord]:
    if item.rollout is None:
        return judge_flag(session, actor, get_flag(session, item.id), form)
    return judge_rollout(session, actor, item.rollout, form, is_blind=is_blind)


def judge_cluster(session: Session, actor: Actor, item: ReviewItem, verdict: Verdict) -> int:
    """Give what people agreed on to the waiting rest of the item's cluster; `unsure` takes that back.

    Nobody looked at these rollouts, so they become no fixtures and count in no statistic.
    """
    cluster = queries.cluster_of(session, item)
    is_taken_back = verdict is Verdict.UNSURE
    if cluster is None or (not is_taken_back and cluster.agreed is not verdict):
        raise ClusterIsNotAgreed
    members = queries.members_without_a_look(session, item, judged=is_taken_back)
    if is_taken_back:
        take_back(session, actor, queries.verdicts_given_at_once(session, [member.id for member in members]))
        return len(members)
    flags = queries.flags_of_items(session, [member.id for member in members])
    why = f"as {sum(cluster.counts.values())} others of {cluster.name}"
    session.add_all(
        VerdictRecord(
            run_id=member.run_id,
            rollout_id=member.rollout_id,
            flag_id=flag.id,
            verdict=verdict,
            comment=why,
            is_bulk=True,
            person_id=actor.person_id,
        )
        for member in members
        for flag in flags[member.id]
    )
    queue.mark(session, [member.id for member in members])
    weigh_again(session, {member.run_id for member in members})
    audit(session, actor, "verdict.cluster", "run", item.run_id, verdict=str(verdict), count=len(members))
    announce(session, REVIEW, *{run_topic(member.run_id) for member in members})
    return len(members)


def undo(session: Session, actor: Actor, record_id: uuid.UUID | None = None) -> Sequence[VerdictRecord]:
    """Take back one's last decision that stands, or the one that is named: asked twice, it happens once.

    Returns what was stored for it. The same again goes on to the one before, in the order in which they were given.
    """
    if record_id is None:
        record = queries.last_given(session, actor.person_id)
    else:
        record = queries.given_lately(session, actor.person_id, record_id)
    if record is None:
        raise NothingToTakeBack
    if record.taken_back_at is not None:
        return [record]
    decision = queries.decision_of(session, record)
    take_back(session, actor, decision)
    return decision or [record]


def assign(session: Session, actor: Actor, item: ReviewItem, person_id: uuid.UUID) -> None:
    """Assigned twice is assigned once; several people may be asked for a verdict on the same item."""
    _assign(session, actor, [item.id], person_id)


def assign_waiting(
    session: Session, actor: Actor, chosen: ReviewFilter, person_id: uuid.UUID, count: int
) -> Sequence[uuid.UUID]:
    """The first of the queue that are nobody's."""
    statement = queries.items_matching(chosen, person_id).where(~queries.is_assigned())
    statement = statement.order_by(ReviewItem.rank.desc(), ReviewItem.id.desc()).limit(count)
    ids = session.scalars(statement.with_only_columns(ReviewItem.id)).all()
    _assign(session, actor, ids, person_id)
    return ids


def _assign(session: Session, actor: Actor, ids: Sequence[uuid.UUID], person_id: uuid.UUID) -> None:
    person = session.get(Person, person_id)
    if person is None or not person.is_active or not person.role.includes(Role.REVIEWER):
        raise InvalidInput(fields={"person": "This is no active member who may judge."})
    if not ids:
        return
    rows = [{"id": new_id(), "item_id": id, "person_id": person_id, "assigned_by": actor.person_id} for id in ids]
    session.execute(insert(ReviewAssignment).on_conflict_do_nothing(), rows)
    audit(session, actor, "review.assign", "person", person_id, count=len(ids))
    announce(session, REVIEW)


def release(session: Session, actor: Actor, item: ReviewItem, person_id: uuid.UUID) -> None:
    """Anybody's again."""
    session.execute(
        delete(ReviewAssignment).where(ReviewAssignment.item_id == item.id, ReviewAssignment.person_id == person_id)
    )
    audit(session, actor, "review.release", "person", person_id, item=str(item.id))
    announce(session, REVIEW)


def set_target(session: Session, actor: Actor, per_day: int) -> None:
    statement = insert(ReviewTarget).values(person_id=actor.person_id, per_day=per_day)
    session.execute(statement.on_conflict_do_update(index_elements=["person_id"], set_={"per_day": per_day}))
