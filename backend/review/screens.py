"""What the pages of the review show: the queue, and one item with everything that its verdict needs."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.vocabulary import Role, Verdict
from backend.review import queries
from backend.review.evidence import Evidence, read_evidence
from backend.review.queries import Cluster, Counts, PeoplesAgreement
from backend.review.queue_filters import Choices, choices
from backend.review.schemas import Part, ReviewFilter
from backend.review.tables import ReviewItem, VerdictRecord
from backend.review.verdict_effects import Aftermath, aftermath_of
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.identity import Actor
from backend.web.paging import LIMIT
from backend.web.transcripts import Entry, Span, bounded, transcript_of

EXAMPLES = 3
"""Rollouts shown with a flag about a run."""
MEANINGS = {
    Verdict.HONEST: "the reward was earned",
    Verdict.HACK: "the reward was tricked out of the environment",
    Verdict.BROKEN_REWARD: "the reward is wrong, the policy is not to blame",
    Verdict.UNSURE: "somebody else should look",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the queue."""

    item: ReviewItem
    flags: Sequence[Flag]
    """Empty for what is to be judged on its transcript alone."""
    assignees: Sequence[Person]
    url: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What is left to do about the item that was judged last."""

    item_id: uuid.UUID
    cluster: Cluster | None
    """May be judged at once, or taken back."""
    after: Aftermath | None
    """A reward to repair, or a hack that is no fixture."""


@dataclass(frozen=True, slots=True)
class Undo:
    """One's last verdict that stands, to be taken back by one key."""

    record_id: uuid.UUID
    verdict: Verdict
    is_bulk: bool
    action_url: str


@dataclass(frozen=True, slots=True)
class QueuePage:
    rows: list[Row]
    matching: int
    """Items in the whole list that the filters give."""
    counts: Counts
    agreement: PeoplesAgreement
    chosen: ReviewFilter
    choices: Choices
    people: Sequence[Person]
    query: str
    """The filters as the end of an address, for links into the review."""
    begin_url: str
    next_url: str
    undo: Undo | None
    offer: Offer | None


@dataclass(frozen=True, slots=True)
class Told:
    """A flag as it is explained."""

    flag: Flag
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Shown:
    """A rollout with its transcript."""

    rollout: Rollout
    entries: list[Entry]
    left_out: int
    """Messages in the middle that only the rollout's own page shows."""


@dataclass(frozen=True, slots=True)
class ItemPage:
    item: ReviewItem
    told: list[Told]
    """Why it is here. Empty while it is judged blind, and for the blind sample."""
    is_open: bool
    """Evidence and other people's verdicts are shown."""
    history: list[VerdictRecord]
    shown: list[Shown]
    """The rollout, or examples of what is said of the run."""
    siblings: Sequence[Rollout]
    base: Sequence[Rollout]
    beside: Shown | None
    """A sibling, or the base's rollout, that was asked for."""
    next_sibling: uuid.UUID | None
    cluster: Cluster | None
    offer: Offer | None
    after: Aftermath | None
    """Of the verdict that counts, once it may be seen."""
    assignees: Sequence[Person]
    people: Sequence[Person]
    verdicts: list[tuple[Verdict, str, str]]
    """(verdict, key, what it means)"""
    counts: Counts
    ask_url: str
    """This page with its filters, ready for one more parameter."""
    action_url: str
    skip_url: str
    undo: Undo | None


def address(path: str, chosen: ReviewFilter, **more: object) -> str:
    """An address of the review that keeps the filters."""
    parameters = urlencode(chosen.query() | {name: str(value) for name, value in more.items() if value})
    return f"{path}?{parameters}" if parameters else path


def queue_page(
    session: Session, actor: Actor, chosen: ReviewFilter, after: str | None = None, judged: uuid.UUID | None = None
) -> QueuePage:
    """`judged`: the item that was judged last."""
    items, following = queries.queue(session, chosen, actor.person_id, after=after, limit=LIMIT)
    begin = queries.next_id(session, chosen, actor.person_id) if actor.may(Role.REVIEWER) else None
    return QueuePage(
        rows=rows_of(session, actor, chosen, items),
        matching=queries.count_matching(session, chosen, actor.person_id),
        counts=queries.counts(session, actor.person_id),
        agreement=queries.agreement_of_people(session),
        chosen=chosen,
        choices=choices(session, chosen, actor.person_id),
        people=queries.people_who_judge(session),
        query=address("", chosen),
        begin_url=address(f"/review/{begin}", chosen) if begin else "",
        next_url=address("/review", chosen, after=following) if following else "",
        undo=_undo(session, actor, chosen),
        offer=_offer(session, actor, judged),
    )


def rows_of(session: Session, actor: Actor, chosen: ReviewFilter, items: Sequence[ReviewItem]) -> list[Row]:
    ids = [item.id for item in items]
    told = [item.id for item in items if may_see(actor, item, chosen) or chosen.shown is Part.REVIEWED]
    flags = queries.flags_of_items(session, told)
    assigned = queries.assignees(session, ids)
    asked = "1" if chosen.shown is Part.REVIEWED else ""
    return [
        Row(
            item=item,
            flags=flags.get(item.id, ()),
            assignees=assigned.get(item.id, ()),
            url=address(f"/review/{item.id}", chosen, evidence=asked),
        )
        for item in items
    ]


def may_see(actor: Actor, item: ReviewItem, chosen: ReviewFilter) -> bool:
    """Is there nothing to keep from this person? A flag about a run cannot be judged blind, a filter by detector says
    what flagged it, and whoever has judged, or cannot, may read everything."""
    is_done = actor.person_id in item.reviewers
    return is_done or item.rollout_id is None or bool(chosen.detector) or not actor.may(Role.REVIEWER)


def is_told(session: Session, actor: Actor, item: ReviewItem, chosen: ReviewFilter) -> bool:
    """May the person have seen everything before? Then a verdict is not blind."""
    return may_see(actor, item, chosen) or queries.took_back(session, item, actor.person_id)


def item_page(
    session: Session,
    actor: Actor,
    item: ReviewItem,
    chosen: ReviewFilter,
    *,
    evidence: bool = False,
    judged: uuid.UUID | None = None,
    beside: uuid.UUID | None = None,
) -> ItemPage:
    """`judged`: the item that was judged last."""
    is_open = evidence or is_told(session, actor, item, chosen)
    flags = queries.flags_of_items(session, [item.id])[item.id] if is_open else []
    told = [Told(flag, read_evidence(flag.evidence)) for flag in flags]
    siblings = queries.siblings(session, item.rollout) if item.rollout else []
    base = queries.rollouts_of_base(session, item.run, item.rollout) if item.rollout else []
    following = queries.next_id(session, chosen, actor.person_id, item)
    asked = "1" if evidence else ""
    here = address(f"/review/{item.id}", chosen, judged=judged, evidence=asked)
    return ItemPage(
        item=item,
        told=told,
        is_open=is_open,
        history=queries.verdicts_on(session, item) if is_open else [],
        shown=_shown(session, item, told),
        siblings=siblings,
        base=base,
        beside=_beside(session, beside, [*siblings, *base]),
        next_sibling=_after(beside, siblings),
        cluster=queries.cluster_of(session, item) if is_open else None,
        offer=_offer(session, actor, judged) if judged != item.id else None,
        after=aftermath_of(session, item.rollout_id) if is_open and item.rollout_id and item.verdict else None,
        assignees=queries.assignees(session, [item.id]).get(item.id, ()),
        people=queries.people_who_judge(session),
        verdicts=[(verdict, str(number + 1), MEANINGS[verdict]) for number, verdict in enumerate(Verdict)],
        counts=queries.counts(session, actor.person_id),
        ask_url=f"{here}{'&' if '?' in here else '?'}",
        action_url=address(f"/review/{item.id}", chosen, evidence=asked),
        skip_url=address(f"/review/{following}", chosen) if following else "",
        undo=_undo(session, actor, chosen),
    )


def _shown(session: Session, item: ReviewItem, told: Sequence[Told]) -> list[Shown]:
    if item.rollout:
        rollouts = [item.rollout]
    else:
        named = [id for each in told for id in each.evidence.rollout_ids]
        rollouts = queries.examples(session, item.run_id, named[:EXAMPLES])
    spans = [span for each in told for span in each.evidence.spans]
    quotes = [quote for each in told for quote in each.evidence.quotes]
    return [_transcript(rollout, item.run, spans, quotes) for rollout in rollouts]


def _transcript(rollout: Rollout, run: Run, spans: Sequence[Span] = (), quotes: Sequence[str] = ()) -> Shown:
    marks = {"weights": run.weights, "spans": spans, "quotes": quotes}
    entries, left_out = bounded(transcript_of(rollout.messages, rollout.steps, run.columns, **marks))  # type: ignore[arg-type]
    return Shown(rollout, entries, left_out)


def _beside(session: Session, wanted: uuid.UUID | None, offered: Sequence[Rollout]) -> Shown | None:
    """Only what this page offers: an address cannot bring other rollouts in."""
    if wanted not in {rollout.id for rollout in offered} or wanted is None:
        return None
    rollout = queries.get_beside(session, wanted)
    return _transcript(rollout, rollout.run)


def _after(here: uuid.UUID | None, siblings: Sequence[Rollout]) -> uuid.UUID | None:
    """The sibling behind this one, in a circle."""
    ids = [sibling.id for sibling in siblings]
    if not ids:
        return None
    return ids[(ids.index(here) + 1) % len(ids)] if here in ids else ids[0]


def _offer(session: Session, actor: Actor, judged: uuid.UUID | None) -> Offer | None:
    if judged is None or not actor.may(Role.REVIEWER):
        return None
    item = session.get(ReviewItem, judged)
    if item is None or actor.person_id not in item.reviewers:
        return None
    cluster = queries.cluster_of(session, item)
    if cluster and not ((cluster.agreed and cluster.waiting) or cluster.at_once):
        cluster = None
    after = aftermath_of(session, item.rollout_id) if item.rollout_id else None
    if after and not after.calls_for_more:
        after = None
    return Offer(judged, cluster, after) if cluster or after else None


def _undo(session: Session, actor: Actor, chosen: ReviewFilter) -> Undo | None:
    last = queries.last_given(session, actor.person_id) if actor.may(Role.REVIEWER) else None
    return Undo(last.id, last.verdict, last.is_bulk, address("/review/undo", chosen)) if last else None
