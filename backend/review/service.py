"""Work on the review queue: put rollouts in by hand, assign items."""

import re
import uuid
from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, topic_of
from backend.detectors.tables import PICKED, Flag
from backend.domain.ids import new_id
from backend.domain.notifications.notices import NoticeKind
from backend.domain.text import plain_text
from backend.domain.vocabulary import Role, Severity
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.notifications.outbox import announce as announce_notice
from backend.projects.queries import sees_project_of
from backend.review import queries, queue
from backend.review.schemas import ReviewFilter
from backend.review.tables import ReviewAssignment, ReviewComment, ReviewItem, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor


def pick(session: Session, actor: Actor, rollout: Rollout) -> Flag:
    """Put a rollout into the review queue by hand. Picking it twice changes nothing."""
    if known := find_picked(session, rollout):
        return known
    flag = Flag(
        run_id=rollout.run_id,
        rollout_id=rollout.id,
        detector=PICKED,
        key=str(rollout.id),
        severity=Severity.NOTE,
        score=1.0,
        sentence=f"{actor.name} picked it for review.",
        evidence={"title": "Picked by a reviewer"},
        training_step=rollout.training_step,
    )
    session.add(flag)
    session.flush()
    queue.place(session, [rollout.id])
    audit(session, actor, "review.pick", "rollout", rollout.id)
    announce(session, REVIEW, topic_of("run", rollout.run_id))
    return flag


def unpick(session: Session, actor: Actor, rollout: Rollout) -> None:
    """Remove a picked rollout from the queue, unless it was reviewed there."""
    flag = find_picked(session, rollout)
    if flag is None:
        return
    judged = select(VerdictRecord.id).where(VerdictRecord.flag_id == flag.id, VerdictRecord.taken_back_at.is_(None))
    if session.scalar(judged.limit(1)):
        raise Conflict("The rollout was reviewed in the meantime, so it stays in the history of the queue.")
    session.execute(delete(Flag).where(Flag.id == flag.id))
    queue.drop(session, [rollout.id])
    audit(session, actor, "review.take_back", "rollout", rollout.id)
    announce(session, REVIEW, topic_of("run", rollout.run_id))


def find_picked(session: Session, rollout: Rollout) -> Flag | None:
    picked = select(Flag).where(Flag.run_id == rollout.run_id, Flag.detector == PICKED, Flag.key == str(rollout.id))
    return session.scalars(picked).one_or_none()


def assign(session: Session, actor: Actor, item_ids: Sequence[uuid.UUID], person_id: uuid.UUID) -> None:
    """Assign items to a reviewer. Several people may be assigned to the same item."""
    person = session.get(Person, person_id)
    if person is None or not person.is_active or not person.role.includes(Role.REVIEWER):
        raise InvalidInput(fields={"person": "Choose an active member with the role reviewer or above."})
    if not item_ids:
        return
    known = select(ReviewAssignment.item_id).where(
        ReviewAssignment.person_id == person_id, ReviewAssignment.item_id.in_(item_ids)
    )
    fresh = len(set(item_ids) - set(session.scalars(known)))
    if fresh and person_id != actor.person_id:
        announce_notice(
            session,
            kind=NoticeKind.ASSIGNED,
            title=f"{actor.name} assigned you {fresh} item{'s' if fresh > 1 else ''} to review",
            text="Open it, read the transcript and give a verdict." if fresh == 1 else "Your queue shows them first.",
            path=f"/review/{item_ids[0]}" if fresh == 1 == len(item_ids) else "/review?mine=true",
            person_id=person_id,
        )
    rows = [{"id": new_id(), "item_id": id, "person_id": person_id, "assigned_by": actor.person_id} for id in item_ids]
    session.execute(insert(ReviewAssignment).on_conflict_do_nothing(), rows)
    audit(session, actor, "review.assign", "person", person_id, count=len(item_ids))
    announce(session, REVIEW)


def assign_next(
    session: Session, actor: Actor, chosen: ReviewFilter, person_id: uuid.UUID, count: int
) -> Sequence[uuid.UUID]:
    """Assign the first unassigned items of the queue, and return their ids."""
    statement = queries.items_matching(session, chosen, person_id).where(~queries.is_assigned())
    statement = statement.order_by(*(key.desc() for key in queries.keys_of(chosen))).limit(count)
    ids = session.scalars(statement.with_only_columns(ReviewItem.id)).all()
    assign(session, actor, ids, person_id)
    return ids


def write_comment(session: Session, actor: Actor, item: ReviewItem, text: str) -> ReviewComment:
    """Add a comment to the thread of an item, and notify the members whom it mentions and who see the item."""
    text = plain_text(text).strip()
    if not text:
        raise InvalidInput(fields={"text": "Write something first."})
    comment = ReviewComment(item_id=item.id, person_id=actor.person_id, text=text)
    session.add(comment)
    session.flush()
    members = select(Person.id, Person.name, Person.email).where(Person.disabled_at.is_(None))
    for member in session.execute(members.where(sees_project_of(item.run_id))).all():
        if member.id != actor.person_id and is_mentioned(text, member.name, member.email):
            announce_notice(
                session,
                kind=NoticeKind.MENTIONED,
                title=f"{actor.name} mentioned you in a review",
                text=text,
                path=f"/review/{item.id}?evidence=1#thread",
                run_id=item.run_id,
                person_id=member.id,
            )
    audit(session, actor, "review.comment", "review_item", item.id)
    return comment


def delete_comment(session: Session, actor: Actor, item: ReviewItem, comment_id: uuid.UUID) -> None:
    """Delete your own comment; administrators delete any."""
    comment = session.get(ReviewComment, comment_id)
    if comment is None or comment.item_id != item.id:
        raise NotFound("There is no such comment.")
    if comment.person_id != actor.person_id and not actor.may(Role.ADMIN):
        raise NotAllowed("Only its author and administrators can delete a comment.")
    session.delete(comment)
    audit(session, actor, "review.delete_comment", "review_item", item.id)


def is_mentioned(text: str, *names: str) -> bool:
    """Whether the text contains @ and one of the names, as a whole and in any case."""
    ends = (rf"@{re.escape(name)}(?!\w)" for name in names if name)
    return re.search("|".join(ends), text, re.IGNORECASE) is not None


def unassign(session: Session, actor: Actor, item: ReviewItem, person_id: uuid.UUID) -> None:
    session.execute(
        delete(ReviewAssignment).where(ReviewAssignment.item_id == item.id, ReviewAssignment.person_id == person_id)
    )
    audit(session, actor, "review.release", "person", person_id, item=str(item.id))
    announce(session, REVIEW)
