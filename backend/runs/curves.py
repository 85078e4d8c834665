"""Read curves of several runs for one chart: any metrics over steps, tokens, rollouts or time; seeds as groups."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import Field
from sqlalchemy.orm import Session, defer

from backend.domain.results.curves import Band, MetricCurve, mean_curve, smooth, thin
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.vocabulary import RunKind
from backend.errors import InvalidInput
from backend.operations.ids import parse_id
from backend.operations.schemas import Request, Response
from backend.runs.metric_points import read_packed_curves, sum_of_last_steps
from backend.runs.queries import find_runs
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_CURVES = 100
"""Curves of one chart: runs × metrics."""
MAX_METRICS = 8
MAX_SEARCHED = 12
"""Runs whose metrics are offered: the others mostly have the same, and each metric costs an index descent."""
MAX_NAMED = 1000
"""Runs that one request may name."""
MAX_READ = 400_000
"""Points that are read for one chart. If there are more, the database thins each curve first."""
MAX_SENT = 100_000
"""Points in one answer. Many curves have fewer points each."""
MAX_UNSMOOTHED = 12
"""With at most this many curves, a smoothed chart also has the values themselves."""
DEFAULT_METRIC = "reward"


class XAxis(StrEnum):
    """Quantity by which points are placed."""

    STEP = "step"
    """Training step; of a warm-up, its own steps."""
    TOKENS = "tokens"
    """Tokens that the policy wrote in training, from the start to the step."""
    ROLLOUTS = "rollouts"
    """Planned training rollouts from the start to the step: steps × tasks per step × group size."""
    TIME = "time"
    """Hours from the start of the run until the point was stored, pauses included."""

    @property
    def label(self) -> str:
        return X_LABELS[self]


X_LABELS = {
    XAxis.STEP: "training step",
    XAxis.TOKENS: "tokens written",
    XAxis.ROLLOUTS: "rollouts",
    XAxis.TIME: "hours since the start",
}


class CurvesRequest(Request):
    """Metrics of runs, and how to draw them."""

    run: list[str] = Field([], max_length=MAX_NAMED, description="Ids of runs, at most 100 divided by the metrics.")
    curve: list[str] = Field(
        [], max_length=MAX_METRICS, description=f"Metrics, such as `heldout/reward`. Default: `{DEFAULT_METRIC}`."
    )
    x: XAxis = Field(XAxis.STEP, description="What to place points by: step, tokens, rollouts or time (in hours).")
    smoothing: float = Field(0, ge=0, le=1, description="Strength of the moving average, from 0 (off) to 1.")
    group: bool = Field(False, description="Draw runs that differ only in their seed as their mean with a band.")
    band: Band = Field(Band.INTERVAL, description="Band of a group: 95% interval of the mean, or range of the runs.")
    low: float | None = Field(None, description="Start of the range of x.")
    high: float | None = Field(None, description="End of the range of x.")
    points: int = Field(1000, ge=50, le=4000, description="Maximum number of points per curve.")

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for name in self.curve if name)) or [DEFAULT_METRIC]

    @property
    def run_ids(self) -> list[uuid.UUID]:
        """Raises InvalidInput for what is no id."""
        found: dict[uuid.UUID, None] = {}
        for each in self.run:
            if each and (run_id := parse_id(each)) is None:
                raise InvalidInput(fields={"run": f"{each[:80]} is not the id of a run."})
            if each and run_id:
                found[run_id] = None
        return list(found)


class CurveResponse(Response):
    """One curve: a metric of a run, or the mean of a group of runs."""

    label: str
    curve: str
    """Name of the metric."""
    runs: list[uuid.UUID]
    """The run, or the runs of the group."""
    place: int
    """Number of the run or group, which decides the color."""
    x: list[float]
    steps: list[int]
    """Training step of each point."""
    values: list[float]
    low: list[float | None] | None = None
    """Lower end of a group's band; null where only one run has a value."""
    high: list[float | None] | None = None
    unsmoothed: "CurveValues | None" = None


class CurveValues(Response):
    x: list[float]
    values: list[float]


class LeftOut(Response):
    """A curve that cannot be drawn."""

    run: uuid.UUID
    label: str
    curve: str
    reason: str


class CurvesResponse(Response):
    x: XAxis
    x_label: str
    extent: list[float]
    """Lowest and highest x of all curves, also outside the requested range."""
    is_raw: bool
    """Every stored point of the range is included. Otherwise each bucket keeps its minimum and maximum."""
    curves: list[CurveResponse]
    left_out: list[LeftOut]


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with one configuration, apart from the seed; or a single run."""

    label: str
    runs: tuple[Run, ...]


def requested_runs(session: Session, request: CurvesRequest) -> list[Run]:
    """Raises InvalidInput if one does not exist for the person who asks."""
    run_ids = request.run_ids
    runs = find_runs(session, run_ids, defer(Run.summary))
    if missing := set(run_ids) - {run.id for run in runs}:
        raise InvalidInput(fields={"run": f"There is no run {min(map(str, missing))}."})
    return runs


def group_seeds(runs: Sequence[Run]) -> list[RunGroup]:
    """Group runs of one version that differ only in their seed, in the order of their first runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = run.configuration
        if run.kind is RunKind.TRAINING:  # what a worker added is not a setting
            settings = {name: settings.get(name) for name in TrainingConfiguration.model_fields}
        kept = {name: value for name, value in settings.items() if name != "seed"}
        key = json.dumps([str(run.version_id), run.kind, run.branch_step, str(run.source_run_id), kept], sort_keys=True)
        groups.setdefault(key if kept else str(run.id), []).append(run)
    return _named(
        [(f"{own[0].name} ({len(own)} seeds)" if len(own) > 1 else own[0].name, own) for own in groups.values()]
    )


def single_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Each run as a group. Runs with one name have their seed in the label."""
    names = Counter(run.name for run in runs)
    labels = [run.name if names[run.name] == 1 else f"{run.name}, seed {_seed(run)}" for run in runs]
    return _named([(label, [run]) for label, run in zip(labels, runs, strict=True)])


def _seed(run: Run) -> object:
    return run.configuration.get("seed", run.seed)


def _named(groups: Sequence[tuple[str, Sequence[Run]]]) -> list[RunGroup]:
    """Labels that still occur twice get the end of the first run's id."""
    labels = Counter(label for label, _ in groups)
    return [
        RunGroup(label if labels[label] == 1 else f"{label} {str(runs[0].id)[-4:]}", tuple(runs))
        for label, runs in groups
    ]


def read_curves(session: Session, request: CurvesRequest) -> CurvesResponse:
    """Read, smooth, group and thin the curves. Raises InvalidInput for more curves than one chart has."""
    run_ids, metrics = request.run_ids, request.metrics
    if len(run_ids) * len(metrics) > MAX_CURVES:
        each = f"one chart draws at most {MAX_CURVES} curves: choose fewer runs or metrics."
        raise InvalidInput(fields={"run": f"{len(run_ids):,} runs with {len(metrics)} metrics were selected; {each}"})
    runs = requested_runs(session, request)
    stored, is_whole = _stored_curves(session, request, runs)
    groups = group_seeds(runs) if request.group else single_runs(runs)
    known = [curve for curve in stored.values() if not isinstance(curve, str)]
    extent = (min((c.x[0] for c in known), default=0.0), max((c.x[-1] for c in known), default=0.0))
    low = extent[0] if request.low is None else request.low
    high = extent[1] if request.high is None else request.high
    most = max(50, min(request.points, MAX_SENT // max(1, len(known))))
    drawn: list[CurveResponse] = []
    left_out: list[LeftOut] = []
    for (place, group), metric in product(enumerate(groups), metrics):
        members = []
        for run in group.runs:
            curve = stored.get((run.id, metric), f"It has no points of {metric} yet.")
            if isinstance(curve, str):
                left_out.append(LeftOut(run=run.id, label=run.name, curve=metric, reason=curve))
            else:
                members.append((run, curve))
        if not members:
            continue
        smoothed = [smooth(curve, request.smoothing, extent[1] - extent[0]) for _, curve in members]
        shown = mean_curve(smoothed, request.band) if len(smoothed) > 1 else smoothed[0]
        inside = shown.between(request.low, request.high)
        thinned = thin(inside, low, high, most)
        is_whole = is_whole and len(thinned.x) == len(inside.x)
        response = CurveResponse(
            label=group.label if len(metrics) == 1 else f"{group.label} · {metric}",
            curve=metric,
            runs=[run.id for run, _ in members],
            place=place,
            x=_rounded(thinned.x, 9),
            steps=thinned.steps.astype(int).tolist(),
            values=_rounded(thinned.values),
            low=_with_gaps(thinned.low),
            high=_with_gaps(thinned.high),
        )
        if request.smoothing and len(members) == 1 and len(known) <= MAX_UNSMOOTHED:
            raw = thin(members[0][1].between(request.low, request.high), low, high, most)
            response.unsmoothed = CurveValues(x=_rounded(raw.x, 9), values=_rounded(raw.values))
        drawn.append(response)
    return CurvesResponse(
        x=request.x,
        x_label=request.x.label,
        extent=[float(end) for end in extent],
        is_raw=is_whole,
        curves=drawn,
        left_out=left_out,
    )


def curve_rows(session: Session, request: CurvesRequest) -> Iterator[tuple[object, ...]]:
    """The stored points of the range, every one of them, as rows of a table: run, name, metric, step, x, value."""
    whole = request.model_copy(update={"group": False, "smoothing": 0.0})
    for run in find_runs(session, request.run_ids, defer(Run.summary)):
        stored, _ = _stored_curves(session, whole, [run], has_all=True)
        for (_, metric), curve in stored.items():
            if not isinstance(curve, str):
                low, high = request.low, request.high
                for step, x, value in zip(curve.steps.tolist(), curve.x.tolist(), curve.values.tolist(), strict=True):
                    if (low is None or x >= low) and (high is None or x <= high):
                        yield run.id, run.name, metric, int(step), round(x, 9), value


def _stored_curves(
    session: Session, request: CurvesRequest, runs: Sequence[Run], *, has_all: bool = False
) -> tuple[dict[tuple[uuid.UUID, str], MetricCurve | str], bool]:
    """Each curve placed on the x axis, or why that is impossible; and whether all points were read.

    Above `MAX_READ` points the database thins the curves, unless `has_all`.
    """
    import numpy as np

    metrics = request.metrics
    names = [*metrics, "tokens/out"] if request.x is XAxis.TOKENS else metrics
    run_ids = [run.id for run in runs]
    buckets = None
    if not has_all and sum_of_last_steps(session, run_ids, names) > MAX_READ:
        buckets = max(100, MAX_READ // (2 * len(runs) * len(names)))

    read: dict[tuple[uuid.UUID, str], NDArray[np.float64]] = {}
    for row in read_packed_curves(session, run_ids, names, buckets, with_time=request.x is XAxis.TIME):
        points = np.array([np.frombuffer(sent, dtype=">f8") for sent in (row.steps, row.points, row.times) if sent])
        newest = np.append(points[0, 1:] != points[0, :-1], True)  # of the attempts at a step
        points = points[:, newest & ~np.isnan(points[1])].astype(float)
        if points.shape[1]:
            read[row.run_id, row.name] = points
    curves: dict[tuple[uuid.UUID, str], MetricCurve | str] = {}
    for run, metric in product(runs, metrics):
        if (run.id, metric) not in read:
            continue
        steps, values, *times = read[run.id, metric]
        placed = MetricCurve(steps, steps, values)
        curve: MetricCurve | str = placed
        episodes = _episodes_per_step(run.configuration)
        if request.x is XAxis.TIME:
            hours = (times[0] - (run.started_at or run.created_at).timestamp()) / 3600
            # A step that a resumed run wrote again is later than the next one of the attempt before: in order of time.
            order = np.argsort(hours, kind="stable")
            curve = MetricCurve(hours[order], steps[order], values[order])
        elif request.x is not XAxis.STEP and metric.startswith("sft/"):
            curve = f"The warm-up has no {request.x}: show it by step or time."
        elif request.x is XAxis.ROLLOUTS:
            curve = replace(placed, x=steps * episodes) if episodes else "It samples no rollouts."
        elif request.x is XAxis.TOKENS and (run.id, "tokens/out") not in read:
            curve = "It has no points of tokens/out."
        elif request.x is XAxis.TOKENS:
            known, amounts = read[run.id, "tokens/out"]
            total = np.concatenate(([0.0], np.cumsum(amounts)))
            curve = replace(placed, x=total[known.searchsorted(steps, "right")])
        curves[run.id, metric] = curve
    return curves, buckets is None


def _episodes_per_step(configuration: Mapping[str, Any]) -> int:
    """Planned training rollouts; 0 where training samples none in steps."""
    grpo = configuration.get("grpo") or {}
    if configuration.get("recipe") not in {recipe.value for recipe in Recipe if recipe.has_grpo}:
        return 0
    return int(grpo.get("tasks_per_step") or 0) * int(grpo.get("group_size") or 0)


def _rounded(values: "NDArray[np.float64]", digits: int = 7) -> list[float]:
    """Significant digits that a chart can show, so that the answer is short."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def _with_gaps(values: "NDArray[np.float64] | None") -> list[float | None] | None:
    if values is None:
        return None
    return [None if value != value else value for value in _rounded(values)]
