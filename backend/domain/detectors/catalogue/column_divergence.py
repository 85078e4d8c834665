"""One reward column rises while another falls: the policy trades what matters for what is easy."""

from collections.abc import Sequence

from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RolloutRow, RunView, StepFigures
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.detectors.trend import Trend, trend_of
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="column_divergence",
    title="Columns diverge",
    description="One reward column rises while another falls.",
    formula="Mann–Kendall p < 0.01 in opposite directions over 30 steps, Theil–Sen change ≥ 0.05",
    source="Gao et al. 2022, overoptimization of a proxy; Mann 1945, Kendall 1975, Sen 1968",
    subject=Subject.RUN,
    settings={
        "p": Setting(0.01, "Significance level of both trends.", maximum=1),
        "window": Setting(30, "Steps over which the trends are tested."),
        "smallest_change": Setting(0.05, "Smallest change of each column over the window."),
    },
    needs=(Need.STEPS, Need.COLUMNS),
)

SHORTEST = 15
SMALLEST_SHARE = 0.1
"""Or of the column's own span so far, where that is more."""


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    if len(view.steps) < SHORTEST:
        return []
    window, p = view.steps[-int(thresholds["window"]) :], thresholds["p"]
    trends = {name: trend_of([figures.columns[name] for figures in window]) for name in view.columns}
    large = {
        name: trend for name, trend in trends.items() if _is_large(view, name, trend, thresholds["smallest_change"])
    }
    rising = {name: trend for name, trend in large.items() if trend.rises(p)}
    falling = {name: trend for name, trend in large.items() if trend.falls(p)}
    if not rising:
        return []
    return [_draft(view, window, name, trend, rising) for name, trend in falling.items()]


def _is_large(view: RunView, column: str, trend: Trend, smallest: float) -> bool:
    """`smallest` over the window, in the column's own unit, where most columns lie in [0, 1]."""
    values = [figures.columns[column] for figures in view.steps]
    return abs(trend.change) >= max(smallest, SMALLEST_SHARE * (max(values) - min(values)))


def _draft(
    view: RunView, window: Sequence[StepFigures], column: str, trend: Trend, rising: dict[str, Trend]
) -> FlagDraft:
    reward = trend_of([figures.reward for figures in window])
    pays = reward.rises(0.05)
    told = " and ".join(f"`{name}` rose by {up.change:.3f}" for name, up in rising.items())
    return FlagDraft(
        detector=SPEC.id,
        key=column,
        severity=Severity.ALERT if pays else Severity.WARNING,
        score=bounded(0.5 + abs(trend.change) / 2 if pays else 0.3 + abs(trend.change) / 2),
        sentence=f"Over steps {window[0].step} to {window[-1].step} {told} while `{column}` fell by"
        f" {-trend.change:.3f} (p = {max(trend.p, 1e-6):.1g}); the reward {'rose' if pays else 'did not rise'}.",
        evidence={
            "window": [window[0].step, window[-1].step],
            "falling": {"column": column, "slope": trend.slope, "p": trend.p},
            "rising": {name: {"slope": up.slope, "p": up.p} for name, up in rising.items()},
            "series": {name: [figures.columns[name] for figures in window] for name in (column, *rising)},
            "rollouts": [str(row.id) for row in _telling(view, column)],
        },
        training_step=window[-1].step,
    )


def _telling(view: RunView, column: str) -> list[RolloutRow]:
    """Much reward in spite of little in the falling column."""
    return sorted(view.newest, key=lambda row: (row.columns.get(column, 0.0), -row.reward))[:5]


DETECTOR = RunDetector(SPEC, find)
