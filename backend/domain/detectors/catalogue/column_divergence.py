"""One reward column rises while another falls: the policy trades what matters for what is easy."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="column_divergence",
    title="Columns diverge",
    description="One reward column rises while another falls.",
    formula="Mann–Kendall p < 0.01 in opposite directions over 30 steps, Theil–Sen change ≥ 0.05; columns with a"
    " negative weight do not count. A note if the fall costs reward, but less than a fifth of what the rise gains",
    source="Gao et al. 2022, overoptimization of a proxy; Mann 1945, Kendall 1975, Sen 1968",
    subject=Subject.RUN,
    settings={
        "p": ThresholdSpec(0.01, "Significance level of both trends.", maximum=1),
        "window": ThresholdSpec(30, "Steps over which the trends are tested."),
        "smallest_change": ThresholdSpec(0.05, "Smallest change of each column over the window."),
        "loss": ThresholdSpec(
            0.2,
            "Smallest loss of reward by the fall, as a share of the gain by the rise. Below it, the flag is a note.",
        ),
    },
    needs=(Need.STEPS, Need.COLUMNS),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if len(view.steps) < 15:  # too few for a trend
        return
    window, p = view.steps[-int(thresholds["window"]) :], thresholds["p"]
    large = {}
    for name in view.context.columns:
        values = [figures.columns[name] for figures in view.steps]
        # In the column's own unit, where most columns are in [0, 1]; or a tenth of its range so far if that is more.
        least = max(thresholds["smallest_change"], 0.1 * (max(values) - min(values)))
        if abs(_slope(values[-len(window) :])) * (len(window) - 1) >= least:
            large[name] = trend_of(values[-len(window) :])
    if len(large) < 2:
        return
    # A penalty that falls is progress, and one that rises is none.
    directions = {name: trend.direction(p) for name, trend in large.items()}
    penalties = {name for name in large if view.context.weights.get(name, 0.0) < 0}
    rising = {name: trend for name, trend in large.items() if directions[name] > 0 and name not in penalties}
    falling = {name: trend for name, trend in large.items() if directions[name] < 0 and name not in penalties}
    if not rising or not falling:
        return
    grew = trend_of([figures.reward for figures in window]).direction(0.05) > 0
    rises = " and ".join(f"`{name}` rose by {up.change:.3f}" for name, up in rising.items())
    weights = view.context.weights
    gain = sum(weights.get(name, 1.0) * up.change for name, up in rising.items())
    for column, trend in falling.items():
        loss = -weights.get(column, 1.0) * trend.change
        # A policy that wins more often and is a little more careless trades nothing that matters. A column without a
        # weight measures something else, whatever it costs.
        is_side_effect = loss > 0 and loss < thresholds["loss"] * gain
        severity = Severity.ALERT if grew else Severity.WARNING
        yield view.flag(
            key=f"{column}, side effect" if is_side_effect else column,
            severity=Severity.NOTE if is_side_effect else severity,
            score=(0.1 if is_side_effect else 0.5 if grew else 0.3) + abs(trend.change) / 2,
            sentence=f"Over steps {window[0].step} to {window[-1].step} {rises} while `{column}` fell by"
            f" {-trend.change:.3f} (p = {max(trend.p, 1e-6):.1g}); the reward {'rose' if grew else 'did not rise'}"
            f" and the fall costs {loss:.3f} of it.",
            window=window,
            series={name: [figures.columns[name] for figures in window] for name in (column, *rising)},
            # the highest rewards in spite of low values in the falling column
            rows=sorted(view.newest, key=lambda row: (row.columns.get(column, 0.0), -row.reward)),
            falling={"column": column, "slope": trend.slope, "p": trend.p},
            rising={name: {"slope": up.slope, "p": up.p} for name, up in rising.items()},
        )


@dataclass(frozen=True, slots=True)
class Trend:
    slope: float
    """Per step; the median of all pairwise slopes (Sen 1968)."""
    change: float
    """The slope times the number of steps."""
    p: float
    """Probability of no trend, two-sided (Mann 1945, Kendall 1975)."""

    def direction(self, p: float) -> int:
        """1 if the series rises significantly, -1 if it falls, else 0."""
        return int((self.slope > 0) - (self.slope < 0)) if self.p < p else 0


def trend_of(values: Sequence[float]) -> Trend:
    """Mann–Kendall's test for the direction of a series, Theil–Sen's slope for its size. Constants have no trend."""

    from scipy import stats

    if len(values) < 3 or max(values) == min(values):
        return Trend(0.0, 0.0, 1.0)
    slope = _slope(values)
    return Trend(slope, slope * (len(values) - 1), float(stats.kendalltau(range(len(values)), values).pvalue))


def _slope(values: Sequence[float]) -> float:
    """Theil–Sen's estimate: the median of the slopes between all pairs."""
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((after - before) / (end - start) for (start, before), (end, after) in pairs)
