"""An effort score as a page and the JSON API tell it."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from statistics import fmean

from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.domain.statistics import estimate_mean
from backend.domain.studies.effort import EffortMeasure, EffortOutcome, Scored, cut_points, mean_curve
from backend.domain.vocabulary import RunStatus
from backend.runs.tables import Run
from backend.studies.effort import queries
from backend.studies.queries import checkpoint_name
from backend.studies.tables import EffortReply, EffortScore, EffortSide


class ReplyAnswer(BaseModel):
    """A reply that was cut."""

    rollout_id: uuid.UUID
    task: str
    characters: int
    """Of its reasoning."""
    values: list[float]
    """One a fraction."""
    score: float


class SideAnswer(BaseModel):
    """The checkpoint or its base."""

    is_base: bool
    name: str
    checkpoint_id: uuid.UUID | None
    run_id: uuid.UUID | None
    """The evaluation."""
    played: int | None
    """null: not looked at yet."""
    succeeded: int | None
    reasoned: int | None
    chosen: int | None
    note: str
    """Why nothing of it could be cut; empty: something can, or it is not known yet."""
    score: float | None
    """Mean area over its replies."""
    low: float | None
    high: float | None
    """95 %, over replies."""
    curve: list[float]
    """Mean over its replies, one a fraction; empty without any."""
    replies: list[ReplyAnswer]


class TaskAnswer(BaseModel):
    """A task with the mean areas of both sides."""

    task: str
    own: float | None
    base: float | None


class EffortProgress(BaseModel):
    """How far it is."""

    doing: str
    run_id: uuid.UUID | None
    """The evaluation under way."""
    done: int
    total: int
    """0: not known yet."""


class ScoreAnswer(BaseModel):
    """An effort score."""

    id: uuid.UUID
    run_id: uuid.UUID
    status: RunStatus
    reason: str | None
    cuts: int
    samples: int
    measure: EffortMeasure
    outcome: EffortOutcome | None
    sentence: str
    difference: float | None
    """Of the areas, checkpoint less base, over the tasks that both solved."""
    low: float | None
    high: float | None
    tasks: int | None
    base_limit: float | None
    """The base's 95th percentile."""
    fractions: list[float]
    sides: list[SideAnswer]
    """The base first, where there is one."""
    by_task: list[TaskAnswer]
    progress: EffortProgress | None
    created_at: datetime
    ended_at: datetime | None

    @property
    def is_open(self) -> bool:
        return not self.status.is_over

    @property
    def name(self) -> str:
        return next(side.name for side in self.sides if not side.is_base)


class CheckpointAnswer(BaseModel):
    """That can be scored."""

    id: uuid.UUID
    name: str

    @property
    def pair(self) -> tuple[str, str]:
        """Of a choice in a form."""
        return str(self.id), self.name


class EffortAnswer(BaseModel):
    """All effort scores of a run."""

    run_id: uuid.UUID
    obstacle: str
    """Why nothing of it can be scored; empty: it can."""
    checkpoints: list[CheckpointAnswer]
    """Of a training run, the newest first."""
    scores: list[ScoreAnswer]
    """Newest first."""

    @property
    def is_open(self) -> bool:
        return any(each.is_open for each in self.scores)


def effort_of(session: Session, run: Run) -> EffortAnswer:
    obstacle = queries.obstacle_to(session, run)
    offered = () if obstacle else queries.checkpoints_of(session, run)
    return EffortAnswer(
        run_id=run.id,
        obstacle=obstacle,
        checkpoints=[
            CheckpointAnswer(id=each.id, name=checkpoint_name(each.stage, each.step)) for each in reversed(offered)
        ],
        scores=told(session, queries.scores_of(session, run.id)),
    )


def told(session: Session, scores: Sequence[EffortScore]) -> list[ScoreAnswer]:
    sides = queries.sides_of(session, [each.id for each in scores])
    replies = queries.replies_of(session, [side.id for each in sides.values() for side in each])
    return [_score(each, [(side, replies.get(side.id, [])) for side in sides.get(each.id, ())]) for each in scores]


_AS_STORED = (
    "id", "run_id", "status", "reason", "cuts", "samples", "measure", "outcome", "sentence", "difference", "low",
    "high", "tasks", "base_limit", "created_at", "ended_at",
)  # fmt: skip


def _score(score: EffortScore, sides: Sequence[tuple[EffortSide, list[EffortReply]]]) -> ScoreAnswer:
    answers = [_side(side, replies) for side, replies in sides]
    return ScoreAnswer(
        **{name: getattr(score, name) for name in _AS_STORED},
        fractions=list(cut_points(score.cuts)),
        sides=answers,
        by_task=_by_task(answers),
        progress=None if score.status.is_over else _progress(sides),
    )


def _side(side: EffortSide, replies: Sequence[EffortReply]) -> SideAnswer:
    estimate = estimate_mean([each.score for each in replies])
    names = ("is_base", "checkpoint_id", "run_id", "played", "succeeded", "reasoned", "chosen")
    return SideAnswer(
        **{name: getattr(side, name) for name in names},
        name=checkpoint_name(side.stage, side.step),
        note=_note(side),
        score=estimate.mean if estimate else None,
        low=max(0.0, estimate.low) if estimate else None,
        high=min(1.0, estimate.high) if estimate else None,
        curve=mean_curve([Scored(each.task, tuple(each.values), each.score) for each in replies]),
        replies=[ReplyAnswer.model_validate(each, from_attributes=True) for each in replies],
    )


def _note(side: EffortSide) -> str:
    if side.reasoned or side.played is None:
        return ""
    if not side.played:
        return "None of its rollouts was completed."
    if not side.succeeded:
        return f"None of its {side.played:,} rollouts succeeded."
    return f"None of the {side.succeeded:,} that succeeded reasons before its last answer: the reply is answer alone."


def _by_task(sides: Sequence[SideAnswer]) -> list[TaskAnswer]:
    """The largest difference first, then what only one side solved."""
    found: dict[str, dict[bool, list[float]]] = {}
    for side in sides:
        for reply in side.replies:
            found.setdefault(reply.task, {}).setdefault(side.is_base, []).append(reply.score)
    rows = []
    for task, by in found.items():
        means = {is_base: fmean(scores) for is_base, scores in by.items()}
        rows.append(TaskAnswer(task=task, own=means.get(False), base=means.get(True)))
    return sorted(rows, key=lambda row: (row.own is None or row.base is None, (row.base or 0) - (row.own or 0)))


def _progress(sides: Sequence[tuple[EffortSide, list[EffortReply]]]) -> EffortProgress:
    for side, _ in sides:
        name = checkpoint_name(side.stage, side.step)
        if side.run is None:
            return EffortProgress(doing=f"{name} is to play its tasks", run_id=None, done=0, total=0)
        if side.run.status is not RunStatus.COMPLETED:
            state = side.run.progress
            return EffortProgress(
                doing=f"{name} plays its tasks",
                run_id=side.run.id,
                done=int(state.get("done") or 0),
                total=int(state.get("total") or 0),
            )
    for side, replies in sides:
        if not side.is_done:
            name = checkpoint_name(side.stage, side.step)
            return EffortProgress(
                doing=f"replies of {name} are cut", run_id=None, done=len(replies), total=side.chosen or 0
            )
    return EffortProgress(doing="summing up", run_id=None, done=0, total=0)
