"""The return of reward columns on the surface of texts: length, keywords, structure, agreement, hedging and style."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.domain.detectors.run_view import BROKEN_OFF, EnvironmentContext, RolloutRow
from backend.domain.detectors.surface import (
    FOLDS,
    LARGEST_LEVEL,
    MOST_FITTED,
    SHORTEST_TEXT,
    amounts_of_content,
    fit_curves,
    measure_surface,
    predict_curves,
)
from backend.domain.results.pass_at_k import REWARD
from backend.domain.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FAMILIES: Mapping[str, frozenset[str]] = {
    "structure": frozenset({"headings", "list items", "bold text", "code blocks"}),
    "agreement": frozenset({"praise and agreement", "politeness"}),
    "hedging": frozenset({"hedges"}),
    "style": frozenset({"citations", "strong words", "connectives", "emoji", "exclamation marks", "digits"}),
    "code style": frozenset(
        {
            *("comments", "docstrings", "type hints", "snake_case names", "camelCase names", "constants", "f-strings"),
            "trailing commas",
        }
    ),
    "length": frozenset(
        {
            *("length in characters", "number of words", "number of lines", "number of sentences"),
            *("number of different words", "length of words"),
        }
    ),
}
"""Features of each family, by their names in `measure_surface`. Keywords, the last family, are the batch's tokens."""
KEYWORDS = "keywords"
ROUNDS = 3
"""Features of a family that are used together."""
MOST_AT_TOP = 0.9
"""A column is ignored if more than this share of the rollouts earn its highest value, such as one for a format."""
TIE = 0.05
"""Of families whose shares differ by less, the first one is reported: `**` is a token, and bold text a structure."""
RESAMPLES = 500
FEWEST_WITHIN = 0.05
"""Share of a column's variance that must be within tasks."""


@dataclass(frozen=True, slots=True)
class SurfaceReturn:
    """How far a column rewards one family of surface features."""

    column: str
    family: str
    feature: str
    """The feature of the family that explains most."""
    share: float
    """Share of the column's variance that the family predicts on tasks it was not fitted to, beyond success and
    content."""
    low: float
    high: float
    """95% interval of the share."""
    gain: float
    """Difference in reward between the rollouts with the most and the least of the family."""
    amounts: "Floats"
    """Of the feature, by rollout."""


def surface_returns(
    rows: Sequence[RolloutRow], context: EnvironmentContext, *, fewest: float, fewest_tasks: float, least: float
) -> tuple[list[RolloutRow], list[SurfaceReturn]]:
    """Return the rollouts that were used, and the returns of weighted columns whose lower limit is at least `least`,
    by column, the one to report first.

    A column is explained first by success and by a rising function of the amount of content, then by up to 3 rising
    functions of a family's features, which are fitted to two thirds of the tasks and predict the others. With · for the
    difference from the mean of the rollout's task, v the column, r what success and content leave over, and f the
    family's prediction:

        share = Σ (ṙ² - (ṙ - ḟ)²) / Σ v̇²

    Only differences within a task count: they are what a policy is trained on, and hard tasks with long answers show no
    dependence. The interval resamples whole tasks (cluster bootstrap, Field and Welsh 2007).
    """
    import numpy as np

    read = _sample(rows)
    tasks, places = np.unique([row.task for row in read], return_inverse=True)
    texts = [row.replies[-1] for row in read]
    is_enough = len(read) >= fewest and len(tasks) >= fewest_tasks
    if not is_enough or float(np.median([len(text.split()) for text in texts])) < SHORTEST_TEXT:
        return read, []
    columns = {}
    for name in context.columns:
        values = np.array([row.columns.get(name, 0.0) for row in read]) * context.weights.get(name, 0.0)
        if name not in context.form_columns and _varies(values):
            columns[name] = values
    if not columns:
        return read, []

    def within_tasks(values: "Floats") -> "Floats":
        return values - (np.bincount(places, values) / np.bincount(places))[places]

    surface = measure_surface(texts)
    content = amounts_of_content(read)[:, None]
    folds = places % FOLDS
    samples = np.random.default_rng(0).multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), RESAMPLES)
    found = []
    for column, values in columns.items():
        left = values - _explained_by_success(values, read, context, column)
        left = left - predict_curves(fit_curves(content, left, rounds=1, only_rising=True), content)
        totals = np.bincount(places, within_tasks(values) ** 2)
        if totals.sum() < FEWEST_WITHIN * len(read) * np.var(values):
            continue
        for family, chosen in _families_of(surface.names).items():
            features = surface.values[:, chosen]
            curves = fit_curves(features, left, rounds=ROUNDS, only_rising=True)
            explained = _explained(within_tasks(left), within_tasks(predict_curves(curves, features)), places)
            # What is not explained where it was fitted is not explained elsewhere.
            if not curves or explained.sum() < least * totals.sum():
                continue
            outside = np.zeros(len(read))
            for fold in range(FOLDS):
                fitted = fit_curves(features[folds != fold], left[folds != fold], rounds=ROUNDS, only_rising=True)
                outside[folds == fold] = predict_curves(fitted, features[folds == fold])
            explained = _explained(within_tasks(left), within_tasks(outside), places)
            share = min(1.0, float(explained.sum() / totals.sum()))
            shares = np.clip(samples @ explained / np.maximum(samples @ totals, 1e-12), 0.0, 1.0)
            low, high = np.quantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
            if low < least:
                continue
            main = curves[0][0]
            found.append(
                SurfaceReturn(
                    column=column,
                    family=family,
                    feature=surface.names[chosen[main]],
                    share=share,
                    low=min(share, float(low)),
                    high=max(share, float(high)),
                    gain=float(np.ptp(predict_curves(curves, features))),
                    amounts=features[:, main],
                )
            )
    best = {each.column: each.share for each in sorted(found, key=lambda each: each.share)}
    return read, sorted(found, key=lambda each: (each.column, each.share < best[each.column] - TIE))


def _sample(rows: Sequence[RolloutRow]) -> list[RolloutRow]:
    """Return up to about `MOST_FITTED` rollouts that could be read, of tasks with several: these show the content."""
    by_task: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        if not row.is_canary and row.stop_reason not in BROKEN_OFF and any(row.replies):
            by_task[row.task].append(row)
    groups = [group for group in by_task.values() if len(group) >= 2]
    each = max(2, MOST_FITTED // max(1, len(groups)))
    return [row for group in groups[:: max(1, each * len(groups) // MOST_FITTED)] for row in group[:each]]


def _varies(values: "Floats") -> bool:
    """Whether a column has at least three values, none of which nearly all rollouts earn."""
    import numpy as np

    counts = np.unique(np.round(values, 3), return_counts=True)[1]
    most, top = counts.max() / len(values), counts[-1] / len(values)
    return len(counts) >= 3 and bool(most <= LARGEST_LEVEL and top <= MOST_AT_TOP)


def _families_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the places of each family's features. In programs, words are no keywords: their solutions share them."""
    are_programs = any(name.endswith("in the syntax tree") for name in names)
    families: dict[str, list[int]] = {family: [] for family in (*FAMILIES, KEYWORDS)}
    for place, name in enumerate(names):
        base = name.removeprefix("share of ")
        if base.startswith("“"):
            if not are_programs:
                families[KEYWORDS].append(place)
            continue
        for family, members in FAMILIES.items():
            if base in members and (base == name or family != "length"):
                families[family].append(place)
    return {family: places for family, places in families.items() if places}


def _explained_by_success(
    values: "Floats", rows: Sequence[RolloutRow], context: EnvironmentContext, column: str
) -> "Floats":
    """Return the mean value of the rollouts that succeed, and of the others."""
    import numpy as np

    if context.success is None or context.success.column in {column, REWARD}:  # the column itself, or a part of it
        return np.full(len(values), values.mean())
    passes = np.array([row.meets(context.success) for row in rows])
    sums, counts = np.bincount(passes, values, 2), np.bincount(passes, minlength=2)
    means: Floats = sums / np.maximum(counts, 1)
    explained: Floats = means[passes.astype(int)]
    return explained


def _explained(left: "Floats", predicted: "Floats", places: "NDArray[np.intp]") -> "Floats":
    """Return by how much a prediction lowers the sum of squares, by task."""
    import numpy as np

    return np.bincount(places, left**2 - (left - predicted) ** 2).astype(np.float64)
