"""`proctor compare`, and how comparisons and leaderboards look in a terminal."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, renders
from backend.cli.output import BAD_RESULT, AsJson, fail, say, write_json, write_table
from backend.cli.views import estimate
from backend.web.formats import usd
from proctor import ProctorError


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Two to eight runs: ids, the last characters of ids, or `last`. The others are compared with the "
            "first. RUN@STEP selects a training run's held-out evaluation.",
        ),
    ],
    before_step: Annotated[
        int | None, typer.Option(help="Step of the first run. Training runs only. Default: the latest.")
    ] = None,
    after_step: Annotated[
        int | None, typer.Option(help="Step of the second run. Training runs only. Default: the latest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the tasks that all of them completed: paired differences with 95% intervals, a sign test and a
    permutation test, wins and losses, and baselines. Exits with 1 if they cannot be compared."""
    if len(runs) < 2:
        fail("select two or more runs")
    for place, step in enumerate((before_step, after_step)):
        if step is not None:
            runs[place] = f"{runs[place].partition('@')[0]}@{step}"
    try:
        result = connect().get("/compare", run=runs, tasks=1000 if as_json else 0)
    except ProctorError as refused:
        if refused.status != 409:
            raise
        fail(str(refused), BAD_RESULT)
    (write_json if as_json else show_comparison)(result)


@renders("results.compare_runs")
def show_comparison(result: Json) -> None:
    for remark in result["remarks"]:
        say(f"note: {remark['text']}", "yellow")
    if len(result["runs"]) > 2:  # each run against the first, and wins–losses against every other
        letters = [chr(ord("A") + place) for place in range(len(result["runs"]))]
        standings = [
            (
                f"{letters[place]} {run['policy']}",
                estimate(run["reward"]),
                estimate(pairing["columns"][0]["difference"]) if pairing else "–",
                _chance(pairing["permutation_test"]) if pairing else "–",
                *(
                    "–" if place == other else f"{against['wins']}–{against['losses']}"
                    for other, against in enumerate(result["matrix"][place])
                ),
            )
            for place, (run, pairing) in enumerate(zip(result["runs"], [None, *result["pairings"]], strict=True))
        ]
        columns = ("run", "reward [95%]", f"difference to {letters[0]}", "permutation", *letters)
        write_table(columns, standings, empty="Nothing to compare.")
        say("")
    rows = [
        (column["name"], *(estimate(column[side]) for side in ("before", "after", "difference")))
        for column in result["columns"]
    ]
    before, after = result["before"]["name"], result["after"]["name"]
    write_table(("", f"before: {before}", f"after: {after}", "difference [95%]"), rows, empty="Nothing to compare.")
    say(
        f"\n{result['shared_tasks']:,} tasks: better on {result['wins']} tasks, worse on {result['losses']},"
        f" the same on {result['ties']}; sign test {_chance(result['sign_test'])},"
        f" permutation test {_chance(result['permutation_test'])}"
    )
    if all(run["normalized"] for run in result["runs"]):
        scores = ", ".join(f"{run['policy']} {estimate(run['normalized'])}" for run in result["runs"])
        say(f"normalized score, 0 at the floor and 1 at gold: {scores}")
    for baseline in result["baselines"]:
        say(f"baseline {baseline['script']}: {estimate(baseline['reward'])}")


@renders("results.get_leaderboard")
def show_leaderboard(board: Json) -> None:
    exam = board["exam"]
    say(f"{board['environment']} v{board['version']}" + (f": {exam['label']}" if exam else ""), "bold")
    columns = ("rank", "policy", "", "reward [95%]", "normalized", "success", "completed", "tokens", "cost", "date")
    ranks = [
        str(row["rank"]) if row["rank"] == row["worst_rank"] else f"{row['rank']}–{row['worst_rank']}"
        for row in board["ranked"]
    ]
    rows = [(rank, *_row(row)) for rank, row in zip(ranks, board["ranked"], strict=True)]
    write_table(columns, rows, empty="No policy is ranked yet. Start with `proctor eval`.")
    if board["apart"]:
        say("\nnot ranked", "bold")
        write_table(("reason", *columns[1:]), [(row["reason"], *_row(row)) for row in board["apart"]], empty="")


@renders("matches.get_match_table")
def show_matches(table: Json) -> None:
    say(f"{table['environment']} v{table['version']}, games on {table['split']} tasks", "bold")
    players = table["players"]
    rows = []
    for number, player in enumerate(players, start=1):
        elo, results = player["rating"]["elo"], f"{player['wins']}/{player['draws']}/{player['losses']}"
        rating = f"{elo['mean']:.0f} [{elo['low']:.0f}, {elo['high']:.0f}]" if elo else player["rating"]["reason"]
        scores = []
        for cell in table["cells"][number - 1]:
            games = 0 if cell is None else cell["wins"] + cell["draws"] + cell["losses"]
            scores.append(f"{100 * (cell['wins'] + cell['draws'] / 2) / games:.0f}%" if games else "")
        rows.append((number, player["name"], rating, results, *scores))
    numbers = (f"vs {number}" for number in range(1, len(players) + 1))
    empty = "No policies have met yet. Start with `proctor match start`."
    write_table(("", "policy", "Elo [95%]", "won/drawn/lost", *numbers), rows, empty=empty)


@renders("results.plan_evaluation")
def show_plan(plan: Json) -> None:
    basis = "paired differences" if plan["is_paired"] else "one run, tasks of both sides uncorrelated"
    say(
        f"To detect a difference of {plan['difference']:g} with power {plan['power']:g}, by {basis} on"
        f" {plan['observed_tasks']:,} tasks:"
    )
    rows = [(each["group_size"], each["tasks"] or "over 10 million", each["rollouts"]) for each in plan["options"]]
    write_table(("rollouts per task", "tasks", "rollouts per side"), rows, empty="")
    if plan["detectable"] is not None:
        say(
            f"{plan['observed_tasks']:,} tasks with {plan['group_size']} rollouts each detect"
            f" {plan['detectable']:.3f}; they detect {plan['difference']:g} with power {plan['observed_power']:.2f}."
        )
    if not plan["variance"]["is_split"]:
        say("The runs have one rollout per task, so other numbers of rollouts cannot be planned.", "yellow")


def _chance(p: float | None) -> str:
    return "–" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _row(row: Json) -> tuple[object, ...]:
    temperature = "" if row["temperature"] is None else f" T={row['temperature']:g}"
    success = "–" if row["success"] is None else f"{100 * row['success']['mean']:.1f}%"
    tokens = None if row["tokens"] is None else round(row["tokens"], 1)
    done = f"{row['coverage']['completed']:,}/{row['coverage']['total']:,}"
    name, cost, date = row["name"] + temperature, usd(row["cost"]), row["at"][:10]
    normalized = None if row["normalized"] is None else round(row["normalized"]["mean"], 3)
    return name, row["mark"], estimate(row["reward"]), normalized, success, done, tokens, cost, date
