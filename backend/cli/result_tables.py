"""How comparisons and leaderboards look in a terminal."""

from typing import Any

from backend.cli.figures import chance, dollars, estimate
from backend.cli.output import console, say, write_table


def write_comparison(found: dict[str, Any]) -> None:
    for remark in found["remarks"]:
        say(f"note: {remark['text']}", "yellow")
    if len(found["runs"]) > 2:
        _write_standings(found)
    rows = [
        (column["name"], *(estimate(column[side]) for side in ("before", "after", "difference")))
        for column in found["columns"]
    ]
    before, after = found["before"]["name"], found["after"]["name"]
    write_table(("", f"before: {before}", f"after: {after}", "difference [95 %]"), rows, empty="Nothing to compare.")
    shown = console()
    shown.print(
        f"\n{found['shared_tasks']:,} tasks: better on {found['wins']} tasks, worse on {found['losses']},"
        f" the same on {found['ties']}; sign test {chance(found['sign_test'])},"
        f" permutation test {chance(found['permutation_test'])}"
    )
    for baseline in found["baselines"]:
        shown.print(f"baseline {baseline['script']}: {estimate(baseline['reward'])}", markup=False)


def _write_standings(found: dict[str, Any]) -> None:
    """Everyone against the first, and wins – losses against everyone."""
    letters = [chr(ord("A") + place) for place in range(len(found["runs"]))]
    differences = [None, *found["pairings"]]
    rows = [
        (
            f"{letters[place]} {run['policy']}",
            estimate(run["reward"]),
            estimate(against["columns"][0]["difference"]) if against else "–",
            chance(against["permutation_test"]) if against else "–",
            *(
                "–" if place == other else f"{duel['wins']}–{duel['losses']}"
                for other, duel in enumerate(found["matrix"][place])
            ),
        )
        for place, (run, against) in enumerate(zip(found["runs"], differences, strict=True))
    ]
    columns = ("run", "reward [95 %]", f"difference to {letters[0]}", "permutation", *letters)
    write_table(columns, rows, empty="Nothing to compare.")
    say("")


def write_leaderboard(found: dict[str, Any]) -> None:
    exam = found["exam"]
    say(f"{found['environment']} v{found['version']}" + (f": {exam['label']}" if exam else ""), "bold")
    rows = [(_rank(row), *_row(row)) for row in found["ranked"]]
    columns = ("rank", "policy", "", "reward [95 %]", "success", "completed", "tokens", "cost", "date")
    write_table(columns, rows, empty="Nobody is ranked yet: `proctor eval` begins.")
    if found["apart"]:
        say("\nnot ranked with them", "bold")
        apart = [(row["reason"], *_row(row)) for row in found["apart"]]
        write_table(("why", *columns[1:]), apart, empty="")


def _rank(row: dict[str, Any]) -> str:
    return str(row["rank"]) if row["rank"] == row["worst_rank"] else f"{row['rank']}–{row['worst_rank']}"


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    temperature = "" if row["temperature"] is None else f" T={row['temperature']:g}"
    success = "–" if row["success"] is None else f"{100 * row['success']['mean']:.1f} %"
    tokens = None if row["tokens"] is None else round(row["tokens"], 1)
    done = f"{row['coverage']['completed']:,}/{row['coverage']['total']:,}"
    cost = dollars(row["cost"])
    return row["name"] + temperature, row["mark"], estimate(row["reward"]), success, done, tokens, cost, row["at"][:10]
