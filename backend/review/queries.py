"""Queries for the review queue, flags and verdicts."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from sqlalchemy import ColumnElement, Select, and_, any_, case, func, literal, or_, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, joinedload, undefer

from backend.checkpoints.tables import Checkpoint
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Phase, RunKind, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.projects.queries import project_id_of
from backend.review.agreement import cohens_kappa
from backend.review.audit_sample import begin_of_day, limit_per_day
from backend.review.schemas import Order, Part, ReviewFilter
from backend.review.tables import AuditSample, ReviewAssignment, ReviewComment, ReviewItem, ReviewTarget, VerdictRecord
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.paging import make_cursor, read_cursor

PER_DAY = 30
"""Default daily target of a reviewer."""
AGREEING = 3
"""Verdicts that agree before the rest of a cluster may be judged at once."""
UNDO_WITHIN = timedelta(hours=12)
"""Time in which a verdict can be taken back; afterwards, give another verdict."""
_INSTRUCTION = 300
"""Characters of a task that lists show."""
_SHORT = 100
"""Turns up to which a list reads a conversation for them: longer ones are stored in many pieces."""
_COUNTED = 10_000
"""Verdicts by which agreement is measured, the newest."""

_WITH_RUN = (
    joinedload(ReviewItem.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
    joinedload(ReviewItem.run).joinedload(Run.policy),
)
_PRIORITY: Any = -func.coalesce(
    select(AuditSample.priority).where(AuditSample.rollout_id == ReviewItem.rollout_id).scalar_subquery(), 1.0
)
_ORDERS: dict[Order, tuple[Any, Any]] = {
    Order.HARM: (ReviewItem.harm, ReviewItem.id),
    Order.SUSPICION: (ReviewItem.rank, ReviewItem.id),
    Order.NEWEST: (ReviewItem.created_at, ReviewItem.id),
    Order.INTERVAL: (_PRIORITY, ReviewItem.id),
}
"""Sort keys, all descending."""
_TASK = joinedload(Rollout.group).joinedload(Group.task)
_TRANSCRIPT = (*(undefer(Rollout.opening), undefer(Rollout.steps), undefer(Rollout.messages)), _TASK)


def keys_of(chosen: ReviewFilter) -> tuple[Any, Any]:
    """Sort keys of a list. Lists that are reviewed blind must not be sorted by harm, which would reveal the sample."""
    is_blind = chosen.order is Order.HARM and not chosen.lists_flagged
    return _ORDERS[Order.SUSPICION if is_blind else chosen.order]


def items_matching(session: Session, chosen: ReviewFilter, person_id: uuid.UUID) -> Select[ReviewItem]:
    statement = select(ReviewItem).where(*part_of(chosen, person_id), *of_project(session, chosen.project))
    if chosen.detector:
        statement = statement.where(ReviewItem.detectors.contains([chosen.detector]))
    if chosen.run:
        statement = statement.where(ReviewItem.run_id == chosen.run)
    if chosen.environment:
        wanted = select(Environment.id).where(Environment.name == chosen.environment).scalar_subquery()
        statement = statement.where(ReviewItem.environment_id == wanted)
    if chosen.lists_flagged:
        statement = statement.where(ReviewItem.harm.is_not(None))
    if chosen.order is Order.INTERVAL:
        sampled = select(AuditSample.id).where(AuditSample.rollout_id == ReviewItem.rollout_id)
        statement = statement.where(sampled.exists())
    return statement


def of_project(session: Session, project: str = "") -> list[ColumnElement[bool]]:
    """The condition for items of a project. Default: of the project that the session's person chose."""
    project_id = project_id_of(session, project)
    return [ReviewItem.run_id.in_(select(Run.id).where(Run.project_id == project_id))] if project_id else []


def part_of(chosen: ReviewFilter, person_id: uuid.UUID) -> list[ColumnElement[bool]]:
    """Conditions for assignee and review state; other filters narrow these further."""
    is_done_by_me = literal(person_id) == any_(ReviewItem.reviewers)
    if chosen.mine:
        return [is_assigned(person_id), ~is_done_by_me]
    match chosen.shown:
        case Part.UNREVIEWED:
            return [ReviewItem.verdict.is_(None), or_(~is_assigned(), is_assigned(person_id))]
        case Part.SECOND:
            return [func.cardinality(ReviewItem.reviewers) == 1, ~is_done_by_me]
        case Part.REVIEWED:
            return [ReviewItem.verdict.is_not(None)]
        case Part.ALL:
            return []


def is_assigned(person_id: uuid.UUID | None = None) -> ColumnElement[bool]:
    """Is the item assigned to this person, or to anyone?"""
    assignments = select(ReviewAssignment.id).where(ReviewAssignment.item_id == ReviewItem.id)
    if person_id:
        assignments = assignments.where(ReviewAssignment.person_id == person_id)
    return assignments.exists()


def queue(
    session: Session, chosen: ReviewFilter, person_id: uuid.UUID, *, after: str | None = None, limit: int
) -> tuple[list[ReviewItem], str | None]:
    """Items in the order of the queue, and the cursor of the next page."""
    keys = keys_of(chosen)
    statement = items_matching(session, chosen, person_id).options(
        *_WITH_RUN, joinedload(ReviewItem.rollout).options(_TASK)
    )
    if after:
        statement = statement.where(tuple_(*keys) < tuple_(*read_cursor(after, keys)))
    statement = statement.add_columns(*(key.label(f"key_{place}") for place, key in enumerate(keys)))
    found = session.execute(statement.order_by(*(key.desc() for key in keys)).limit(limit + 1)).all()
    cursor = make_cursor(*found[limit - 1][1:]) if len(found) > limit else None
    return [row[0] for row in found[:limit]], cursor


def next_id(
    session: Session, chosen: ReviewFilter, person_id: uuid.UUID, here: ReviewItem | None = None
) -> uuid.UUID | None:
    """The next item to review, from the start again at the end. Lists of reviewed items continue with the queue."""
    if chosen.shown in {Part.REVIEWED, Part.ALL}:
        chosen = chosen.model_copy(update={"shown": Part.UNREVIEWED})
    keys = keys_of(chosen)
    statement = items_matching(session, chosen, person_id).with_only_columns(ReviewItem.id)
    statement = statement.order_by(*(key.desc() for key in keys)).limit(1)
    if here is None:
        return session.scalar(statement)
    statement = statement.where(ReviewItem.id != here.id)
    place = session.execute(select(*keys).select_from(ReviewItem).where(ReviewItem.id == here.id)).one()
    following = statement.where(tuple_(*keys) < tuple_(*place))
    return session.scalar(following) or session.scalar(statement)


class NamedItem(NamedTuple):
    """An item under review, and whether a flag on it was named: then its evidence was seen."""

    item: ReviewItem
    by_flag: bool


def get_item(session: Session, item_id: uuid.UUID) -> NamedItem:
    """The item with its run and transcript, by its own id or by that of a flag on it."""
    with_transcript = joinedload(ReviewItem.rollout).options(*_TRANSCRIPT)
    statement = select(ReviewItem).options(*_WITH_RUN, with_transcript)
    named = select(Flag.rollout_id).where(Flag.id == item_id).scalar_subquery()
    for id, by_flag in ((item_id, False), (named, True)):
        if item := session.scalar(statement.where(ReviewItem.id == id)):
            return NamedItem(item, by_flag)
    raise NotFound("There is no such item under review.")


def flags_of_items(session: Session, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[Flag]]:
    """Flags by item, the strongest first."""
    about = or_(Flag.rollout_id.in_(ids), and_(Flag.rollout_id.is_(None), Flag.id.in_(ids)))
    by_item: defaultdict[uuid.UUID, list[Flag]] = defaultdict(list)
    for flag in session.scalars(select(Flag).where(about).order_by(Flag.score.desc(), Flag.id)):
        by_item[flag.rollout_id or flag.id].append(flag)
    return by_item


def verdicts_on(session: Session, item: ReviewItem) -> list[VerdictRecord]:
    """The history, newest first; one decision counts once, however many flags it was stored for."""
    about = VerdictRecord.rollout_id == item.id if item.rollout_id else VerdictRecord.flag_id == item.id
    statement = select(VerdictRecord).options(joinedload(VerdictRecord.person)).where(about)
    statement = statement.order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
    decisions: dict[tuple[Any, ...], VerdictRecord] = {}
    for record in session.scalars(statement):
        key = (record.person_id, record.created_at, record.verdict, record.comment, record.taken_back_at)
        decisions.setdefault(key, record)
    return list(decisions.values())


def comments_on(session: Session, item_id: uuid.UUID) -> Sequence[ReviewComment]:
    """The thread of an item, oldest first."""
    statement = select(ReviewComment).options(joinedload(ReviewComment.person)).where(ReviewComment.item_id == item_id)
    return session.scalars(statement.order_by(ReviewComment.id)).all()


def last_given(session: Session, person_id: uuid.UUID, record_id: uuid.UUID | None = None) -> VerdictRecord | None:
    """Return the person's latest verdict in force, or the given one, taken back or not. Either must be recent."""
    since = datetime.now(UTC) - UNDO_WITHIN
    statement = select(VerdictRecord).where(VerdictRecord.person_id == person_id, VerdictRecord.created_at > since)
    if record_id:
        return session.scalar(statement.where(VerdictRecord.id == record_id))
    statement = statement.where(VerdictRecord.taken_back_at.is_(None))
    return session.scalar(statement.order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc()).limit(1))


def siblings(session: Session, rollout: Rollout) -> Sequence[Rollout]:
    """The other rollouts of its group."""
    statement = select(Rollout).where(Rollout.group_id == rollout.group_id, Rollout.id != rollout.id)
    return session.scalars(statement.order_by(Rollout.member).limit(16)).all()


def rollouts_of_base(session: Session, run: Run, rollout: Rollout) -> Sequence[Rollout]:
    """Rollouts of the same task before GRPO: of the held-out evaluation at step 0, or of an evaluation of the
    checkpoint that the training run started from or of its untrained one."""
    training_id = run.id
    if run.kind is not RunKind.TRAINING:  # the run that made the evaluated checkpoint
        training_id = session.scalar(select(Checkpoint.run_id).where(Checkpoint.id == run.checkpoint_id))
    if training_id is None:
        return []
    began = select(Run.checkpoint_id).where(Run.id == training_id)
    untrained = select(Checkpoint.id).where(Checkpoint.run_id == training_id, Checkpoint.stage == "untrained")
    is_start = or_(Run.checkpoint_id.in_(began), Run.checkpoint_id.in_(untrained))
    at_zero = and_(Run.id == training_id, Group.phase == Phase.HELDOUT, Group.training_step == 0)
    statement = (
        select(Rollout)
        .join(Group, Group.id == Rollout.group_id)
        .join(Run, Run.id == Group.run_id)
        .where(Group.task_id == rollout.group.task_id, Group.id != rollout.group_id)
        .where(or_(at_zero, and_(Run.kind == RunKind.EVALUATION, is_start)))
        .order_by(Run.created_at.desc(), Rollout.seq)
        .limit(4)
    )
    return session.scalars(statement).all()


def rollouts_with_transcript(
    session: Session, ids: Sequence[uuid.UUID], *, run_id: uuid.UUID | None = None
) -> list[Rollout]:
    """Return rollouts with their run and transcript in the order given, of this run only if one is given."""
    statement = select(Rollout).where(Rollout.id.in_(ids)).options(*_TRANSCRIPT, joinedload(Rollout.run))
    if run_id:
        statement = statement.where(Rollout.run_id == run_id)
    rollouts = {rollout.id: rollout for rollout in session.scalars(statement)}
    return [rollouts[id] for id in ids if id in rollouts]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Items that show one pattern, and how far people have judged them."""

    name: str
    size: int
    waiting: int
    counts: dict[Verdict, int]
    """Verdicts on items that were reviewed one by one."""
    agreed: Verdict | None
    """The verdict that all reviewed items share, once there are enough."""
    at_once: int
    """Items with the verdict of their cluster only."""


def cluster_of(session: Session, item: ReviewItem) -> Cluster | None:
    """None where the item shows no pattern that others show."""
    if item.cluster is None:
        return None
    members = select(ReviewItem.verdict, ReviewItem.reviewers).where(
        ReviewItem.environment_id == item.environment_id, ReviewItem.cluster == item.cluster
    )
    rows = session.execute(members).all()
    if len(rows) < 2:
        return None
    counts = Counter(row.verdict for row in rows if row.verdict and row.reviewers)
    is_agreed = len(counts) == 1 and counts.total() >= AGREEING and Verdict.UNSURE not in counts
    return Cluster(
        name=item.cluster,
        size=len(rows),
        waiting=sum(row.verdict is None for row in rows),
        counts=counts,
        agreed=next(iter(counts)) if is_agreed else None,
        at_once=sum(row.verdict is not None and not row.reviewers for row in rows),
    )


def assignees(session: Session, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[Person]]:
    """Who is to judge what."""
    statement = select(ReviewAssignment).where(ReviewAssignment.item_id.in_(ids))
    by_item: defaultdict[uuid.UUID, list[Person]] = defaultdict(list)
    for assignment in session.scalars(statement.options(joinedload(ReviewAssignment.person))):
        by_item[assignment.item_id].append(assignment.person)
    return by_item


def count_matching(session: Session, chosen: ReviewFilter, person_id: uuid.UUID) -> int:
    statement = items_matching(session, chosen, person_id).with_only_columns(func.count(ReviewItem.id))
    return session.scalar(statement) or 0


def count_waiting(session: Session) -> int:
    waiting = select(func.count(ReviewItem.id)).where(ReviewItem.verdict.is_(None), *of_project(session))
    return session.scalar(waiting) or 0


def instructions_of(session: Session, rollout_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """The beginning of each task as the policy read it, without the system prompt. Of long conversations none."""
    place = case((Rollout.messages[0]["role"].astext == "system", 1), else_=0)
    text = func.left(Rollout.messages[place]["content"].astext, _INSTRUCTION)
    statement = select(Rollout.id, text).where(Rollout.id.in_(rollout_ids), Rollout.turns <= _SHORT)
    return {id: " ".join(text.split()) for id, text in session.execute(statement) if text}


def counts(session: Session, person_id: uuid.UUID) -> dict[str, int]:
    """A reviewer's workload, regardless of filters; see ReviewStats. Days are by UTC."""
    midnight = begin_of_day()
    subject = func.coalesce(VerdictRecord.rollout_id, VerdictRecord.flag_id)
    today = select(func.count(subject.distinct())).where(
        VerdictRecord.person_id == person_id,
        VerdictRecord.created_at >= midnight,
        ~VerdictRecord.is_bulk,
        VerdictRecord.taken_back_at.is_(None),
    )
    target = session.get(ReviewTarget, person_id)
    is_waiting = ReviewItem.verdict.is_(None)
    waits, flagged = session.execute(select(func.count(), func.count(ReviewItem.harm)).where(is_waiting)).one()
    sampled = select(func.count(ReviewItem.id)).join(AuditSample, AuditSample.rollout_id == ReviewItem.rollout_id)
    audits = session.scalar(sampled.where(is_waiting)) or 0
    drawn = select(func.count(AuditSample.id)).where(AuditSample.created_at >= midnight)
    return {
        "waiting": waits,
        "flagged": flagged,
        "audits": audits,
        "audits_today": session.scalar(drawn) or 0,
        "audits_per_day": limit_per_day(session),
        "mine": count_matching(session, ReviewFilter(mine=True), person_id),
        "today": session.scalar(today) or 0,
        "per_day": target.per_day if target else PER_DAY,
    }


class ReviewersAgreement(TypedDict):
    """Verdicts of two people on the same rollouts, the second given blind."""

    judged_twice: int
    agreeing: int
    kappa: float | None
    """Cohen's; None where nothing was judged twice, or chance alone explains all."""


def agreement_of_people(session: Session) -> ReviewersAgreement:
    """The first verdicts of the first two people on each rollout, where the second was given blind."""
    twice = (
        select(ReviewItem.rollout_id)
        .where(func.cardinality(ReviewItem.reviewers) > 1, ReviewItem.rollout_id.is_not(None))
        .order_by(ReviewItem.created_at.desc())
        .limit(_COUNTED)
        .cte("twice")
        .prefix_with("MATERIALIZED")  # else it may be sorted anew for each verdict
    )
    statement = (
        select(VerdictRecord.rollout_id, VerdictRecord.person_id, VerdictRecord.verdict, VerdictRecord.is_blind)
        .where(VerdictRecord.rollout_id.in_(select(twice.c.rollout_id)), VerdictRecord.person_id.is_not(None))
        .where(~VerdictRecord.is_bulk, VerdictRecord.taken_back_at.is_(None))
        .order_by(VerdictRecord.created_at, VerdictRecord.id)
    )
    said: defaultdict[uuid.UUID, dict[uuid.UUID, tuple[Verdict, bool]]] = defaultdict(dict)
    for row in session.execute(statement):
        said[row.rollout_id].setdefault(row.person_id, (row.verdict, row.is_blind))
    judged_twice = (list(each.values())[:2] for each in said.values() if len(each) > 1)
    pairs = [(first[0], second[0]) for first, second in judged_twice if second[1]]
    agreeing = sum(first == second for first, second in pairs)
    return {"judged_twice": len(pairs), "agreeing": agreeing, "kappa": cohens_kappa(pairs)}


def newest_verdicts(session: Session, flag_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
    """The verdict in force, by flag."""
    statement = (
        select(VerdictRecord.flag_id, VerdictRecord.verdict)
        .where(VerdictRecord.flag_id.in_(list(flag_ids)), VerdictRecord.taken_back_at.is_(None))
        .order_by(VerdictRecord.flag_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.flag_id))
    )
    return {flag_id: verdict for flag_id, verdict in session.execute(statement) if flag_id is not None}


def get_rollout(session: Session, rollout_id: uuid.UUID) -> Rollout:
    rollout = session.get(Rollout, rollout_id)
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout
