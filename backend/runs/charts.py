"""Which curves a training run's page draws, from the metric points that the trainer writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.runs.metric_points import Series
from backend.runs.tables import Run

CHEATED = "environment_cheat_rate/"
LEARNING = ("forward", "backward", "optimiser", "other", "idle")
"""Parts of a step's time."""


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


def charts_of(run: Run, names: Iterable[str], *, is_screened: bool = False) -> tuple[list[Chart], list[Chart]]:
    """The charts that every training run has, drawn even before the first point, and one for each further metric.

    The warm-up comes first until reinforcement has something to show; `is_screened`: detectors kept rollouts out of
    the gradient, which then is no detail.
    """
    known = set(names)
    reinforcement = [
        Chart("reward", "Reward", "reward", (Series("reward", "train"), Series("heldout/reward", "held-out"))),
        Chart("columns", "Reward columns", "value", tuple(_columns(run, "columns/"))),
        *_success(known),
        *_cheating(known),
        Chart("heldout", "Held-out reward columns", "value", tuple(_columns(run, "heldout/columns/"))),
        *_environments(known),
        *_levels(known),
        *_curriculum(known),
        _single("entropy", "Entropy", "nats a token", low=0),
        _single("completions/mean_length", "Completion length", "tokens", low=0),
        _groups(run),
        *(_kept_out(known) if is_screened else ()),
        _single("completions/truncated", "Truncated completions", "share", low=0, high=1),
        _single("loss", "Loss", "loss"),
        _single("grad_norm", "Gradient norm", "norm", low=0),
    ]
    warm_up = list(_warm_up(run, known))
    main = [*reinforcement, *warm_up] if "reward" in known else [*warm_up, *reinforcement]
    details = [
        *_cheating_intervals(known),
        *_environment_levels(known),
        *_spreads(run, known),
        *_parts(run, known),
        *_machinery(known),
    ]
    details += () if is_screened else _kept_out(known)
    drawn = {series.name for chart in [*main, *details] for series in chart.series}
    return main, [*details, *(_single(name, name, "value") for name in sorted(known - drawn))]


def series_of(run: Run, names: Iterable[str], key: str) -> tuple[Series, ...]:
    """The curves of the chart with this key; none when there is no such chart."""
    main, more = charts_of(run, names)
    return next((chart.series for chart in [*main, *more] if chart.key == key), ())


def _warm_up(run: Run, known: set[str]) -> Iterable[Chart]:
    if run.configuration.get("sft", {}).get("steps") and run.branch_step is None:
        loss, accuracy = Series("sft/loss", "loss"), Series("sft/mean_token_accuracy", "accuracy")
        yield Chart("sft/loss", "Warm-up (SFT): loss", "nats a token", (loss,), low=0, has_rollouts=False)
        yield Chart("sft/accuracy", "Warm-up (SFT): right tokens", "share", (accuracy,), 0, 1, has_rollouts=False)
    examined = tuple(Series(f"sft/heldout/{name}", name) for name in ("reward", "success", "format"))
    if {series.name for series in examined} & known:
        yield Chart("sft/heldout", "Warm-up (SFT): held-out examinations", "value", examined, has_rollouts=False)


def _success(known: set[str]) -> Iterable[Chart]:
    if "heldout/success" in known:
        yield _single("heldout/success", "Held-out success", "share", low=0, high=1)


def _cheating(known: set[str]) -> Iterable[Chart]:
    """Of the newest five steps that played impossible tasks, with Wilson's 95 % interval."""
    if "cheat_rate" in known:
        parts = (("cheat_rate/high", "95 % high"), ("cheat_rate", "passed"), ("cheat_rate/low", "95 % low"))
        series = tuple(Series(name, label) for name, label in parts)
        yield Chart("cheat_rate", "Cheat rate: impossible tasks passed", "share", series, 0, 1)
    if places := _cheated(known):
        own = tuple(Series(f"{CHEATED}{place}", place) for place in places)
        yield Chart("environment_cheat_rate", "Cheat rate by environment", "share", own, 0, 1)


def _cheated(known: set[str]) -> list[str]:
    """Environments with a cheat rate of their own, where the run plays several."""
    return sorted(name.removeprefix(CHEATED) for name in known if name.startswith(CHEATED) and name.count("/") == 1)


def _cheating_intervals(known: set[str]) -> Iterable[Chart]:
    for place in _cheated(known):
        name = f"{CHEATED}{place}"
        series = (Series(f"{name}/high", "95 % high"), Series(name, "passed"), Series(f"{name}/low", "95 % low"))
        yield Chart(name, f"Cheat rate of {place}", "share", series, 0, 1)


def _groups(run: Run) -> Chart:
    """How many groups teach nothing, and where they give place to others, what that throws away."""
    series = [Series("groups/no_variance", "without variance")]
    if run.configuration.get("grpo", {}).get("replace_uniform"):
        series.append(Series("groups/replaced", "episodes thrown away"))
    return Chart("groups/no_variance", "Groups without variance", "share", tuple(series), 0, 1)


def _kept_out(known: set[str]) -> Iterable[Chart]:
    """Judged a hack, or flagged by a detector that screens and not judged yet."""
    series = (Series("rollouts/masked", "all"), Series("rollouts/screened", "flagged, not judged"))
    if {each.name for each in series} & known:
        yield Chart("rollouts/masked", "Rollouts kept out of the gradient", "rollouts", series, low=0)


def _spreads(run: Run, known: set[str]) -> Iterable[Chart]:
    """How a step's values of each reward column are spread."""
    for name in run.columns:
        yield from _spread(known, "columns", name, f"spread/{name}", f"Spread of {name}")
    deviations = tuple(series for series in _columns(run, "columns_std/") if series.name in known)
    if deviations:
        yield Chart("deviations", "Standard deviation of reward columns", "value", deviations, low=0)


def _spread(known: set[str], curve: str, place: str, key: str, title: str) -> Iterable[Chart]:
    """The island fills what lies between p10 and p90."""
    if f"{curve}_p10/{place}" in known:
        parts = ((f"{curve}_p90", "p90"), (curve, "mean"), (f"{curve}_p50", "median"), (f"{curve}_p10", "p10"))
        series = tuple(Series(f"{prefix}/{place}", label) for prefix, label in parts)
        yield Chart(key, title, "value", series)


def _parts(run: Run, known: set[str]) -> Iterable[Chart]:
    """Each reward column by level, by environment and by the levels of each environment, where there are several."""
    for part in ("level", "environment", "environment_level"):
        prefix = f"columns_{part}/"
        found = [name.removeprefix(prefix).rpartition("/") for name in known if name.startswith(prefix)]
        for column in run.columns:
            keys = [key for key, _, name in found if name == column]
            places = sorted({key.rpartition("/")[0] for key in keys})
            for place in places:
                own = sorted((key for key in keys if key.rpartition("/")[0] == place), key=lambda n: (len(n), n))
                yield from _part(known, part, place, column, own)


def _part(known: set[str], part: str, place: str, column: str, keys: Sequence[str]) -> Iterable[Chart]:
    """One column's means, deviations and spreads. `place`: the environment whose levels they are."""
    key = f"{part}/{place}/{column}" if place else f"{part}/{column}"
    title = f"{column} by level of {place}" if place else f"{column} by {part}"
    words = {each: each if part == "environment" else f"level {each.rpartition('/')[2]}" for each in keys}
    means = tuple(Series(f"columns_{part}/{each}/{column}", word) for each, word in words.items())
    yield Chart(key, title, "value", means)
    deviations = [Series(f"columns_{part}_std/{each}/{column}", word) for each, word in words.items()]
    if told := tuple(series for series in deviations if series.name in known):
        yield Chart(f"deviations/{key}", f"Standard deviation of {title}", "value", told, low=0)
    for each, word in words.items():
        where = f"{place}, {word}" if place else word
        chart = f"spread/{part}/{each}/{column}"
        yield from _spread(known, f"columns_{part}", f"{each}/{column}", chart, f"Spread of {column}, {where}")


def _machinery(known: set[str]) -> Iterable[Chart]:
    """How the step was made: its time, its tokens, how far the policy moved while it learned."""
    for prefix, title, unit, parts in (
        ("seconds", "Where a step's time goes", "seconds", ("rollouts", "reward", *LEARNING)),
        ("seconds", "What is done after a step", "seconds", ("storing", "detectors", "steering", "examination")),
        ("sft/seconds", "Warm-up (SFT): where a step's time goes", "seconds", LEARNING),
        ("tokens", "Tokens of a step", "tokens", ("in", "out")),
        ("ratio", "Importance ratio", "ratio", ("mean", "max")),
        ("ratio", "Clipped tokens", "share", ("low_clip", "high_clip")),
    ):
        series = tuple(Series(f"{prefix}/{part}", part.replace("_clip", "")) for part in parts)
        if {each.name for each in series} & known:
            yield Chart(series[0].name, title, unit, series, low=0)


def _columns(run: Run, prefix: str) -> Iterable[Series]:
    return (Series(f"{prefix}{name}", name) for name in run.columns)


def _levels(known: set[str]) -> Iterable[Chart]:
    """Reward by level, where the environment has several."""
    for prefix, title in (("level/", "Reward by level"), ("heldout/level/", "Held-out reward by level")):
        found = sorted((name for name in known if name.startswith(prefix)), key=lambda name: (len(name), name))
        if found:
            series = tuple(Series(name, f"level {name.removeprefix(prefix)}") for name in found)
            yield Chart(prefix.strip("/").replace("/", "-") + "s", title, "reward", series)


def _environments(known: set[str]) -> Iterable[Chart]:
    """Reward by environment, where the run plays several."""
    for prefix, title in (
        ("environment/", "Reward by environment"),
        ("heldout/environment/", "Held-out reward by environment"),
    ):
        found = sorted(name for name in known if name.startswith(prefix))
        if found:
            series = tuple(Series(name, name.removeprefix(prefix)) for name in found)
            yield Chart(prefix.strip("/").replace("/", "-") + "s", title, "reward", series)


def _environment_levels(known: set[str]) -> Iterable[Chart]:
    """Reward by level of each environment, where the run plays several."""
    for prefix, title in (("environment_level/", "Reward"), ("heldout/environment_level/", "Held-out reward")):
        found = [name.removeprefix(prefix).rpartition("/") for name in known if name.startswith(prefix)]
        for place in sorted({name for name, _, _ in found}):
            levels = sorted((level for name, _, level in found if name == place), key=lambda n: (len(n), n))
            series = tuple(Series(f"{prefix}{place}/{level}", f"level {level}") for level in levels)
            yield Chart(f"{prefix}{place}", f"{title} by level of {place}", "reward", series)


def _curriculum(known: set[str]) -> Iterable[Chart]:
    """Where the levels of a run adapt: the window of each environment, and the success that moves it."""
    names = sorted(name.split("/")[1] for name in known if name.startswith("curriculum/") and name.endswith("/high"))
    for name in names:
        window = (Series(f"curriculum/{name}/high", "top level"), Series(f"curriculum/{name}/low", "lowest level"))
        yield Chart(f"curriculum/{name}", f"Levels played of {name}", "level", window, low=0)
    if names:
        series = tuple(Series(f"curriculum/{name}/success", name) for name in names)
        yield Chart("curriculum-success", "Success at the top level", "share", series, low=0, high=1)


def _single(name: str, title: str, unit: str, low: float | None = None, high: float | None = None) -> Chart:
    return Chart(name, title, unit, (Series(name, title.lower() if title != name else name),), low, high)
