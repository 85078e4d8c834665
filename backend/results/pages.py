"""/compare and /leaderboards."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field
from sqlalchemy import func, select

from backend.domain.statistics import TIE
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.queries import get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.environments.views import with_rollout_views
from backend.results.baselines import BaselineResponse, baselines
from backend.results.comparison import MAX_SIDES, ComparisonNote, Pairing, RunComparison, TaskPair, compare, task_pairs
from backend.results.differences import SettingDifference, differing_settings
from backend.results.leaderboard import MIN_COVERAGE, RANKED_KINDS, get_leaderboard
from backend.results.planning import PlanSampleSize, SamplePlan, plan_for
from backend.results.schemas import CompareRuns, LeaderboardRequest
from backend.results.scores import ComparedRun, best_steps
from backend.rollouts import queries as rollout_queries
from backend.rollouts.queries import columns_of
from backend.rollouts.transcripts import mark_differences
from backend.runs import queries
from backend.runs.schemas import RunFilter
from backend.runs.tables import Run
from backend.web.csv_files import csv_response
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page
from backend.web.transcripts import transcript_of

router = APIRouter()
LISTED_TASKS = 12
"""At either end of the list."""
LEADERBOARD_COMPARISON = 8
"""Maximum number of runs that a leaderboard compares."""
COMPARABLE = frozenset({RunKind.EVALUATION, RunKind.TRAINING, RunKind.RESCORE, RunKind.REPLAY})


class ComparisonChoice(CompareRuns):
    detect: float | None = Field(None, gt=0, le=1e6)
    """Difference of the reward for which the page plans the number of tasks."""
    focus: int = 1
    """Position of the run that the tables compare with the first one."""
    task: uuid.UUID | None = None

    def url(self, **changes: object) -> str:
        """The same page with other choices; `run` is a list of references."""
        values = {"run": self.references, "focus": self.focus, "task": self.task, "detect": self.detect} | changes
        if values["focus"] == 1:
            values.pop("focus")
        return "/compare?" + urlencode({name: value for name, value in values.items() if value}, doseq=True)

    def without(self, position: int) -> str:
        kept = [reference for place, reference in enumerate(self.references) if place != position]
        return self.url(run=kept, focus=1, task=None)

    def first(self, position: int) -> str:
        """The same page, comparing with this run."""
        references = self.references
        return self.url(run=[references.pop(position), *references], focus=1, task=None)


@dataclass(slots=True)
class ComparePage:
    choice: ComparisonChoice
    candidates: Sequence[Run]
    sides: Sequence[ComparedRun] = ()
    problem: ComparisonNote | None = None
    found: RunComparison | None = None
    pairing: Pairing | None = None
    """The run in focus compared with the first."""
    plan: SamplePlan | None = None
    """Tasks that detect a difference between the two; by default the observed one."""
    baselines: list[BaselineResponse] = field(default_factory=list)
    open: TaskPair | None = None
    played: Sequence[dict[str, Any]] = ()
    """Rollout, entries and columns of both sides of the open task."""
    parting: int | None = None
    """First turn in which the replies of the open task differ."""
    improved: Sequence[TaskPair] = ()
    """Most improved first."""
    regressed: Sequence[TaskPair] = ()
    """Most regressed first."""
    differences: Sequence[SettingDifference] = ()
    best: dict[uuid.UUID, int] = field(default_factory=dict)
    """Training steps of the candidates' best checkpoints."""
    trained: Sequence[uuid.UUID] = ()
    """Training runs among the sides, and the training runs of evaluated checkpoints."""
    most: int = MAX_SIDES


@router.get("/compare", response_class=HTMLResponse)
def show_comparison(
    request: Request, session: SessionDep, _: Viewer, choice: Annotated[ComparisonChoice, Query()]
) -> HTMLResponse:
    sides = choice.sides(session)[:MAX_SIDES]
    runs = queries.runs(session, RunFilter(version_id=sides[0].run.version_id, limit=200)).items if sides else []
    known = {run.id for run in runs}
    runs += [run for run in queries.runs(session, RunFilter(limit=200)).items if run.id not in known]
    candidates = [run for run in runs if run.kind in COMPARABLE and run.status is not RunStatus.QUEUED]
    context = ComparePage(choice, candidates, sides)
    context.best = best_steps(session, [run.id for run in candidates if run.kind is RunKind.TRAINING])
    if len(sides) < 2:
        return page(request, "results/compare.html", context, block="comparison")
    comparison = compare(session, sides)
    if not comparison.pairings:
        context.problem = comparison.remarks[0]
        return page(request, "results/compare.html", context, block="comparison")

    # The run in focus, its most changed tasks, and the open task side by side.
    pairing = comparison.pairings[min(max(choice.focus, 1), len(comparison.pairings)) - 1]
    context.found, context.pairing = comparison, pairing
    context.differences = differing_settings([side.run for side in sides])
    curves = (side.run.id if side.run.kind is RunKind.TRAINING else _trained_by(side.run) for side in sides)
    context.trained = list(dict.fromkeys(filter(None, curves)))
    # how many tasks would decide it
    differs = choice.detect or float(f"{abs(pairing.reward.difference.mean):.2g}")
    if differs > TIE and len(comparison.shared) > 1:
        wanted = PlanSampleSize(run=pairing.before.side.reference, difference=differs)
        context.plan = plan_for((pairing.before, pairing.after), wanted)
    scripts = {each.side.run.policy.configuration.get("script") for each in comparison.sides if each.side.run.policy}
    nearby = baselines(session, pairing.after.side.run, comparison.shared, comparison.sides)
    context.baselines = [each for each in nearby if each.script not in scripts]
    order, differences = pairing.order.tolist(), pairing.differences
    improved = [position for position in order[:LISTED_TASKS] if differences[position] > TIE]
    regressed = [position for position in order[: -LISTED_TASKS - 1 : -1] if differences[position] < -TIE]
    is_regressed = -differences[order[-1]] > differences[order[0]]
    opened = order[-1] if is_regressed else order[0]  # the most changed task
    after = pairing.after
    if choice.task in after.task_ids:
        row = after.task_ids.index(choice.task)
        key = next(key for key, place in after.tasks.items() if place == row)
        opened = comparison.shared.index(key) if key in comparison.shared else opened
    *listed, context.open = task_pairs(session, comparison, pairing, [*improved, *regressed, opened])
    context.improved, context.regressed = listed[: len(improved)], listed[len(improved) :]
    played: list[dict[str, Any]] = []
    for rollout_id in (context.open.rollout_before, context.open.rollout_after):
        rollout = rollout_queries.get_rollout(session, rollout_id)
        weights = rollout_queries.weights_of(rollout)
        entries = transcript_of(rollout.messages, rollout.steps, list(weights), weights=list(weights.values()))
        played.append({"rollout": rollout, "entries": entries, "columns": columns_of(rollout.run, rollout)})
    one, other = played
    one["entries"], other["entries"], context.parting = mark_differences(one["entries"], other["entries"])
    for play in played:
        play["entries"] = with_rollout_views(session, play["rollout"], play["entries"])
    context.played = played
    return page(request, "results/compare.html", context, block="comparison")


def _trained_by(run: Run) -> uuid.UUID | None:
    return run.checkpoint.run_id if run.checkpoint else None


@router.get("/leaderboards", response_class=HTMLResponse)
def list_leaderboards(request: Request, session: SessionDep, actor: Viewer) -> HTMLResponse:
    statement = (
        select(
            Environment.name.label("environment"),
            EnvironmentVersion.number,
            func.count(Run.policy_id.distinct()).label("policies"),
            func.count(Run.id).label("runs"),
            func.max(Run.created_at).label("latest"),
        )
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .where(Run.kind.in_(RANKED_KINDS), Run.policy_id.is_not(None), Environment.archived_at.is_(None))
        .group_by(Environment.name, EnvironmentVersion.number)
        .order_by(Environment.name, EnvironmentVersion.number.desc())
    )
    if actor.project_id:
        statement = statement.where(Run.project_id == actor.project_id)
    return page(request, "results/leaderboards.html", {"items": session.execute(statement).all()})


@router.get("/leaderboards/{name}", response_class=HTMLResponse)
def show_leaderboard(
    request: Request, name: str, session: SessionDep, _: Viewer, choice: Annotated[LeaderboardRequest, Query()]
) -> HTMLResponse:
    environment = get_environment(session, name)
    of_environment = EnvironmentVersion.environment_id == environment.id
    numbers = session.scalars(select(EnvironmentVersion.number).where(of_environment)).all()
    board = get_leaderboard(session, name, choice.version, choice.exam) if numbers else None
    ranked = board.ranked if board else ()
    ends = [end for row in ranked if row.reward for end in (row.reward.low, row.reward.high)]
    top_two, top = (
        "/compare?" + urlencode({"run": [row.run_id for row in ranked[:count]]}, doseq=True) if len(ranked) > 1 else ""
        for count in (2, LEADERBOARD_COMPARISON)
    )
    export = {"version": board and board.version, "exam": choice.exam}
    context = {
        "environment": environment,
        "board": board,  # None without a published version
        "numbers": sorted(numbers, reverse=True),
        "low": min(ends, default=0.0),
        "high": max(ends, default=1.0),
        "top_two": top_two,
        "top": top,
        "export": f"/leaderboards/{name}/export.csv?"
        + urlencode({key: value for key, value in export.items() if value}),
        "least": MIN_COVERAGE,
    }
    return page(request, "results/leaderboard.html", context, block="board")


@router.get("/leaderboards/{name}/export.csv")
def export_leaderboard(
    name: str, session: SessionDep, _: Viewer, choice: Annotated[LeaderboardRequest, Query()]
) -> Response:
    """The ranked rows, then the others."""
    board = get_leaderboard(session, name, choice.version, choice.exam)
    head = (
        *("rank", "worst_rank", "name", "mark", "reward", "low", "high", "tasks", "normalized", "success"),
        *("success_rule", "completed", "rollouts", "tokens_a_rollout", "usd_a_rollout", "usd", "temperature", "date"),
        *("run_id", "reason"),
    )
    rows = []
    for row in [*board.ranked, *board.apart]:
        reward = row.reward
        rows.append(
            (
                *(row.rank, row.worst_rank, row.name, row.mark),
                *((reward.mean, reward.low, reward.high, reward.count) if reward else (None,) * 4),
                row.normalized and row.normalized.mean,
                *(row.success and row.success.mean, row.success_rule, row.coverage.completed, row.coverage.total),
                *(row.tokens, row.cost, row.total_cost, row.temperature),
                *(row.at.isoformat(), row.run_id, row.reason),
            )
        )
    return csv_response(f"{name}-v{board.version}-leaderboard", head, rows)
