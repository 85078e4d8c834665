"""Ratings of policies from the games that they played against each other."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from backend.domain.described import described
from backend.domain.statistics import Estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table = NDArray[np.float64]

Games = tuple[tuple[int, ...], ...]
"""Number of games of each policy against each other one."""

MEAN_RATING = 1000.0
MIN_GAMES = 10
"""Games that a rating needs."""
RESAMPLES = 300
POINTS = 400.0
"""A policy that is this much better scores 10 to 1."""


@dataclass(frozen=True, slots=True)
@described
class Rating:
    """A rating, or the reason why there is none."""

    elo: Estimate | None
    """`count` is the number of games."""
    reason: str = ""


@lru_cache(maxsize=128)
def rate(won: Games, drawn: Games) -> list[Rating]:
    """Return the Elo rating of each policy with its 95% interval.

    `won[i][j]`: games that policy i won against j. `drawn` is symmetric. Callers do not change the result.

    The ratings maximize the likelihood of the model of Bradley and Terry (Biometrika 39, 1952), in which i beats j with
    the probability 1 / (1 + 10^((R_j - R_i) / 400)) and a draw is half a win for both. One draw is added to each pair
    that met: without it, a policy that won every game would have an infinite rating. The mean of the rated policies is
    1,000. Intervals are percentiles of the Bayesian bootstrap over games (Rubin, Annals of Statistics 9, 1981), which
    gives each game an exponential weight, with a fixed seed.

    Only policies that are connected by games have a common scale: the largest such group is rated.
    """
    import numpy as np

    wins, draws = np.array(won, dtype=float), np.array(drawn, dtype=float)
    if not wins.size:
        return []
    played = wins + wins.T + draws
    games = played.sum(axis=1).astype(int)
    group = _largest_group(played > 0)
    rated = [number for number in group if games[number] >= MIN_GAMES]
    results = [
        Rating(None, "no games against the rated policies")
        if number not in group
        else Rating(None, f"too few games: {games[number]} of {MIN_GAMES}")
        for number in range(len(games))
    ]
    if len(rated) < 2:
        return results
    places = [group.index(number) for number in rated]
    wins, draws = wins[np.ix_(group, group)], draws[np.ix_(group, group)]
    added = (wins + wins.T + draws > 0).astype(float)
    # a sum of n exponential weights has a gamma distribution of shape n
    random, upper = np.random.default_rng(0), np.triu(np.ones_like(wins), 1)
    shape = (RESAMPLES, *wins.shape)
    resampled_draws = random.gamma((draws + added) * upper, size=shape)
    resampled_draws += resampled_draws.transpose(0, 2, 1)
    points = np.concatenate([[wins + (draws + added) / 2], random.gamma(wins, size=shape) + resampled_draws / 2])
    ratings = _fit(points)[:, places]
    ratings += MEAN_RATING - ratings.mean(axis=1, keepdims=True)
    low, high = np.percentile(ratings[1:], [2.5, 97.5], axis=0)
    for place, number in enumerate(rated):
        mean = float(ratings[0, place])
        ends = min(mean, float(low[place])), max(mean, float(high[place]))
        results[number] = Rating(Estimate(mean, *ends, int(games[number])))
    return results


def _fit(points: "Table") -> "Table":
    """Return the ratings that explain each table of points best, in units of Elo. `points[b, i, j]`: of i against j.

    All tables are fitted at once: their likelihoods are independent, so their sum has its maximum where each has.
    """
    import numpy as np
    from scipy.optimize import minimize
    from scipy.special import expit, log_expit

    tables, policies, _ = points.shape
    played = points + points.transpose(0, 2, 1)
    scale = played.sum()

    def loss(flat: "Table") -> "tuple[float, Table]":
        ratings = flat.reshape(tables, policies)
        differences = ratings[:, :, None] - ratings[:, None, :]
        value = -(points * log_expit(differences)).sum()
        slope = -(points - played * expit(differences)).sum(axis=2)
        return value / scale, slope.ravel() / scale

    found = minimize(
        loss,
        np.zeros(tables * policies),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "maxcor": 20, "ftol": 0.0, "gtol": 1e-9},
    )
    ratings: Table = found.x.reshape(tables, policies) * POINTS / np.log(10)
    return ratings


def _largest_group(met: "NDArray[np.bool_]") -> list[int]:
    """Return the largest set of policies that games connect, in order."""
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    _, groups = connected_components(met, directed=False)
    members: list[int] = np.flatnonzero(groups == np.bincount(groups).argmax()).tolist()
    return members
