"""What reviewers, scripts and agents do: read the queue, give verdicts, share the work, keep fixtures."""

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path
from sqlalchemy import exists, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.vocabulary import Role
from backend.environments.queries import get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.operations.declaration import operation, reference
from backend.operations.ids import find_by_end, parse_id
from backend.review import fixtures, queries, screens, service, verdicts
from backend.review.corrected_rates import CorrectedRate, corrected_rates
from backend.review.queries import NamedItem
from backend.review.safeguards import Safeguards, safeguards_of
from backend.review.schemas import (
    AssignedItems,
    AssignItem,
    AssignReviewItems,
    AuditLimitRequest,
    AuditLimitResponse,
    ChangeBound,
    ClusterReviewed,
    ClusterVerdict,
    CommentResponse,
    FlagPart,
    FlagResponse,
    ItemFlag,
    JudgedFixtureResponse,
    KeepFixture,
    ListFlags,
    ListReviewItems,
    Order,
    QueueRequest,
    ReadReviewItem,
    ReviewFilter,
    ReviewItemDetail,
    ReviewItemResponse,
    ReviewItemVerdict,
    ReviewStats,
    ReviewTargetRequest,
    UndoVerdict,
    VerdictRequest,
    VerdictResponse,
    WriteComment,
)
from backend.review.tables import AuditLimit, ReviewComment, ReviewItem, ReviewTarget, VerdictFixture, VerdictRecord
from backend.review.team_report import TeamReview, team_review
from backend.runs.references import find_run
from backend.runs.tables import Run
from backend.team.queries import find_member
from backend.team.tables import Person
from backend.web.identity import Actor
from backend.web.paging import Key, Page, slice_of


@reference(NamedItem, "Id of an item or a flag, or the last characters of it.")
def find_item(session: Session, text: str) -> NamedItem:
    item_id = (
        parse_id(text)
        or find_by_end(session, select(ReviewItem.id).order_by(ReviewItem.id.desc()), ReviewItem.id, text)
        or find_by_end(session, select(Flag.id).order_by(Flag.id.desc()), Flag.id, text)
    )
    if item_id is None:
        raise NotFound("There is no such item under review.")
    return queries.get_item(session, item_id)


@reference(Flag, "Id of a flag.")
def find_flag(session: Session, text: str) -> Flag:
    flag_id = parse_id(text)
    flag = session.get(Flag, flag_id) if flag_id else None
    if flag is None:
        raise NotFound("There is no such flag.")
    return flag


@reference(VerdictFixture, "Id of a fixture.")
def find_fixture(session: Session, text: str) -> VerdictFixture:
    return fixtures.get_fixture(session, parse_id(text))


@operation("GET /review/items", role=Role.VIEWER, command="review", tool=True)
def list_items(session: Session, actor: Actor, request: ListReviewItems) -> Page[ReviewItemResponse]:
    """List the review queue in its order."""
    chosen = _filter(session, request)
    items, following = queries.queue(session, chosen, actor.person_id, after=request.after, limit=request.limit)
    visible = {item.id for item in items if screens.may_see(actor, item, chosen)}
    flags = queries.flags_of_items(session, visible)
    assigned = queries.assignees(session, [item.id for item in items])
    return Page(
        items=[
            _response(item, assigned.get(item.id, ()), flags.get(item.id, []) if item.id in visible else None)
            for item in items
        ],
        next=following,
    )


@operation("GET /review/next", role=Role.VIEWER, tool=True)
def next_item(session: Session, actor: Actor, request: ReadReviewItem) -> ReviewItemDetail:
    """Show the next item to review with its conversation."""
    item_id = queries.next_id(session, _filter(session, request), actor.person_id)
    if item_id is None:
        raise NotFound("Nothing waits for review.")
    return show_item(session, actor, queries.get_item(session, item_id), request)


@operation("GET /review/items/{item}", role=Role.VIEWER, tool=True)
def show_item(session: Session, actor: Actor, item: NamedItem, request: ReadReviewItem) -> ReviewItemDetail:
    """Show an item with its conversation. Flags and verdicts are hidden until you have reviewed it."""
    row, rollout = item.item, item.item.rollout
    is_open = request.evidence or item.by_flag or screens.may_have_seen(session, actor, row, _filter(session, request))
    assigned = queries.assignees(session, [row.id]).get(row.id, ())
    flags = queries.flags_of_items(session, [row.id])[row.id] if is_open else None
    return ReviewItemDetail(
        **dict(_response(row, assigned, flags)),
        messages=rollout.messages if rollout else [],
        siblings=[each.id for each in queries.siblings(session, rollout)] if rollout else [],
        base=[each.id for each in queries.rollouts_of_base(session, row.run, rollout)] if rollout else [],
    )


@operation("GET /review/items/{item}/verdicts", role=Role.VIEWER)
def list_verdicts(session: Session, actor: Actor, item: NamedItem) -> Page[VerdictResponse]:
    """List the verdicts on an item, newest first."""
    return Page(items=[VerdictResponse.of(record) for record in queries.verdicts_on(session, item.item)])


@operation(
    "POST /review/items/{item}/verdicts",
    role=Role.REVIEWER,
    command="review verdict",
    status=201,
    tool=True,
    audited=False,
)
def give_verdict(session: Session, actor: Actor, item: NamedItem, request: ReviewItemVerdict) -> Page[VerdictResponse]:
    """Give a verdict. The newest one counts and none is overwritten; `proctor review undo` takes it back.

    One record is stored per flag on the rollout.
    """
    has_seen = screens.may_have_seen(session, actor, item.item, ReviewFilter(order=Order.SUSPICION))
    is_blind = not (request.evidence or item.by_flag or has_seen)
    records = verdicts.give_verdict(session, actor, item.item, request, is_blind=is_blind)
    return Page(items=[VerdictResponse.of(record) for record in records])


@operation("POST /review/undo", role=Role.REVIEWER, command="review undo", audited=False)
def undo_verdict(session: Session, actor: Actor, request: UndoVerdict) -> Page[VerdictResponse]:
    """Take back your latest verdict in force; again, the one before. Its consequences are withdrawn.

    The verdict stays in the history.
    """
    return Page(items=[VerdictResponse.of(each) for each in verdicts.undo(session, actor, request.verdict)])


@operation("POST /review/items/{item}/cluster", role=Role.REVIEWER, status=201, audited=False)
def judge_cluster(session: Session, actor: Actor, item: NamedItem, request: ClusterVerdict) -> ClusterReviewed:
    """Give all unreviewed items of a cluster the verdict that three reviewed ones share; `unsure` takes it back."""
    return ClusterReviewed(count=verdicts.judge_cluster(session, actor, item.item, request.verdict))


@operation("GET /review/items/{item}/comments", role=Role.VIEWER, command="review comments", tool=True)
def list_comments(session: Session, actor: Actor, item: NamedItem) -> Page[CommentResponse]:
    """List the comments on an item, oldest first."""
    return Page(items=[_comment(each) for each in queries.comments_on(session, item.item.id)])


@operation(
    "POST /review/items/{item}/comments",
    role=Role.REVIEWER,
    command="review comment",
    status=201,
    tool=True,
    audited=False,
)
def write_comment(session: Session, actor: Actor, item: NamedItem, request: WriteComment) -> CommentResponse:
    """Comment on an item. Members whom you mention with @ are notified."""
    comment = service.write_comment(session, actor, item.item, request.text)
    session.refresh(comment, ["person"])
    return _comment(comment)


@operation("DELETE /review/items/{item}/comments/{comment_id}", role=Role.REVIEWER, audited=False)
def delete_comment(session: Session, actor: Actor, item: NamedItem, comment_id: uuid.UUID) -> None:
    """Delete your comment. Administrators can delete any."""
    service.delete_comment(session, actor, item.item, comment_id)


@operation("POST /review/assignments", role=Role.REVIEWER, command="review assign", status=201, audited=False)
def assign_items(session: Session, actor: Actor, request: AssignReviewItems) -> AssignedItems:
    """Assign a reviewer to an item, or to the first unassigned items of the queue.

    Several people may be assigned to the same item.
    """
    is_me = request.person == "me"
    person_id = actor.person_id if is_me else find_member(session, request.person).id
    if not request.item:
        ids = service.assign_next(session, actor, _filter(session, request), person_id, request.count)
        return AssignedItems(items=list(ids))
    item = find_item(session, request.item).item
    service.assign(session, actor, [item.id], person_id)
    return AssignedItems(items=[item.id])


@operation("POST /review/items/{item}/assignments", role=Role.REVIEWER, status=201, audited=False)
def assign_item(session: Session, actor: Actor, item: NamedItem, request: AssignItem) -> AssignedItems:
    """Assign a reviewer to an item."""
    service.assign(session, actor, [item.item.id], request.person)
    return AssignedItems(items=[item.item.id])


@operation("DELETE /review/items/{item}/assignments/{person_id}", role=Role.REVIEWER, audited=False)
def unassign_item(session: Session, actor: Actor, item: NamedItem, person_id: uuid.UUID) -> None:
    """Remove a reviewer from an item."""
    service.unassign(session, actor, item.item, person_id)


@operation("GET /review/stats", role=Role.VIEWER)
def get_stats(session: Session, actor: Actor, request: QueueRequest) -> ReviewStats:
    """Count what waits, what is assigned to you and what you reviewed today, and measure agreement."""
    chosen = _filter(session, request)
    options = screens.filter_options(session, chosen, actor.person_id)
    return ReviewStats(
        matching=queries.count_matching(session, chosen, actor.person_id),
        by_detector={name: count for name, _, count in options["detector"]},
        by_environment={name: count for name, _, count in options["environment"]},
        **queries.counts(session, actor.person_id),
        **queries.agreement_of_people(session),
    )


@operation(
    "PUT /review/target",
    role=Role.REVIEWER,
    page="/review",
    notice="Your target is {per_day} items per day.",
    audited=False,
)
def set_target(session: Session, actor: Actor, request: ReviewTargetRequest) -> ReviewStats:
    """Set how many items you intend to review per day."""
    statement = insert(ReviewTarget).values(person_id=actor.person_id, per_day=request.per_day)
    session.execute(statement.on_conflict_do_update(index_elements=["person_id"], set_={"per_day": request.per_day}))
    return get_stats(session, actor, QueueRequest())


@operation(
    "PUT /review/audits",
    role=Role.ADMIN,
    command="review audits",
    page="/review",
    notice="The audit sample takes at most {audits_per_day} rollouts per day.",
)
def set_audit_limit(session: Session, actor: Actor, request: AuditLimitRequest) -> AuditLimitResponse:
    """Set how many rollouts the audit sample takes per day for the team. A lower limit applies at the next sampling."""
    statement = insert(AuditLimit).values(id=1, per_day=request.audits_per_day)
    session.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"per_day": request.audits_per_day}))
    return AuditLimitResponse(audits_per_day=request.audits_per_day)


@operation("GET /flags", role=Role.VIEWER, noun="flags", tool=True)
def list_flags(session: Session, actor: Actor, request: ListFlags) -> Page[FlagResponse]:
    """List flags, newest first."""
    statement = select(Flag)
    if request.shown is not FlagPart.ALL:
        is_reviewed = exists().where(VerdictRecord.flag_id == Flag.id, VerdictRecord.taken_back_at.is_(None))
        statement = statement.where(is_reviewed if request.shown is FlagPart.REVIEWED else ~is_reviewed)
    if request.detector:
        statement = statement.where(Flag.detector == request.detector)
    if request.run:
        statement = statement.where(Flag.run_id == find_run(session, request.run).id)
    if request.environment:
        statement = statement.join(Flag.run).join(Run.version).join(EnvironmentVersion.environment)
        statement = statement.where(Environment.name == request.environment)
    newest_first = (Key(Flag.created_at), Key(Flag.id))
    page = slice_of(session, statement, newest_first, after=request.after, limit=request.limit)
    given = queries.newest_verdicts(session, [flag.id for flag in page.items])
    items = [FlagResponse.from_row(flag, verdict=given.get(flag.id)) for flag in page.items]
    return Page(items=items, next=page.next)


@operation("GET /flags/{flag}", role=Role.VIEWER, noun="flags")
def get_flag(session: Session, actor: Actor, flag: Flag) -> FlagResponse:
    """Show a flag with its evidence."""
    verdict = queries.newest_verdicts(session, [flag.id]).get(flag.id)
    return FlagResponse.from_row(flag, verdict=verdict)


@operation("GET /flags/{flag}/verdicts", role=Role.VIEWER, noun="flags")
def list_flag_verdicts(session: Session, actor: Actor, flag: Flag) -> Page[VerdictResponse]:
    """List the verdicts on a flag and its rollout, newest first."""
    about = VerdictRecord.flag_id == flag.id
    if flag.rollout_id:  # and on the rollout itself, given before it was flagged
        about |= (VerdictRecord.rollout_id == flag.rollout_id) & VerdictRecord.flag_id.is_(None)
    statement = select(VerdictRecord).where(about).order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
    return Page(items=[VerdictResponse.of(record) for record in session.scalars(statement)])


@operation("POST /flags/{flag}/verdicts", role=Role.REVIEWER, noun="flags", status=201, audited=False)
def give_flag_verdict(session: Session, actor: Actor, flag: Flag, request: VerdictRequest) -> Page[VerdictResponse]:
    """Give a verdict on a flag. It counts for every flag on the same rollout."""
    records = verdicts.give_verdict(session, actor, flag, request)
    return Page(items=[VerdictResponse.of(record) for record in records])


@operation(
    "POST /rollouts/{rollout_id}/verdicts",
    role=Role.REVIEWER,
    status=201,
    audited=False,
    page="/rollouts/{rollout_id}",
    notice="Your verdict is stored.",
)
def give_rollout_verdict(
    session: Session, actor: Actor, rollout_id: uuid.UUID, request: VerdictRequest
) -> Page[VerdictResponse]:
    """Give a verdict on a rollout, flagged or not."""
    records = verdicts.give_verdict(session, actor, queries.get_rollout(session, rollout_id), request)
    return Page(items=[VerdictResponse.of(record) for record in records])


@operation("GET /environments/{name}/judged-fixtures", role=Role.VIEWER, noun="fixtures", command="env judged")
def list_fixtures(
    session: Session, actor: Actor, name: Annotated[str, Path(description="Name of an environment.")]
) -> Page[JudgedFixtureResponse]:
    """List the reviewed episodes that certificates replay, then withdrawn ones."""
    found = fixtures.fixtures_of(session, get_environment(session, name).id)
    return Page(items=[JudgedFixtureResponse.of(fixture) for fixture in found])


@operation(
    "POST /rollouts/{rollout}/fixture",
    role=Role.REVIEWER,
    noun="fixtures",
    command="review keep",
    status=201,
    audited=False,
)
def keep_fixture(
    session: Session,
    actor: Actor,
    rollout: Annotated[uuid.UUID, Path(description="Id of a rollout.")],
    request: KeepFixture,
) -> JudgedFixtureResponse:
    """Have all future certificates replay a rollout that was judged a hack or honest."""
    return JudgedFixtureResponse.of(verdicts.keep_fixture(session, actor, rollout, request))


@operation("PATCH /fixtures/{fixture}", role=Role.AUTHOR, noun="fixtures", audited=False)
def update_fixture(
    session: Session, actor: Actor, fixture: VerdictFixture, request: ChangeBound
) -> JudgedFixtureResponse:
    """Change the bound of a fixture. The old bound stays in the history as a withdrawn fixture."""
    return JudgedFixtureResponse.of(fixtures.change_bound(session, actor, fixture, request.bound))


@operation(
    "DELETE /fixtures/{fixture}",
    role=Role.AUTHOR,
    noun="fixtures",
    command="review take-back",
    status=200,
    notice="taken back",
    audited=False,
)
def withdraw_fixture(session: Session, actor: Actor, fixture: VerdictFixture) -> JudgedFixtureResponse:
    """Withdraw a fixture: certificates no longer replay it. It stays in the history."""
    fixtures.withdraw(session, actor, fixture)
    return JudgedFixtureResponse.of(fixture)


@operation("GET /runs/{run}/rates", role=Role.VIEWER, command="run rates", tool=True)
def list_corrected_rates(session: Session, actor: Actor, run: Run) -> Page[CorrectedRate]:
    """Show the share of hacks as detectors and judges report it, and as verdicts correct it, with 95% intervals."""
    return Page(items=corrected_rates(session, run))


@operation("GET /runs/{run}/safeguards", role=Role.VIEWER, command="run safeguards", tool=True)
def get_safeguards(session: Session, actor: Actor, run: Run) -> Safeguards:
    """Report the safeguards of a run's reward: certificate, detectors, verdicts, audit sample, fixtures."""
    return safeguards_of(session, run.id)


@operation("GET /team/review", role=Role.VIEWER, noun="team")
def get_team_review(session: Session, actor: Actor) -> TeamReview:
    """Report what waits for review and since when, who reviews how much, and how far reviewers agree."""
    return team_review(session)


def _filter(session: Session, request: QueueRequest) -> ReviewFilter:
    named = request.model_dump(include={"shown", "mine", "detector", "environment", "order"})
    run_id = find_run(session, request.run).id if request.run else None
    return ReviewFilter(**named, run=run_id, project=request.project or "")


def _response(item: ReviewItem, assigned: Sequence[Person], flags: Sequence[Flag] | None) -> ReviewItemResponse:
    """Without flags the verdict and the cluster are hidden too."""
    rollout, run = item.rollout, item.run
    columns = dict(zip(run.columns, rollout.columns, strict=False)) if rollout and rollout.columns else {}
    return ReviewItemResponse.from_row(
        item,
        run=run.name,
        environment=run.version.environment.name,
        version=run.version.number,
        training_step=rollout.training_step if rollout else None,
        reward=rollout.reward if rollout else None,
        reward_columns=columns,
        waits=item.verdict is None,
        assigned_to=[person.id for person in assigned],
        verdict=None if flags is None else item.verdict,
        flags=None if flags is None else [ItemFlag.of(flag) for flag in flags],
        cluster=None if flags is None else item.cluster,
    )


def _comment(comment: ReviewComment) -> CommentResponse:
    return CommentResponse.from_row(comment, person=comment.person.name if comment.person else "a former member")
