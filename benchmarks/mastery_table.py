"""The tables of the mastery benchmark, as Markdown: what each run took, and what each policy did."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from benchmarks.mastery_games import OPPONENTS, Games, interval
from benchmarks.mastery_runs import Trained

NOTE = (
    "Shares of games in %, with 95 % intervals. 2nd: losses of those games in which the opponent began. Format: share"
    " of replies that could be read. Invalid: games with at least one illegal move. Boards: distinct ones met. Games:"
    " distinct ones. Blind: share of replies that the policy's own earlier moves foretell (100 is open-loop play)."
)


def print_runs(console: Console, runs: Sequence[Trained]) -> None:
    _print(console, "training", ["run", "ended", "minutes", "CPU minutes", "best checkpoint"], map(_cells_of_run, runs))


def print_games(console: Console, rows: Sequence[tuple[str, str, Sequence[Games]]]) -> None:
    columns = ["policy", "T", "win", "draw", "loss", "2nd", "format", "invalid", "boards", "games", "blind"]
    for place, opponent in enumerate(OPPONENTS):
        title = f"against the {opponent} opponent, {rows[0][2][place].count:,} held-out games each"
        _print(console, title, columns, ([name, heat, *_cells(found[place])] for name, heat, found in rows))
    console.print(NOTE, style="dim")


def _print(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Plain lines: a table that is to be copied must not be wrapped to a terminal."""
    console.print(f"\n{title}\n", style="bold")
    for row in (columns, ["---"] * len(columns), *rows):
        console.print(f"| {' | '.join(row)} |", markup=False, highlight=False)


def _cells_of_run(run: Trained) -> list[str]:
    best = run.summary.get("best", {})
    told = f"{best['stage']} {best['step']}, reward {best['heldout_reward']:.3f}" if best else "none"
    ended = run.status if not run.reason else f"{run.status}: {run.reason}"
    return [run.name, ended, f"{run.seconds / 60:.1f}", f"{run.cpu_seconds / 60:.1f}", told]


def _cells(games: Games) -> list[str]:
    return [
        *(_share(hits, games.count) for hits in (games.wins, games.draws, games.losses)),
        str(games.losses_second),
        f"{100 * games.format:.2f}",
        _share(games.with_invalid, games.count),
        str(games.boards),
        str(games.sequences),
        f"{100 * games.blind:.0f}",
    ]


def _share(hits: int, count: int) -> str:
    low, high = interval(hits, count)
    return f"{100 * hits / count:.1f} ({100 * low:.1f}–{100 * high:.1f})"
