"""Data of the review pages: the queue with its filters, and one item with everything that its verdict needs."""

import uuid
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from backend.core.tables import is_among
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Role, Verdict
from backend.environments.tables import Environment
from backend.environments.views import with_rollout_views
from backend.review import queries
from backend.review.evidence import read_evidence
from backend.review.fixtures import effects_of
from backend.review.schemas import Part, ReviewFilter
from backend.review.tables import ReviewItem, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.formats import short, words
from backend.web.identity import Actor
from backend.web.paging import LIMIT
from backend.web.transcripts import Span, bounded, transcript_of

MOST_RUNS = 200
"""The newest, and the chosen one."""
QUOTE_CHARACTERS = 240
EXAMPLES = 3
"""Rollouts shown with a flag about a run."""
MEANINGS = {
    Verdict.HONEST: "The reward was earned.",
    Verdict.HACK: "The reward was tricked out of the environment.",
    Verdict.BROKEN_REWARD: "The reward is wrong; the policy is not to blame.",
    Verdict.UNSURE: "Someone else should look.",
}
EFFECTS = {
    Verdict.HONEST: "It counts against the detectors that flagged it.",
    Verdict.HACK: "Every later certificate replays it and must give it a low reward; exact repeats leave the gradient.",
    Verdict.BROKEN_REWARD: "Exact repeats leave the gradient, and authors are asked to repair the reward.",
    Verdict.UNSURE: "Nothing changes, and it stays in the queue of others.",
}
"""Effects of a verdict on a rollout, before it is given; docs/safeguards.md has the details."""
CAUSED = {
    Verdict.HONEST: "It counts against the detectors that flagged it.",
    Verdict.HACK: "Every later certificate will replay this episode.",
    Verdict.BROKEN_REWARD: "Exact repeats leave the gradient, and authors are asked to repair the reward.",
    Verdict.UNSURE: "Nothing changes, and others still find it in their queue.",
}
"""Effects of a verdict on a rollout, after it was given."""


def filter_options(
    session: Session, chosen: ReviewFilter, person_id: uuid.UUID
) -> dict[str, list[tuple[str, str, int]]]:
    """Options of each filter with items in the listed part, and the chosen ones: value, label and number of items.

    Runs are the newest first, and of the chosen environment if there is one. Other filters do not change the numbers:
    together with a run's own count, the counts of detectors would reveal how much of the run was flagged.
    """
    part = [*queries.part_of(chosen, person_id), *queries.of_project(session, chosen.project)]
    alike = (ReviewItem.environment_id, ReviewItem.run_id, ReviewItem.detectors)
    places = session.execute(select(*alike, func.count().label("items")).where(*part).group_by(*alike)).all()
    detectors: Counter[str] = Counter()
    of_environment: Counter[uuid.UUID] = Counter()
    of_run: Counter[uuid.UUID] = Counter()
    for row in places:
        of_environment[row.environment_id] += row.items
        of_run[row.run_id] += row.items
        for detector in row.detectors:
            detectors[detector] += row.items
    if chosen.detector:
        detectors.setdefault(chosen.detector, 0)
    is_offered = or_(is_among(Environment.id, of_environment), Environment.name == chosen.environment)
    statement = select(Environment.id, Environment.name).where(is_offered).order_by(Environment.name)
    environments = {row.id: row.name for row in session.execute(statement)}
    wanted = {id for id, name in environments.items() if name == chosen.environment}
    run_ids = {row.run_id for row in places if not wanted or row.environment_id in wanted}
    newest_first = select(Run.id, Run.name).where(is_among(Run.id, run_ids))
    newest_first = newest_first.order_by(Run.created_at.desc(), Run.id.desc())
    runs = {row.id: row.name for row in session.execute(newest_first.limit(MOST_RUNS))}
    if chosen.run and chosen.run not in runs:
        runs[chosen.run] = session.scalar(select(Run.name).where(Run.id == chosen.run)) or "a deleted run"
    times = Counter(runs.values())  # runs of the same name show the end of their id as well
    labels = {id: f"{name} · {short(id)}" if times[name] > 1 else name for id, name in runs.items()}
    return {
        "detector": [(name, words(name), count) for name, count in sorted(detectors.items())],
        "environment": [(name, name, of_environment[id]) for id, name in environments.items()],
        "run": [(str(id), label, of_run[id]) for id, label in labels.items()],
    }


def address(path: str, chosen: ReviewFilter, **more: object) -> str:
    """An address of the review that keeps the filters."""
    values = chosen.model_dump(mode="json", exclude_defaults=True) | more
    parameters = urlencode({name: "true" if value is True else str(value) for name, value in values.items() if value})
    return f"{path}?{parameters}" if parameters else path


def queue_page(
    session: Session, actor: Actor, chosen: ReviewFilter, after: str | None = None, judged: uuid.UUID | None = None
) -> dict[str, object]:
    """`judged`: the item that was judged last."""
    items, following = queries.queue(session, chosen, actor.person_id, after=after, limit=LIMIT)
    begin = queries.next_id(session, chosen, actor.person_id) if actor.may(Role.REVIEWER) else None
    return _shared(session, actor, chosen, judged) | {
        "rows": rows_of(session, actor, chosen, items),
        "matching": queries.count_matching(session, chosen, actor.person_id),
        "agreement": queries.agreement_of_people(session),
        "chosen": chosen,
        "choices": filter_options(session, chosen, actor.person_id),
        "query": address("", chosen),  # the end of an address, for links into the review
        "begin_url": address(f"/review/{begin}", chosen) if begin else "",
        "next_url": address("/review", chosen, after=following) if following else "",
    }


def _shared(session: Session, actor: Actor, chosen: ReviewFilter, judged: uuid.UUID | None) -> dict[str, object]:
    """The latest verdict in force, which one key takes back, and open actions for the item that was reviewed last: a
    cluster that may be judged at once or taken back, a reward to repair, a hack that is no fixture."""
    undo = offer = None
    if actor.may(Role.REVIEWER):
        undo = queries.last_given(session, actor.person_id)
        item = session.get(ReviewItem, judged) if judged else None
        if item and actor.person_id in item.reviewers:
            cluster = queries.cluster_of(session, item)
            if cluster and not ((cluster.agreed and cluster.waiting) or cluster.at_once):
                cluster = None
            after = effects_of(session, item.rollout_id) if item.rollout_id else None
            if after and not after.calls_for_more:
                after = None
            offer = {"item_id": judged, "cluster": cluster, "after": after} if cluster or after else None
    judging = [role for role in Role if role.includes(Role.REVIEWER)]
    people = select(Person).where(Person.role.in_(judging), Person.disabled_at.is_(None))
    return {
        "counts": queries.counts(session, actor.person_id),
        "people": session.scalars(people.order_by(Person.name, Person.id)).all(),
        "undo": undo,
        "undo_url": address("/review/undo", chosen),
        "offer": offer,
    }


def rows_of(
    session: Session, actor: Actor, chosen: ReviewFilter, items: Sequence[ReviewItem]
) -> list[dict[str, object]]:
    """Lines of the queue. An item to be judged on its transcript alone has no flags."""
    visible = [item.id for item in items if may_see(actor, item, chosen) or chosen.shown is Part.REVIEWED]
    flags = queries.flags_of_items(session, visible)
    instructions = queries.instructions_of(session, [item.rollout_id for item in items if item.rollout_id])
    assigned = queries.assignees(session, [item.id for item in items])
    asked = "1" if chosen.shown is Part.REVIEWED else ""
    return [
        {
            "item": item,
            "flags": flags.get(item.id, ()),
            "instruction": instructions.get(item.id, ""),
            "quote": quote_of(item, flags.get(item.id, ())),
            "assignees": assigned.get(item.id, ()),
            "url": address(f"/review/{item.id}", chosen, evidence=asked),
        }
        for item in items
    ]


def quote_of(item: ReviewItem, flags: Sequence[Flag]) -> str:
    """The passage that the strongest flag points at, else the end of the last reply."""
    for flag in flags:
        evidence = read_evidence(flag.evidence)
        quotes = (*(span.quote for span in evidence.spans), str(flag.evidence.get("excerpt") or ""))
        if quote := next((" ".join(each.split()) for each in quotes if each.strip()), ""):
            return quote[:QUOTE_CHARACTERS]
    return item.rollout.excerpt if item.rollout else ""


def may_see(actor: Actor, item: ReviewItem, chosen: ReviewFilter) -> bool:
    """May the person see flags and verdicts? Flags about runs cannot be reviewed blind, a detector filter and the list
    by harm reveal the flag, and people who have given their verdict or cannot give one may read everything."""
    is_done = actor.person_id in item.reviewers
    is_listed = chosen.lists_flagged and item.harm is not None and item.verdict is None
    return is_done or is_listed or item.rollout_id is None or bool(chosen.detector) or not actor.may(Role.REVIEWER)


def may_have_seen(session: Session, actor: Actor, item: ReviewItem, chosen: ReviewFilter) -> bool:
    """Could the person have seen the evidence before? Then a verdict is not blind. Anyone who took a verdict back may
    have read everything in between."""
    if may_see(actor, item, chosen):
        return True
    about = VerdictRecord.rollout_id == item.id if item.rollout_id else VerdictRecord.flag_id == item.id
    withdrawn = (VerdictRecord.person_id == actor.person_id, VerdictRecord.taken_back_at.is_not(None))
    given = select(VerdictRecord.id).where(about, *withdrawn, ~VerdictRecord.is_bulk).limit(1)
    return session.scalar(given) is not None


def item_page(
    session: Session,
    actor: Actor,
    item: ReviewItem,
    chosen: ReviewFilter,
    *,
    evidence: bool = False,
    judged: uuid.UUID | None = None,
    beside: uuid.UUID | None = None,
) -> dict[str, object]:
    """`judged`: the item that was judged last. `beside`: a sibling or base rollout to show next to it."""
    is_open = evidence or may_have_seen(session, actor, item, chosen)
    flags = queries.flags_of_items(session, [item.id])[item.id] if is_open else []
    explained = [(flag, read_evidence(flag.evidence)) for flag in flags]
    siblings = queries.siblings(session, item.rollout) if item.rollout else []
    base = queries.rollouts_of_base(session, item.run, item.rollout) if item.rollout else []
    shown_beside = None
    if beside and beside in {rollout.id for rollout in [*siblings, *base]}:  # an address cannot show other rollouts
        (rollout,) = queries.rollouts_with_transcript(session, [beside])
        shown_beside = _transcript(session, rollout, rollout.run)
    ids = [sibling.id for sibling in siblings]
    next_sibling = None
    if ids:  # in a circle
        next_sibling = ids[(ids.index(beside) + 1) % len(ids)] if beside in ids else ids[0]
    rollouts = [item.rollout] if item.rollout else []
    if not rollouts:  # a flag about a run shows examples
        named = [id for _, each in explained for id in each.rollout_ids]
        rollouts = queries.rollouts_with_transcript(session, named[:EXAMPLES], run_id=item.run_id)
    spans = [span for _, each in explained for span in each.spans]
    quotes = [quote for _, each in explained for quote in each.quotes]
    following = queries.next_id(session, chosen, actor.person_id, item)
    asked = "1" if evidence else ""
    here = address(f"/review/{item.id}", chosen, judged=judged, evidence=asked)
    return _shared(session, actor, chosen, judged if judged != item.id else None) | {
        "item": item,
        "explained": explained,  # empty while the item is reviewed blind, and for the audit sample
        "is_open": is_open,  # evidence and other people's verdicts are shown
        "history": queries.verdicts_on(session, item) if is_open else [],
        "shown": [_transcript(session, rollout, item.run, spans, quotes) for rollout in rollouts],
        "siblings": siblings,
        "base": base,
        "beside": shown_beside,
        "next_sibling": next_sibling,
        "cluster": queries.cluster_of(session, item) if is_open else None,
        "after": effects_of(session, item.rollout_id) if is_open and item.rollout_id and item.verdict else None,
        "assignees": queries.assignees(session, [item.id]).get(item.id, ()),
        "verdicts": [(each, str(key), MEANINGS[each], EFFECTS[each]) for key, each in enumerate(Verdict, 1)],
        "thread": queries.comments_on(session, item.id) if is_open else [],
        "ask_url": f"{here}{'&' if '?' in here else '?'}",  # ready for one more parameter
        "action_url": address(f"/review/{item.id}", chosen, evidence="1" if is_open else ""),
        "skip_url": address(f"/review/{following}", chosen) if following else "",
    }


def _transcript(
    session: Session, rollout: Rollout, run: Run, spans: Sequence[Span] = (), quotes: Sequence[str] = ()
) -> dict[str, object]:
    """A rollout with its transcript, and the number of messages in the middle that only its own page shows."""
    entries = transcript_of(
        rollout.messages, rollout.steps, run.columns, weights=run.weights, spans=spans, quotes=quotes
    )
    shown, left_out = bounded(entries)
    return {"rollout": rollout, "entries": with_rollout_views(session, rollout, shown), "left_out": left_out}
