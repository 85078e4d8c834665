"""/compare: runs on the same tasks, the first against every other, with the baselines beside them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session

from backend.domain.vocabulary import RunKind, RunStatus
from backend.results.baselines import Baseline, baselines, start_baseline
from backend.results.comparability import Remark
from backend.results.comparison import MOST_SIDES, TIE, Comparison, Pairing, Side, TaskPair, compare, task_pairs
from backend.results.requests import CompareQuery, sides_of
from backend.rollouts import queries as rollout_queries
from backend.rollouts.listing import columns_of
from backend.rollouts.tables import Rollout
from backend.rollouts.transcripts import mark_differences
from backend.runs import queries
from backend.runs.schemas import RunFilter
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.page import page, see_other
from backend.web.transcripts import Entry, transcript_of

router = APIRouter()
SHOWN = 12
"""Tasks at either end of the list."""
COMPARED = frozenset({RunKind.EVALUATION, RunKind.TRAINING, RunKind.RESCORE, RunKind.REPLAY})


class Choice(CompareQuery):
    """Which runs, which of them is looked at against the first, and which task is open."""

    focus: int = 1
    """Place of the run that stands against the first one in the tables."""
    task: uuid.UUID | None = None

    @property
    def references(self) -> list[str]:
        """The chosen runs as addresses name them."""
        return [str(run_id) if step is None else f"{run_id}@{step}" for run_id, step in self.chosen()]

    def url(self, **changes: object) -> str:
        """The same page with something else chosen; `runs` are references."""
        values = {"run": self.references, "focus": self.focus, "task": self.task} | changes
        if values["focus"] == 1:
            values.pop("focus")
        return "/compare?" + urlencode({name: value for name, value in values.items() if value}, doseq=True)

    def without(self, position: int) -> str:
        kept = [reference for place, reference in enumerate(self.references) if place != position]
        return self.url(run=kept, focus=1, task=None)

    def first(self, position: int) -> str:
        """The same with this run as the one that the others are held against."""
        references = self.references
        return self.url(run=[references.pop(position), *references], focus=1, task=None)


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
    sides: Sequence[Side] = ()
    problem: Remark | None = None
    found: Comparison | None = None
    pairing: Pairing | None = None
    """The run in focus against the first."""
    baselines: list[Baseline] = field(default_factory=list)
    open: TaskPair | None = None
    played: tuple[Played, Played] | None = None
    parting: int | None = None
    """The first turn in which the replies of the open task differ."""
    improved: Sequence[TaskPair] = ()
    """Most improved first."""
    regressed: Sequence[TaskPair] = ()
    """Most regressed first."""
    most: int = MOST_SIDES


@router.get("/compare", response_class=HTMLResponse)
def show_comparison(
    request: Request, session: SessionDep, _: Viewer, choice: Annotated[Choice, Query()]
) -> HTMLResponse:
    return page(request, "results/compare.html", _page(session, choice), block="comparison")


@router.post("/compare/baselines", response_class=HTMLResponse)
def start_missing_baseline(
    session: SessionDep, actor: Author, run_id: Annotated[uuid.UUID, Form()], script: Annotated[str, Form()]
) -> Response:
    run = start_baseline(session, actor, queries.get_run(session, run_id), script)
    return see_other(f"/runs/{run.id}", "The baseline is queued; the comparison shows it when it is done.")


def _page(session: Session, choice: Choice) -> ComparePage:
    sides = sides_of(session, choice)[:MOST_SIDES]
    candidates = _candidates(session, sides)
    if len(sides) < 2:
        return ComparePage(choice, candidates, sides)
    found = compare(session, sides)
    if not found.pairings:
        return ComparePage(choice, candidates, sides, found.remarks[0])
    pairing = found.pairings[min(max(choice.focus, 1), len(found.pairings)) - 1]
    improved, regressed = _ends(session, found, pairing)
    opened = _opened(session, found, pairing, choice.task) or _most_changed(session, found, pairing)
    played, parting = _side_by_side(session, opened)
    return ComparePage(
        choice,
        candidates,
        sides,
        found=found,
        pairing=pairing,
        baselines=_beside(session, found, pairing),
        open=opened,
        played=played,
        parting=parting,
        improved=improved,
        regressed=regressed,
    )


def _beside(session: Session, found: Comparison, pairing: Pairing) -> list[Baseline]:
    """Baselines that do not stand in the comparison themselves."""
    scripts = {each.side.run.policy.configuration.get("script") for each in found.sides if each.side.run.policy}
    run = pairing.after.side.run
    return [each for each in baselines(session, run, found.shared, found.sides) if each.script not in scripts]


def _candidates(session: Session, sides: Sequence[Side]) -> list[Run]:
    """Runs to choose from; with one chosen, those of its version first."""
    version = sides[0].run.version_id if sides else None
    found = [] if version is None else queries.runs(session, RunFilter(version_id=version, limit=200)).items
    known = {run.id for run in found}
    found += [run for run in queries.runs(session, RunFilter(limit=200)).items if run.id not in known]
    return [run for run in found if run.kind in COMPARED and run.status is not RunStatus.QUEUED]


def _ends(session: Session, found: Comparison, pairing: Pairing) -> tuple[list[TaskPair], list[TaskPair]]:
    order = pairing.order.tolist()
    improved = [position for position in order[:SHOWN] if pairing.differences[position] > TIE]
    regressed = [position for position in order[: -SHOWN - 1 : -1] if pairing.differences[position] < -TIE]
    pairs = task_pairs(session, found, pairing, [*improved, *regressed])
    return pairs[: len(improved)], pairs[len(improved) :]


def _opened(session: Session, found: Comparison, pairing: Pairing, task: uuid.UUID | None) -> TaskPair | None:
    if task is None or task not in pairing.after.task_ids:
        return None
    row = pairing.after.task_ids.index(task)
    key = next(key for key, place in pairing.after.tasks.items() if place == row)
    return task_pairs(session, found, pairing, [found.shared.index(key)])[0] if key in found.shared else None


def _most_changed(session: Session, found: Comparison, pairing: Pairing) -> TaskPair:
    first, last = int(pairing.order[0]), int(pairing.order[-1])
    position = last if -pairing.differences[last] > pairing.differences[first] else first
    return task_pairs(session, found, pairing, [position])[0]


def _side_by_side(session: Session, pair: TaskPair) -> tuple[tuple[Played, Played], int | None]:
    before, after = _played(session, pair.rollout_before), _played(session, pair.rollout_after)
    entries_before, entries_after, parting = mark_differences(before.entries, after.entries)
    return (
        Played(before.rollout, entries_before, before.columns),
        Played(after.rollout, entries_after, after.columns),
    ), parting


def _played(session: Session, rollout_id: uuid.UUID) -> Played:
    rollout = rollout_queries.get_rollout(session, rollout_id)
    weights = rollout_queries.weights_of(rollout)
    entries = transcript_of(rollout.messages, rollout.steps, list(weights), weights=list(weights.values()))
    return Played(rollout, entries, columns_of(rollout.run, rollout))
