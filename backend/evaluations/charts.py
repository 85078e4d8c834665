"""Which curves a training run's page draws, from the metric points that the trainer writes."""

from collections.abc import Iterable
from dataclasses import dataclass

from backend.db.models import Run
from backend.evaluations.points import Series


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of one or more curves with the same unit."""

    key: str
    """In the address of its points."""
    title: str
    unit: str
    series: tuple[Series, ...]
    low: float | None = None
    high: float | None = None
    has_rollouts: bool = True
    """Do the rollouts of a step stand behind a point?"""


def charts_of(run: Run, names: Iterable[str]) -> tuple[list[Chart], list[Chart]]:
    """The charts that every training run has, drawn even before the first point, and one for each further metric.

    The warm-up comes first until reinforcement has something to show.
    """
    known = set(names)
    reinforcement = [
        Chart("reward", "Reward", "reward", (Series("reward", "train"), Series("heldout/reward", "held-out"))),
        Chart("columns", "Reward columns", "value", tuple(_columns(run, "columns/"))),
        Chart("heldout", "Held-out reward columns", "value", tuple(_columns(run, "heldout/columns/"))),
        *_levels(known),
        _single("entropy", "Entropy", "nats a token", low=0),
        _single("completions/mean_length", "Completion length", "tokens", low=0),
        _single("groups/no_variance", "Groups without variance", "share", low=0, high=1),
        _single("completions/truncated", "Truncated completions", "share", low=0, high=1),
        _single("loss", "Loss", "loss"),
        _single("grad_norm", "Gradient norm", "norm", low=0),
    ]
    warm_up = list(_warm_up(run))
    main = [*reinforcement, *warm_up] if "reward" in known else [*warm_up, *reinforcement]
    drawn = {series.name for chart in main for series in chart.series}
    return main, [_single(name, name, "value") for name in sorted(known - drawn)]


def series_of(run: Run, names: Iterable[str], key: str) -> tuple[Series, ...]:
    """The curves of the chart with this key; none when there is no such chart."""
    main, more = charts_of(run, names)
    return next((chart.series for chart in [*main, *more] if chart.key == key), ())


def _warm_up(run: Run) -> Iterable[Chart]:
    if run.configuration.get("sft", {}).get("steps"):
        loss, accuracy = Series("sft/loss", "loss"), Series("sft/mean_token_accuracy", "accuracy")
        yield Chart("sft/loss", "Warm-up (SFT): loss", "nats a token", (loss,), low=0, has_rollouts=False)
        yield Chart("sft/accuracy", "Warm-up (SFT): right tokens", "share", (accuracy,), 0, 1, has_rollouts=False)


def _columns(run: Run, prefix: str) -> Iterable[Series]:
    return (Series(f"{prefix}{name}", name) for name in run.columns)


def _levels(known: set[str]) -> Iterable[Chart]:
    """Reward by level, where the environment has several."""
    for prefix, title in (("level/", "Reward by level"), ("heldout/level/", "Held-out reward by level")):
        found = sorted((name for name in known if name.startswith(prefix)), key=lambda name: (len(name), name))
        if found:
            series = tuple(Series(name, f"level {name.removeprefix(prefix)}") for name in found)
            yield Chart(prefix.strip("/").replace("/", "-") + "s", title, "reward", series)


def _single(name: str, title: str, unit: str, low: float | None = None, high: float | None = None) -> Chart:
    return Chart(name, title, unit, (Series(name, title.lower() if title != name else name),), low, high)
