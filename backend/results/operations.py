"""What people, scripts and agents do with results: read figures, compare runs, rank policies, run again."""

import re
import time
from typing import Annotated

from fastapi import Path
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.environments import references as _references  # noqa: F401  how addresses name environments
from backend.environments.queries import get_version
from backend.environments.tables import Environment
from backend.errors import Conflict, InvalidInput
from backend.operations.declaration import operation
from backend.results.baselines import baselines
from backend.results.baselines import start_baseline as start_baseline_evaluation
from backend.results.comparison import MAX_SIDES, compare, task_pairs
from backend.results.ended import kept_if_ended
from backend.results.leaderboard import Leaderboard
from backend.results.leaderboard import get_leaderboard as rank_policies
from backend.results.match_table import MatchTable, match_table
from backend.results.match_table import start_round_robin as start_matches
from backend.results.planning import PlanSampleSize, SamplePlan, plan_sample_size
from backend.results.run_figures import FiguresRequest, run_figures
from backend.results.schemas import (
    CompareTasks,
    ComparisonResponse,
    FiguresResponse,
    LeaderboardRequest,
    PairingResponse,
    RankedSideResponse,
    RoundRobinResponse,
    ShowMatches,
    SideResponse,
    StartBaseline,
    StartRoundRobin,
)
from backend.runs.queries import get_run
from backend.runs.rerun import RerunRequest, run_again
from backend.runs.schemas import RunDetailResponse
from backend.runs.tables import Run
from backend.web.identity import Actor
from backend.web.shared import Shared

_figures: Shared[FiguresResponse] = Shared()
"""Shared by everyone who watches a run, because aggregating a big run takes a while."""


class NotComparable(Conflict):
    """These runs cannot be compared."""


@operation("GET /runs/{run}/figures", role=Role.VIEWER, tool=True)
def get_figures(session: Session, actor: Actor, run: Run, request: FiguresRequest) -> FiguresResponse:
    """Show a run's means with 95% intervals, pass@k and pass^k, levels, groups, failures, tokens, cost and coverage."""

    def read() -> FiguresResponse:
        return FiguresResponse.of(run_figures(session, run, request))

    if run.status.is_over:
        return kept_if_ended(_figures, run, request, read)
    response, _ = _figures.read((run.id, request), time.monotonic(), read)
    return response


@operation("POST /runs/{run}/again", role=Role.AUTHOR, status=201, noun="runs", audited=False)
def run_evaluation_again(session: Session, actor: Actor, run: Run, request: RerunRequest) -> RunDetailResponse:
    """Start an evaluation again, exactly as it was or with `changes`."""
    return RunDetailResponse.of(get_run(session, run_again(session, actor, run, request).id))


@operation("GET /compare", role=Role.VIEWER, tool=True)
def compare_runs(session: Session, actor: Actor, request: CompareTasks) -> ComparisonResponse:
    """Compare runs on the tasks that all of them completed: paired differences to the first run with 95% intervals.

    Includes a sign test and a permutation test, wins and losses of each pair, differences between the runs that matter,
    and baselines. Returns HTTP 409 if the runs cannot be compared.
    """
    sides = request.sides(session)
    if not 2 <= len(sides) <= MAX_SIDES:
        raise InvalidInput(fields={"run": f"Select two to {MAX_SIDES} runs: `run=…&run=…`."})
    comparison = compare(session, sides)
    if not comparison.pairings:
        raise NotComparable(comparison.remarks[0].text)
    first = comparison.pairings[0]
    positions: list[int] = first.order.tolist()
    if len(positions) > request.tasks:
        half = request.tasks // 2
        positions = positions[: request.tasks - half] + (positions[-half:] if half else [])
    pairs = task_pairs(session, comparison, first, positions)
    shared = len(comparison.shared)
    runs = [RankedSideResponse.of(side) for side in comparison.sides]
    for run, side, reward in zip(runs, sides, comparison.means, strict=True):
        run.reward = reward
        run.normalized = side.scale.estimate(reward) if side.scale else None
    return ComparisonResponse(
        **dict(PairingResponse.of(first)),
        before=SideResponse.of(first.before),
        shared_tasks=shared,
        only_before=first.before.completed - shared,
        only_after=first.after.completed - shared,
        runs=runs,
        pairings=[PairingResponse.of(each) for each in comparison.pairings],
        matrix=comparison.matrix,
        remarks=comparison.remarks,
        baselines=baselines(session, sides[1].run, comparison.shared, comparison.sides),
        tasks=pairs,
    )


@operation("GET /plan", role=Role.VIEWER, command="plan", tool=True)
def plan_evaluation(session: Session, actor: Actor, request: PlanSampleSize) -> SamplePlan:
    """Show how many tasks a comparison needs to detect a difference of the reward, by the variance of earlier runs."""
    return plan_sample_size(session, request)


@operation(
    "POST /compare/baselines",
    role=Role.AUTHOR,
    in_project=True,
    status=201,
    audited=False,
    page="/runs/{id}",
    notice="The baseline was queued. The comparison shows it when it is completed.",
)
def start_baseline(session: Session, actor: Actor, request: StartBaseline) -> RunDetailResponse:
    """Evaluate a baseline on the tasks of a run."""
    run = start_baseline_evaluation(session, actor, get_run(session, request.run_id), request.script)
    return RunDetailResponse.of(get_run(session, run.id))


@operation("GET /environments/{environment}/matches", role=Role.VIEWER, noun="matches", command="match list", tool=True)
def get_match_table(session: Session, actor: Actor, environment: Environment, request: ShowMatches) -> MatchTable:
    """Show the games between policies on an environment with seats: a win matrix, and Elo ratings with intervals."""
    version = get_version(session, environment, request.version)
    table = match_table(session, version, request.split)
    if table is None:
        raise Conflict(f"{environment.name} declares no seats: one policy plays each episode.")
    return table


@operation(
    "POST /environments/{environment}/matches",
    role=Role.AUTHOR,
    noun="matches",
    command="match start",
    status=201,
    tool=True,
    page="/leaderboards/{environment}?version={version}#matches",
    notice="The games were queued. The table shows them as they are played.",
)
def start_round_robin(
    session: Session, actor: Actor, environment: Environment, request: StartRoundRobin
) -> RoundRobinResponse:
    """Let several policies play each other: an evaluation for each pair that has not played these tasks yet."""
    version = get_version(session, environment, request.version)
    runs = start_matches(session, actor, version, request)
    return RoundRobinResponse(
        environment=environment.name, version=version.number, tag=runs[0].tags[0], run_ids=[run.id for run in runs]
    )


@operation("GET /leaderboards/{environment}", role=Role.VIEWER, command="leaderboard", tool=True)
def get_leaderboard(
    session: Session,
    actor: Actor,
    environment: Annotated[str, Path(description="Name of an environment, or `name@version`.")],
    request: LeaderboardRequest,
) -> Leaderboard:
    """Rank the policies that were evaluated with the same setup on an environment, NAME or NAME:VERSION."""
    name, mark, number = re.fullmatch(r"([^:@]*)([:@]?)(.*)", environment, re.DOTALL).groups()  # type: ignore[union-attr]
    if mark and not number.isdecimal():
        raise InvalidInput(fields={"environment": f"Write the version as a number, for example {name}:2."})
    version = int(number) if mark else request.version
    return rank_policies(session, name, version, request.exam)
