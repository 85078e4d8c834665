"""JSON of the review: what comes next, verdicts, the share of each person, figures of the work."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Verdict
from backend.errors import NotFound
from backend.review import queries, screens, service
from backend.review.queue_filters import choices
from backend.review.schemas import (
    AssignForm,
    ClusterForm,
    ItemAssignForm,
    ReviewFilter,
    TargetForm,
    UndoForm,
    read_review_filter,
)
from backend.review.tables import ReviewItem
from backend.review.verdict_schemas import VerdictForm, VerdictOut
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.identity import Actor
from backend.web.paging import LIMIT, After, Limit, Page

router = APIRouter(prefix="/api/v1/review", tags=["review"])
Chosen = Annotated[ReviewFilter, Depends(read_review_filter)]


class NothingWaits(NotFound):
    """Nothing waits for review."""


class FlagTold(BaseModel):
    """Why an item is here."""

    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    detector: str
    severity: str
    score: float
    sentence: str
    cluster: str | None
    evidence: dict[str, Any]


class ItemOut(BaseModel):
    id: uuid.UUID
    """The rollout's; of a flag about a run, the flag's."""
    run_id: uuid.UUID
    run: str
    environment: str
    version: int
    rollout_id: uuid.UUID | None
    training_step: int | None
    reward: float | None
    columns: dict[str, float]
    waits: bool
    """Nobody has judged it."""
    assigned_to: list[uuid.UUID]
    verdict: Verdict | None = None
    """The newest; null while it is kept from you, as are flags and cluster."""
    flags: list[FlagTold] | None = None
    """null: judge the transcript alone, or ask with evidence=true. Empty: it is in the blind sample."""
    cluster: str | None = None
    created_at: datetime
    """When the rollout was stored; of a flag about a run, when that was flagged."""


class ItemWhole(ItemOut):
    messages: list[dict[str, Any]]
    siblings: list[uuid.UUID]
    """Other rollouts of its group."""
    base: list[uuid.UUID]
    """The same task, played before training."""


class StatsOut(BaseModel):
    matching: int
    """Items in the list that the filters give; all else here is the same by any filter but `shown` and `mine`."""
    by_detector: dict[str, int]
    """Items of the part that is shown (`shown`, `mine`). One that several detectors flagged counts for each."""
    by_environment: dict[str, int]
    waiting: int
    """Nobody judged them, whoever they are assigned to."""
    mine: int
    today: int
    per_day: int
    judged_twice: int
    """Rollouts that a second person judged without knowing what the first had said."""
    agreeing: int
    kappa: float | None
    """Cohen's."""


class Assigned(BaseModel):
    items: list[uuid.UUID]


class ClusterJudged(BaseModel):
    count: int


@router.get("/items")
def list_items(
    session: SessionDep, actor: Viewer, chosen: Chosen, after: After = None, limit: Limit = LIMIT
) -> Page[ItemOut]:
    """The queue in its order."""
    items, following = queries.queue(session, chosen, actor.person_id, after=after, limit=limit)
    return Page(items=_items(session, actor, chosen, items), next=following)


@router.get("/next")
def next_item(session: SessionDep, actor: Viewer, chosen: Chosen, evidence: bool = False) -> ItemWhole:
    """What to judge now, with its conversation; 404 where nothing waits."""
    item_id = queries.next_id(session, chosen, actor.person_id)
    if item_id is None:
        raise NothingWaits
    return _whole(session, actor, chosen, queries.get_item(session, item_id)[0], evidence)


@router.get("/items/{item_id}")
def show_item(
    session: SessionDep, actor: Viewer, item_id: uuid.UUID, chosen: Chosen, evidence: bool = False
) -> ItemWhole:
    item, by_flag = queries.get_item(session, item_id)
    return _whole(session, actor, chosen, item, evidence or by_flag)


@router.get("/items/{item_id}/verdicts")
def verdicts(session: SessionDep, actor: Viewer, item_id: uuid.UUID) -> Page[VerdictOut]:
    """Who said what, when and why, the newest first."""
    item, _ = queries.get_item(session, item_id)
    return Page(items=[VerdictOut.model_validate(record) for record in queries.verdicts_on(session, item)])


@router.post("/items/{item_id}/verdicts", status_code=201)
def judge(
    session: SessionDep,
    actor: Reviewer,
    item_id: uuid.UUID,
    form: VerdictForm,
    chosen: Chosen,
    evidence: bool = False,
) -> Page[VerdictOut]:
    """`evidence` says that you had it before you judged. One record for every flag on the rollout."""
    item, by_flag = queries.get_item(session, item_id)
    is_blind = not (evidence or by_flag or screens.is_told(session, actor, item, chosen))
    made = service.judge(session, actor, item, form, is_blind=is_blind)
    return Page(items=[VerdictOut.model_validate(record) for record in made])


@router.post("/undo")
def undo(session: SessionDep, actor: Reviewer, form: UndoForm) -> Page[VerdictOut]:
    """Take back your last verdict that stands, or the one that is named; again, the one before. Each stays in the
    history, and what it caused is withdrawn."""
    return Page(items=[VerdictOut.model_validate(each) for each in service.undo(session, actor, form.verdict)])


@router.post("/items/{item_id}/cluster", status_code=201)
def judge_cluster(session: SessionDep, actor: Reviewer, item_id: uuid.UUID, form: ClusterForm) -> ClusterJudged:
    """The waiting rest of the item's cluster, once three were judged alike; `unsure` takes it back."""
    item, _ = queries.get_item(session, item_id)
    return ClusterJudged(count=service.judge_cluster(session, actor, item, form.verdict))


@router.post("/assignments", status_code=201)
def assign_waiting(session: SessionDep, actor: Reviewer, chosen: Chosen, form: AssignForm) -> Assigned:
    """The first of the queue that are nobody's."""
    return Assigned(items=list(service.assign_waiting(session, actor, chosen, form.person, form.count)))


@router.post("/items/{item_id}/assignments", status_code=201)
def assign(session: SessionDep, actor: Reviewer, item_id: uuid.UUID, form: ItemAssignForm) -> Assigned:
    item, _ = queries.get_item(session, item_id)
    service.assign(session, actor, item, form.person)
    return Assigned(items=[item.id])


@router.delete("/items/{item_id}/assignments/{person_id}", status_code=204)
def release(session: SessionDep, actor: Reviewer, item_id: uuid.UUID, person_id: uuid.UUID) -> None:
    service.release(session, actor, queries.get_item(session, item_id)[0], person_id)


@router.get("/stats")
def stats(session: SessionDep, actor: Viewer, chosen: Chosen) -> StatsOut:
    """What the list holds, what waits, what is yours, today against your target, and how far people agree."""
    offered = choices(session, chosen, actor.person_id)
    counts, agreement = queries.counts(session, actor.person_id), queries.agreement_of_people(session)
    return StatsOut(
        matching=queries.count_matching(session, chosen, actor.person_id),
        by_detector={each.name: each.count for each in offered.detectors},
        by_environment={each.name: each.count for each in offered.environments},
        waiting=counts.waiting,
        mine=counts.mine,
        today=counts.today,
        per_day=counts.per_day,
        judged_twice=agreement.items,
        agreeing=agreement.agreeing,
        kappa=agreement.kappa,
    )


@router.put("/target")
def set_target(session: SessionDep, actor: Reviewer, form: TargetForm) -> StatsOut:
    """How many you mean to judge a day."""
    service.set_target(session, actor, form.per_day)
    return stats(session, actor, ReviewFilter())


def _items(session: Session, actor: Actor, chosen: ReviewFilter, items: list[ReviewItem]) -> list[ItemOut]:
    open_ids = {item.id for item in items if screens.may_see(actor, item, chosen)}
    flags = queries.flags_of_items(session, open_ids)
    assigned = queries.assignees(session, [item.id for item in items])
    return [
        ItemOut(
            **_plain(item),
            assigned_to=[person.id for person in assigned.get(item.id, ())],
            **(_told(item, flags.get(item.id, [])) if item.id in open_ids else {}),
        )
        for item in items
    ]


def _whole(session: Session, actor: Actor, chosen: ReviewFilter, item: ReviewItem, evidence: bool) -> ItemWhole:
    is_open = evidence or screens.is_told(session, actor, item, chosen)
    told = _told(item, queries.flags_of_items(session, [item.id])[item.id]) if is_open else {}
    rollout = item.rollout
    return ItemWhole(
        **_plain(item),
        assigned_to=[person.id for person in queries.assignees(session, [item.id]).get(item.id, ())],
        **told,
        messages=rollout.messages if rollout else [],
        siblings=[each.id for each in queries.siblings(session, rollout)] if rollout else [],
        base=[each.id for each in queries.rollouts_of_base(session, item.run, rollout)] if rollout else [],
    )


def _plain(item: ReviewItem) -> dict[str, Any]:
    rollout, run = item.rollout, item.run
    return {
        "id": item.id,
        "run_id": item.run_id,
        "run": run.name,
        "environment": run.version.environment.name,
        "version": run.version.number,
        "rollout_id": item.rollout_id,
        "training_step": rollout.training_step if rollout else None,
        "reward": rollout.reward if rollout else None,
        "columns": dict(zip(run.columns, rollout.columns, strict=False)) if rollout and rollout.columns else {},
        "waits": item.verdict is None,
        "created_at": item.created_at,
    }


def _told(item: ReviewItem, flags: list[Any]) -> dict[str, Any]:
    return {
        "verdict": item.verdict,
        "cluster": item.cluster,
        "flags": [FlagTold.model_validate(flag) for flag in flags],
    }
