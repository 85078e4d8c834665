"""What other weights would make of a run, before anything is stored: means, groups, order, extremes.

numpy and scipy are imported where they are used: they take longer than the web's own start.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from backend.domain.statistics import TIE, Estimate, estimate_mean, paired_difference
from backend.rollouts.regrading.columns import Candidate, measured
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_ROLLOUTS = 100_000
"""Looked at by a preview; of a larger run the first ones."""
EXTREMES = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """Shares of the groups with several rollouts; good and bad part in the middle of the rewards seen."""

    groups: int
    mixed: float
    all_good: float
    all_bad: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """One rollout with its places in both orders, 1 for the best."""

    rollout_id: uuid.UUID
    before: float
    after: float
    place_before: int
    place_after: int


@dataclass(frozen=True, slots=True)
class Preview:
    """A run under its own weights and under others."""

    rollouts: int
    """Looked at."""
    is_part: bool
    """The run has more."""
    without_value: int
    """Of these a judge has no score: they would be failed rows, without a reward."""
    before: Estimate | None = None
    """The mean reward over tasks."""
    after: Estimate | None = None
    difference: Estimate | None = None
    spread_before: Spread | None = None
    spread_after: Spread | None = None
    rank_correlation: float | None = None
    """Kendall's tau-b of both orders of the rollouts: 1 is the same order, -1 the reverse."""
    turned_pairs: float | None = None
    """Share of the pairs inside of a group whose better member becomes the worse one."""
    best: list[Ranked] = field(default_factory=list)
    """By the new weights."""
    worst: list[Ranked] = field(default_factory=list)


def preview(
    session: Session, run: Run, chosen: Sequence[Candidate], conditions: Sequence[ColumnElement[bool]] = ()
) -> Preview:
    """`chosen` are the columns with their new weights."""
    import numpy as np

    statement = measured(run, chosen, conditions).order_by(Rollout.seq).limit(MAX_ROLLOUTS + 1)
    rows = session.execute(statement).all()
    is_part = len(rows) > MAX_ROLLOUTS
    rows = rows[:MAX_ROLLOUTS]
    table = np.array([row[4:] for row in rows], dtype=float).reshape(len(rows), 1 + len(chosen))
    has_value = ~np.isnan(table).any(axis=1)
    kept = np.flatnonzero(has_value).tolist()
    found = Preview(rollouts=len(rows), is_part=is_part, without_value=len(rows) - len(kept))
    if not len(kept):
        return found
    weights = np.array([candidate.weight for candidate in chosen])
    before, after = table[kept, 0], table[kept, 1:] @ weights
    after = np.where(np.abs(after - before) <= TIE * np.maximum(1.0, np.abs(before)), before, after)
    groups = _numbered([rows[index].group_id for index in kept])
    return _filled(found, [rows[index].id for index in kept], before, after, groups)


def _filled(found: Preview, ids: list[uuid.UUID], before: Floats, after: Floats, groups: Any) -> Preview:
    task_before, task_after = _by_group(before, groups), _by_group(after, groups)
    return Preview(
        rollouts=found.rollouts,
        is_part=found.is_part,
        without_value=found.without_value,
        before=estimate_mean(task_before),
        after=estimate_mean(task_after),
        difference=paired_difference(task_before.tolist(), task_after.tolist()),
        spread_before=_spread(before, groups),
        spread_after=_spread(after, groups),
        rank_correlation=_correlation(before, after),
        turned_pairs=_turned(before, after, groups),
        **_extremes(ids, before, after),
    )


def _numbered(groups: list[uuid.UUID]) -> Any:
    """Groups as numbers from 0 in the order in which they are met."""
    import numpy as np

    numbers: dict[uuid.UUID, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups])


def _by_group(values: Floats, groups: Any) -> Floats:
    import numpy as np

    means: Floats = np.bincount(groups, values) / np.bincount(groups)
    return means


def _spread(rewards: Floats, groups: Any) -> Spread | None:
    import numpy as np

    count = int(groups.max()) + 1
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, groups, rewards)
    np.maximum.at(high, groups, rewards)
    several = np.bincount(groups) > 1
    if not several.any():
        return None
    low, high = low[several], high[several]
    mixed = high - low > TIE
    is_good = high >= (rewards.min() + rewards.max()) / 2
    return Spread(
        groups=len(low),
        mixed=float(mixed.mean()),
        all_good=float((~mixed & is_good).mean()),
        all_bad=float((~mixed & ~is_good).mean()),
    )


def _correlation(before: Floats, after: Floats) -> float | None:
    import numpy as np
    from scipy import stats

    if np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    return float(stats.kendalltau(before, after).statistic)


def _turned(before: Floats, after: Floats, groups: Any) -> float | None:
    """All pairs of a group at once: each member beside the one that stands 1, 2, … places further."""
    import numpy as np

    order = np.argsort(groups, kind="stable")
    before, after, groups = before[order], after[order], groups[order]
    apart = turned = 0
    for distance in range(1, int(np.bincount(groups).max())):
        together = groups[distance:] == groups[:-distance]
        one, other = (
            (before[distance:] - before[:-distance])[together],
            (after[distance:] - after[:-distance])[together],
        )
        differ = np.abs(one) > TIE
        apart += int(differ.sum())
        turned += int((differ & (np.abs(other) > TIE) & (one * other < 0)).sum())
    return turned / apart if apart else None


def _extremes(ids: list[uuid.UUID], before: Floats, after: Floats) -> dict[str, list[Ranked]]:
    import numpy as np
    from scipy import stats

    place_before = stats.rankdata(-before, method="min").astype(int)
    place_after = stats.rankdata(-after, method="min").astype(int)
    order = np.argsort(-after, kind="stable")

    def ranked(index: int) -> Ranked:
        places = int(place_before[index]), int(place_after[index])
        return Ranked(ids[index], float(before[index]), float(after[index]), *places)

    best = [ranked(index) for index in order[:EXTREMES]]
    return {"best": best, "worst": [ranked(index) for index in order[::-1][:EXTREMES]]}
