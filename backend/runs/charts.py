"""The charts of a training run's page, and the points of any metric as columns."""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field
from sqlalchemy.orm import Session

from backend.domain.training.configuration import Recipe
from backend.domain.training.self_play import CURVES
from backend.operations.schemas import Request
from backend.runs.metric_points import read_points
from backend.runs.tables import Run

MAX_POINTS = 4000
"""Per series and answer."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a chart."""

    name: str
    """Name of its metric."""
    label: str
    unit: str = ""


class Window(Request):
    """A range of steps."""

    after: int | None = Field(None, description="Only later steps: the `cursor` of the previous answer.")
    low: int | None = Field(None, description="First step.")
    high: int | None = Field(None, description="Last step.")


Points = dict[int, dict[str, float | None]]
"""Values by step and metric."""


def _read_points(session: Session, run_id: uuid.UUID, series: Sequence[Series], window: Window) -> Points:
    steps = [step for step in (window.after, window.low) if step is not None]
    points: Points = {}
    names = [each.name for each in series]
    for step, name, value in read_points(session, run_id, names, max(steps, default=None), window.high, MAX_POINTS):
        points.setdefault(step, {})[name] = value
    return points


def columnar_points(
    session: Session, run: Run, series: Sequence[Series], window: Window, *, with_source: bool = False
) -> dict[str, object]:
    """{"x": [steps], "series": [{"label", "unit", "values": [number or null, …]}], "cursor": the last step}.

    Request the cursor as `after` and replace that step, too: held-out figures of a step come later than its training
    figures. `with_source` adds the curves of the run that it branches from; before its own branching those of its
    source, and so on. These series have `of`: the number of the own series that they continue.
    """
    own = _read_points(session, run.id, series, window)
    earlier: Points = {}
    high, branch = window.high, run
    while with_source and branch.branch_step is not None and branch.source_run_id is not None:
        source = session.get(Run, branch.source_run_id)
        if source is None:
            break
        earlier = _read_points(session, source.id, series, window.model_copy(update={"high": high})) | earlier
        if source.branch_step is not None:
            high = source.branch_step if window.high is None else min(window.high, source.branch_step)
        branch = source
    steps = sorted(own.keys() | earlier.keys())
    curves: list[tuple[str, Series, Points, dict[str, int]]] = [(each.label, each, own, {}) for each in series]
    if earlier:
        curves += [(f"{each.label}, before", each, earlier, {"of": number}) for number, each in enumerate(series)]
    drawn = [
        {"label": label, "unit": each.unit, "values": [points.get(step, {}).get(each.name) for step in steps]} | more
        for label, each, points, more in curves
    ]
    last = max(own, default=window.after)
    return {"x": steps, "series": drawn, "cursor": "" if last is None else str(last)}


CHEAT_RATE = "environment_cheat_rate/"
LEARNING = ("forward", "backward", "optimiser", "other", "idle")
"""Parts of a step's time."""
OF_GRADIENT = frozenset({"entropy", "groups/no_variance", "loss", "grad_norm"})
"""Charts of a step's gradient, which rounds of rejection sampling do not have."""
MOST_MEMBERS = 7
"""Opponents of self-play whose ratings are drawn."""
MACHINERY = (
    ("seconds", "Time of a step", "seconds", ("rollouts", "reward", *LEARNING)),
    ("seconds", "Time after a step", "seconds", ("storing", "detectors", "steering", "examination")),
    ("sft/seconds", "Warm-up (SFT): time of a step", "seconds", LEARNING),
    ("tokens", "Tokens of a step", "tokens", ("in", "out")),
    ("ratio", "Importance ratio", "ratio", ("mean", "max")),
    ("ratio", "Clipped tokens", "share", ("low_clip", "high_clip")),
    ("ahead", "Time to sample a step ahead", "seconds", ("seconds",)),
)


@dataclass(frozen=True, slots=True)
class Chart:
    """One or more curves with the same unit."""

    key: str
    """In the address of its points."""
    title: str
    unit: str
    series: tuple[Series, ...]
    low: float | None = None
    high: float | None = None
    has_rollouts: bool = True
    """Whether a point links to the rollouts of its step."""


def charts_of(run: Run, names: Iterable[str], *, is_screened: bool = False) -> tuple[list[Chart], list[Chart]]:
    """Return the main charts, some of which are shown even before their first point, and a chart for each other metric.

    The warm-up comes first until GRPO has points. `is_screened`: detectors kept rollouts out of the gradient, so the
    chart of these rollouts is a main one.
    """
    known, recipe = set(names), run.configuration.get("recipe")
    kept_out = (Series("rollouts/masked", "all"), Series("rollouts/screened", "flagged, not judged"))
    kept_out_chart = Chart("rollouts/masked", "Rollouts kept out of the gradient", "rollouts", kept_out, low=0)
    screening = [kept_out_chart] if any(series.name in known for series in kept_out) else []
    uniform = [Series("groups/no_variance", "without variance")]
    if run.configuration.get("grpo", {}).get("replace_uniform"):
        uniform.append(Series("groups/replaced", "discarded episodes"))
    cheating = []
    if "cheat_rate" in known:
        title = "Cheat rate: impossible tasks passed"
        cheating.append(Chart("cheat_rate", title, "share", _interval("cheat_rate"), 0, 1))
    cheaters = sorted(name for name in known if name.startswith(CHEAT_RATE) and name.count("/") == 1)
    if rates := tuple(Series(name, name.removeprefix(CHEAT_RATE)) for name in cheaters):
        cheating.append(Chart("environment_cheat_rate", "Cheat rate by environment", "share", rates, 0, 1))
    # If the levels adapt: the window of each environment, and the success that moves it.
    adapting = sorted(name.split("/")[1] for name in known if re.fullmatch("curriculum/.*/high", name))
    curriculum = []
    for name in adapting:
        window = (Series(f"curriculum/{name}/high", "top level"), Series(f"curriculum/{name}/low", "lowest level"))
        curriculum.append(Chart(f"curriculum/{name}", f"Levels of {name}", "level", window, low=0))
    if successes := tuple(Series(f"curriculum/{name}/success", name) for name in adapting):
        curriculum.append(Chart("curriculum-success", "Success at the top level", "share", successes, 0, 1))
    if recipe == Recipe.DISTILLATION:
        cheating.insert(0, _single("teacher_kl", "Reverse KL to the teacher", "nats per token"))
    ahead = []
    if "staleness" in known:
        overlap = Series("ahead/overlap", "learning while sampling"), Series("ratio/truncated", "limited weights")
        speeds = Series("tokens_per_second", "training"), Series("ahead/tokens_per_second", "sampling process")
        ahead = [
            Chart("staleness", "Staleness of episodes", "steps", (Series("staleness", "staleness"),), low=0),
            Chart("ahead/overlap", "Sampling ahead", "share", overlap, 0, 1, has_rollouts=False),
            Chart("tokens_per_second", "Tokens per second", "tokens/s", speeds, low=0, has_rollouts=False),
        ]
    heldout_columns = tuple(Series(f"heldout/columns/{name}", name) for name in run.columns)
    grpo = [
        Chart("reward", "Reward", "reward", (Series("reward", "train"), Series("heldout/reward", "held-out"))),
        Chart("columns", "Reward columns", "value", tuple(Series(f"columns/{name}", name) for name in run.columns)),
        *([_single("heldout/success", "Held-out success", "share", 0, 1)] if "heldout/success" in known else ()),
        *cheating,
        Chart("heldout", "Held-out reward columns", "value", heldout_columns),
        *_rewards_by(known, "environment", ""),
        *_rewards_by(known, "level", "level "),
        *curriculum,
        *_league(known),
        _single("entropy", "Entropy", "nats per token", low=0),
        _single("completions/mean_length", "Completion length", "tokens", low=0),
        Chart("groups/no_variance", "Groups without variance", "share", tuple(uniform), 0, 1),
        *(screening if is_screened else ()),
        *ahead,
        _single("completions/truncated", "Truncated completions", "share", 0, 1),
        _single("loss", "Loss", "loss"),
        _single("grad_norm", "Gradient norm", "norm", low=0),
    ]
    warm_up = []
    learns_examples = recipe not in {Recipe.GRPO, Recipe.DISTILLATION}
    if learns_examples and run.configuration.get("sft", {}).get("steps") and run.branch_step is None:
        loss, accuracy = Series("sft/loss", "loss"), Series("sft/mean_token_accuracy", "accuracy")
        name = "SFT of all rounds" if recipe == Recipe.REJECTION_SAMPLING else "Warm-up (SFT)"
        warm_up.append(Chart("sft/loss", f"{name}: loss", "nats per token", (loss,), 0, has_rollouts=False))
        warm_up.append(Chart("sft/accuracy", f"{name}: token accuracy", "share", (accuracy,), 0, 1, has_rollouts=False))
    heldout = tuple(Series(f"sft/heldout/{name}", name) for name in ("reward", "success", "format"))
    if any(series.name in known for series in heldout):
        warm_up.append(Chart("sft/heldout", "Warm-up (SFT): held-out results", "value", heldout, has_rollouts=False))
    details = list(_details(run, known)) + ([] if is_screened else screening)
    if recipe == Recipe.DPO:
        return _dpo_charts(known, heldout_columns)
    if recipe == Recipe.REJECTION_SAMPLING:
        kept = Series("rounds/kept", "episodes kept"), Series("rounds/solved", "tasks with a kept episode")
        grpo.insert(1, Chart("rounds/kept", "Kept in each round", "share", kept, 0, 1))
        grpo = [chart for chart in grpo if chart.key not in OF_GRADIENT]
    main = [*grpo, *warm_up] if "reward" in known else [*warm_up, *grpo]
    drawn = {series.name for chart in [*main, *details] for series in chart.series}
    drawn |= {name for name in known if name.startswith(CURVES)}  # the page has a table of the league
    return main, [*details, *(_single(name, name, "value") for name in sorted(known - drawn))]


def _league(known: set[str]) -> list[Chart]:
    """The ratings of a self-play run."""
    if f"{CURVES}rating" not in known:
        return []
    found = (re.fullmatch(f"{CURVES}([a-z]+ ([0-9]+))/rating", name) for name in known)
    newest = sorted((match for match in found if match), key=lambda match: int(match[2]))[-MOST_MEMBERS:]
    series = [Series(f"{CURVES}rating", "policy"), *(Series(match[0], match[1]) for match in newest)]
    return [Chart("league", "Elo against past checkpoints", "Elo", tuple(series))]


def _dpo_charts(known: set[str], columns: tuple[Series, ...]) -> tuple[list[Chart], list[Chart]]:
    """Charts of preference training, which samples nothing but its held-out evaluations."""
    rewards = (Series("pairs/chosen", "chosen"), Series("pairs/rejected", "rejected"))
    main = [
        Chart("reward", "Held-out reward", "reward", (Series("heldout/reward", "held-out"),)),
        *([_single("heldout/success", "Held-out success", "share", 0, 1)] if "heldout/success" in known else ()),
        _single("pairs/accuracy", "Pairs in the right order", "share", 0, 1),
        Chart("pairs/chosen", "Implicit reward", "β × log-probability gained", rewards, has_rollouts=False),
        _single("pairs/margin", "Margin between chosen and rejected", "implicit reward"),
        Chart("heldout", "Held-out reward columns", "value", columns),
        _single("loss", "Loss", "loss"),
        _single("grad_norm", "Gradient norm", "norm", low=0),
    ]
    parts = tuple(Series(f"seconds/{part}", part) for part in LEARNING)
    more = [Chart("seconds/forward", "Time of a step", "seconds", parts, low=0, has_rollouts=False)]
    drawn = {series.name for chart in [*main, *more] for series in chart.series}
    return main, [*more, *(_single(name, name, "value") for name in sorted(known - drawn))]


def _single(name: str, title: str, unit: str, low: float | None = None, high: float | None = None) -> Chart:
    return Chart(name, title, unit, (Series(name, title.lower() if title != name else name),), low, high)


def _by_number(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (len(name), name))


def _interval(name: str) -> tuple[Series, ...]:
    """A cheat rate over the newest five steps that played impossible tasks, with Wilson's 95% interval."""
    return Series(f"{name}/high", "95% high"), Series(name, "passed"), Series(f"{name}/low", "95% low")


def _rewards_by(known: set[str], part: str, word: str) -> Iterator[Chart]:
    """Reward by level or environment, if there are several."""
    for prefix, title in ((f"{part}/", "Reward"), (f"heldout/{part}/", "Held-out reward")):
        names = _by_number(name for name in known if name.startswith(prefix))
        names = names if word else sorted(names)
        if series := tuple(Series(name, f"{word}{name.removeprefix(prefix)}") for name in names):
            yield Chart(f"{prefix.strip('/').replace('/', '-')}s", f"{title} by {part}", "reward", series)


def _details(run: Run, known: set[str]) -> Iterator[Chart]:
    for name in sorted(name for name in known if name.startswith(CHEAT_RATE) and name.count("/") == 1):
        yield Chart(name, f"Cheat rate of {name.removeprefix(CHEAT_RATE)}", "share", _interval(name), 0, 1)
    for prefix, title in (("environment_level/", "Reward"), ("heldout/environment_level/", "Held-out reward")):
        found = [name.removeprefix(prefix).rpartition("/") for name in known if name.startswith(prefix)]
        for place in sorted({name for name, _, _ in found}):
            levels = _by_number(level for name, _, level in found if name == place)
            series = tuple(Series(f"{prefix}{place}/{level}", f"level {level}") for level in levels)
            yield Chart(f"{prefix}{place}", f"{title} by level of {place}", "reward", series)
    for name in run.columns:
        yield from _spread(known, "columns", name, f"spread/{name}", f"Spread of {name}")
    stored = [name for name in run.columns if f"columns_std/{name}" in known]
    if deviations := tuple(Series(f"columns_std/{name}", name) for name in stored):
        yield Chart("deviations", "Standard deviation of reward columns", "value", deviations, low=0)
    for part in ("level", "environment", "environment_level"):
        prefix = f"columns_{part}/"
        found = [name.removeprefix(prefix).rpartition("/") for name in known if name.startswith(prefix)]
        for column in run.columns:
            keys = [key for key, _, name in found if name == column]
            for place in sorted({key.rpartition("/")[0] for key in keys}):
                own = _by_number(key for key in keys if key.rpartition("/")[0] == place)
                yield from _column_by(known, part, place, column, own)
    for prefix, title, unit, parts in MACHINERY:
        series = tuple(Series(f"{prefix}/{part}", part.replace("_clip", "")) for part in parts)
        if any(each.name in known for each in series):
            yield Chart(series[0].name, title, unit, series, low=0)


def _column_by(known: set[str], part: str, place: str, column: str, keys: Sequence[str]) -> Iterator[Chart]:
    """A column's means, deviations and spreads by level or environment. `place`: the environment of the levels."""
    key = f"{part}/{place}/{column}" if place else f"{part}/{column}"
    title = f"{column} by level of {place}" if place else f"{column} by {part}"
    labels = {each: each if part == "environment" else f"level {each.rpartition('/')[2]}" for each in keys}
    means = tuple(Series(f"columns_{part}/{each}/{column}", label) for each, label in labels.items())
    yield Chart(key, title, "value", means)
    deviations = [Series(f"columns_{part}_std/{each}/{column}", label) for each, label in labels.items()]
    if shown := tuple(series for series in deviations if series.name in known):
        yield Chart(f"deviations/{key}", f"Standard deviation of {title}", "value", shown, low=0)
    for each, label in labels.items():
        where = f"{place}, {label}" if place else label
        chart = f"spread/{part}/{each}/{column}"
        yield from _spread(known, f"columns_{part}", f"{each}/{column}", chart, f"Spread of {column}, {where}")


def _spread(known: set[str], curve: str, place: str, key: str, title: str) -> Iterator[Chart]:
    """Percentiles of a step's values. The chart fills the area between p10 and p90."""
    if f"{curve}_p10/{place}" in known:
        parts = ((f"{curve}_p90", "p90"), (curve, "mean"), (f"{curve}_p50", "median"), (f"{curve}_p10", "p10"))
        series = tuple(Series(f"{prefix}/{place}", label) for prefix, label in parts)
        yield Chart(key, title, "value", series)
