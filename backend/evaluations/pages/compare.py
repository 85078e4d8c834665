"""/compare: two runs on the same tasks, side by side, with the baselines beside them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.db.models import Rollout, Run
from backend.domain.vocabulary import RunKind, RunStatus
from backend.evaluations import queries, rollout_queries
from backend.evaluations.baselines import Baseline, baselines, start_baseline
from backend.evaluations.comparison import TIE, Comparison, Side, TaskPair, compare, problem, side_of
from backend.evaluations.forms import RunFilter
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.pages import page, see_other
from backend.web.transcripts import Entry, transcript_of

router = APIRouter()
SHOWN = 12
"""Tasks at either end of the list."""


class Choice(BaseModel):
    """Which two sides, and which task is open."""

    a: uuid.UUID | None = None
    b: uuid.UUID | None = None
    a_step: int | None = None
    """Of a training run: the training step of its held-out examination; left out: the newest."""
    b_step: int | None = None
    task: uuid.UUID | None = None

    def url(self, **changes: object) -> str:
        """The same page with something else chosen."""
        values = self.model_dump(mode="json") | changes
        return "/compare?" + urlencode({name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Played:
    """One side's play of the open task."""

    rollout: Rollout
    entries: list[Entry]
    columns: dict[str, float]


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The comparison, or why there is none."""

    choice: Choice
    candidates: Sequence[Run]
    before: Side | None = None
    after: Side | None = None
    problem: str | None = None
    found: Comparison | None = None
    baselines: list[Baseline] = field(default_factory=list)
    open: TaskPair | None = None
    played: tuple[Played, Played] | None = None
    improved: Sequence[TaskPair] = ()
    """Most improved first."""
    regressed: Sequence[TaskPair] = ()
    """Most regressed first."""


@router.get("/compare", response_class=HTMLResponse)
def show_comparison(
    request: Request, session: SessionDep, _: Viewer, choice: Annotated[Choice, Query()]
) -> HTMLResponse:
    return page(request, "compare/compare.html", _page(session, choice), block="comparison")


@router.post("/compare/baselines", response_class=HTMLResponse)
def start_missing_baseline(
    session: SessionDep, actor: Author, run_id: Annotated[uuid.UUID, Form()], script: Annotated[str, Form()]
) -> Response:
    run = start_baseline(session, actor, queries.get_run(session, run_id), script)
    return see_other(f"/runs/{run.id}", "The baseline is queued; the comparison shows it when it is done.")


def _page(session: Session, choice: Choice) -> ComparePage:
    candidates = [
        run
        for run in queries.runs(session, RunFilter(limit=200)).items
        if run.kind in {RunKind.EVALUATION, RunKind.TRAINING} and run.status is not RunStatus.QUEUED
    ]
    if choice.a is None or choice.b is None:
        return ComparePage(choice, candidates)
    before = side_of(session, queries.get_run(session, choice.a), choice.a_step)
    after = side_of(session, queries.get_run(session, choice.b), choice.b_step)
    if wrong := problem(before, after):
        return ComparePage(choice, candidates, before, after, wrong)
    found = compare(session, before, after)
    if not found.pairs:
        missing = (
            f"No task was completed on both sides ({found.only_before} only on the first, {found.only_after} only "
        )
        return ComparePage(choice, candidates, before, after, missing + "on the second).", found)
    opened = next((pair for pair in found.pairs if pair.task_id == choice.task), _most_changed(found))
    return ComparePage(
        choice,
        candidates,
        before,
        after,
        found=found,
        baselines=baselines(session, after.run, [pair.task_id for pair in found.pairs]),
        open=opened,
        improved=[pair for pair in found.pairs[:SHOWN] if pair.difference > TIE],
        regressed=[pair for pair in found.pairs[: -SHOWN - 1 : -1] if pair.difference < -TIE],
        played=(_played(session, opened.rollout_before), _played(session, opened.rollout_after)),
    )


def _most_changed(found: Comparison) -> TaskPair:
    first, last = found.pairs[0], found.pairs[-1]
    return last if -last.difference > first.difference else first


def _played(session: Session, rollout_id: uuid.UUID) -> Played:
    rollout = rollout_queries.get_rollout(session, rollout_id)
    entries = transcript_of(rollout.messages, rollout.steps, rollout.run.columns, weights=rollout.run.weights)
    return Played(rollout, entries, rollout_queries.columns_of(rollout.run, rollout))
