"""A version's history as its page, the JSON API and the command line tell it."""

import uuid
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind, RunStatus
from backend.rollouts.regrading import conclusions
from backend.rollouts.regrading.conclusions import Conclusions, conclusions_of
from backend.rollouts.regrading.history import History, Part


class EstimateAnswer(BaseModel):
    """A mean with its 95 % interval."""

    model_config = ConfigDict(from_attributes=True)

    mean: float
    low: float
    high: float
    count: int


class _FromRow(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class PartAnswer(BaseModel):
    """A run of the environment, or one phase of a training run."""

    run_id: uuid.UUID
    name: str
    kind: RunKind
    version: int
    phase: Phase | None
    rescore_id: uuid.UUID | None
    """null: nobody asked for it."""
    status: RunStatus | None
    reason: str | None
    """Why it did not end: refused as not faithful, stopped, failed."""
    done: int
    total: int


class ContenderAnswer(_FromRow):
    run_id: uuid.UUID
    name: str
    before: EstimateAnswer
    after: EstimateAnswer
    place_before: int
    place_after: int


class TurnedAnswer(_FromRow):
    """Two contenders whose order turned; differences are first less second, paired by task."""

    first: str
    """Was the better one."""
    second: str
    before: EstimateAnswer
    after: EstimateAnswer
    is_clear: bool
    """Both intervals exclude zero."""


class ApartAnswer(_FromRow):
    run_id: uuid.UUID
    name: str
    reason: str


class RankingAnswer(_FromRow):
    label: str
    tasks: int
    contenders: list[ContenderAnswer]
    """In the new order."""
    rank_correlation: float | None
    """Kendall's tau-b."""
    turned: list[TurnedAnswer]
    turned_count: int
    apart: list[ApartAnswer]
    is_changed: bool


class BestAnswer(_FromRow):
    checkpoint_id: uuid.UUID
    stage: str
    step: int
    before: EstimateAnswer
    after: EstimateAnswer
    is_pruned: bool


class BestCheckpointAnswer(_FromRow):
    run_id: uuid.UUID
    name: str
    before: BestAnswer
    after: BestAnswer
    examinations: int
    difference: EstimateAnswer | None
    is_changed: bool


class MovedAnswer(_FromRow):
    run_id: uuid.UUID
    copy_id: Annotated[uuid.UUID, Field(serialization_alias="rescore_id")]
    name: str
    phase: Phase | None
    before: EstimateAnswer
    after: EstimateAnswer
    difference: EstimateAnswer
    rollouts: int


class ConclusionsAnswer(_FromRow):
    """What follows from what is graded so far."""

    is_changed: bool
    compared: int
    rankings: list[RankingAnswer]
    checkpoints: list[BestCheckpointAnswer]
    moved: list[MovedAnswer]


class HistoryAnswer(BaseModel):
    """The history of an environment by one version's rewards."""

    environment: str
    version: int
    parts: list[PartAnswer]
    missing: int
    """Parts that nobody asked for yet."""
    graded: int
    open: int
    unended: int
    """Refused, stopped or failed."""
    rollouts_done: int
    rollouts_asked: int
    conclusions: ConclusionsAnswer


def told(session: Session, environment: str, history: History) -> HistoryAnswer:
    found: Conclusions = conclusions_of(session, history)
    return HistoryAnswer(
        environment=environment,
        version=history.version.number,
        parts=[_part(part) for part in history.parts],
        missing=len(history.missing),
        graded=len(history.graded),
        open=len(history.open),
        unended=len(history.unended),
        rollouts_done=history.rollouts_done,
        rollouts_asked=history.rollouts_asked,
        conclusions=ConclusionsAnswer.model_validate(found),
    )


def _part(part: Part) -> PartAnswer:
    copy = part.copy
    return PartAnswer(
        run_id=part.source.id,
        name=conclusions.name_of(part),
        kind=part.source.kind,
        version=part.source.version.number,
        phase=part.phase,
        rescore_id=copy.id if copy else None,
        status=copy.status if copy else None,
        reason=copy.reason if copy else None,
        done=int(copy.progress.get("done") or 0) if copy else 0,
        total=int(copy.progress.get("total") or 0) if copy else 0,
    )
