"""The tables of the intervention's benchmark, as Markdown that can be copied."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from backend.domain.statistics import Estimate, estimate_mean, paired_difference, paired_test
from benchmarks.intervention_onset import Onset, StepShares
from benchmarks.mastery_runs import Trained

BESIDE = "repaired"
"""The policy that the others are held against."""

Found = list[float]
"""Of each held-out task, 1 where its number was found."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """What became of one seed."""

    seed: int
    trained: Trained
    onset: Onset
    paused_at: int | None
    """The step after which an alarm paused the run; None: none did."""
    alarm: str
    back_to: str
    """The checkpoint that the roll back took."""
    paused_again: int
    """Pauses of the repaired branch: false ones, as its reward has no such hole."""
    curves: Mapping[str, Sequence[StepShares]]
    found: Mapping[str, Found]
    """By policy, in the order of training."""


def print_interventions(console: Console, done: Sequence[Intervention]) -> None:
    columns = [
        "seed",
        "base rate",
        "onset",
        "share there",
        "paused after",
        "steps from onset",
        "back to",
        "paused again",
    ]
    rows = [
        [
            str(each.seed),
            f"{each.onset.base:.1%}",
            _or_none(each.onset.step),
            _share_at(each, each.onset.step),
            _or_none(each.paused_at),
            _or_none(_delay(each)),
            each.back_to,
            str(each.paused_again),
        ]
        for each in done
    ]
    _print(console, "from onset to pause", columns, rows)
    delays = [delay for each in done if (delay := _delay(each)) is not None]
    if delays:
        console.print(f"median {statistics.median(delays):g} steps, at most {max(delays)}, {len(delays)} runs paused")
    for each in done:
        console.print(f"seed {each.seed}: {each.alarm}", style="dim", highlight=False)


def print_curves(console: Console, done: Sequence[Intervention]) -> None:
    """Every fifth step, and those around the onset."""
    columns = ["seed", "version", "step", "broken off", "reward", "numbers found"]
    rows = [
        [
            str(each.seed),
            version,
            str(at.step),
            f"{at.share:.1%}",
            f"{at.reward:.3f}",
            f"{at.found:.1%}",
        ]
        for each in done
        for version, shares in each.curves.items()
        for at in shares
        if at.step % 5 == 0 or at.step < 10
    ]
    _print(console, "what each step's episodes came to", columns, rows)


def print_success(console: Console, done: Sequence[Intervention], baselines: Mapping[str, Found]) -> None:
    """Intervals over tasks; in the last rows over the tasks of all seeds. Policies without a model know no seed."""
    columns = ["seed", "policy", "numbers found (95 %)", f"{BESIDE} − it (95 %)", "p"]
    rows = [*_rows("–", baselines), *(row for each in done for row in _rows(str(each.seed), each.found))]
    shared = [each.found for each in done if BESIDE in each.found]
    if len(shared) > 1:
        names = [name for name in shared[0] if all(name in found for found in shared)]
        rows += _rows("all", {name: [value for found in shared for value in found[name]] for name in names})
    count = len(next(iter(baselines.values())))
    _print(console, f"true success on the same {count} held-out tasks of the repaired version", columns, rows)


def _rows(seed: str, found: Mapping[str, Found]) -> Iterable[list[str]]:
    for name, values in found.items():
        beside = found.get(BESIDE) if name != BESIDE else None
        difference = paired_difference(values, beside) if beside else None
        p = paired_test(values, beside).permutation if beside else None
        yield [seed, name, _percent(estimate_mean(values)), _points(difference), "–" if p is None else f"{p:.2g}"]


def _percent(share: Estimate | None) -> str:
    return "–" if share is None else f"{100 * share.mean:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _points(difference: Estimate | None) -> str:
    if difference is None:
        return "–"
    return f"{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def _delay(each: Intervention) -> int | None:
    if each.paused_at is None or each.onset.step is None:
        return None
    return each.paused_at - each.onset.step


def _share_at(each: Intervention, step: int | None) -> str:
    return next((f"{at.share:.1%}" for at in each.curves["careless"] if at.step == step), "–")


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def _print(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print(f"\n{title}\n", style="bold")
    for row in (columns, ["---"] * len(columns), *rows):
        console.print(f"| {' | '.join(row)} |", markup=False, highlight=False)
