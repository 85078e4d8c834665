"""Measure how often the 95% intervals of rates that verdicts correct contain the truth.

Peer: none. Lang and Reiczigel's (2014) limits of a Rogan-Gladen estimate are shown for comparison.
Units: percent of simulated runs whose interval contains the truth; width of the interval in points.
Repeats: 1. All random numbers have fixed seeds.

Cells are prevalence × sensitivity and specificity × numbers of verdicts. `equal chances`: a run of 2,000 rollouts where
reviewers judge a simple random sample of the flagged and of the unflagged ones. `unequal chances`: the amounts
are rewards, and a rollout's chance is proportional to a guess of its contribution to the variance (`by reward`) or
unrelated to it (`at random`). `Rogan-Gladen`: sensitivity and specificity are measured on other rollouts.

The lowest of many simulated coverages is low by chance alone. So the eight cells that come out lowest are simulated
again, with other random numbers and more runs, then the lowest two of these once more; the worst cell is the lower of
the two.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from backend.domain.review.calibration import Corrected, ReviewedShare, Stratum, predict, rogan_gladen, weigh
from benchmarks.harness import Measure, Options

REPEATS = 1
LIMIT_SECONDS = 2 * 3600
RUNS = 200
"""Simulated runs per cell."""
SUSPECTS = ((8, 2000), (2, 10_000))
"""Numbers of cells that are simulated again, and runs of each."""
ROLLOUTS = 2000
PREVALENCES = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8)
QUALITIES = ((0.6, 0.9), (0.8, 0.8), (0.9, 0.95), (0.95, 0.99), (0.99, 0.99))
"""Sensitivity and specificity."""
VERDICTS = ((10, 20), (20, 20), (30, 60), (100, 100))
"""Of flagged and of unflagged rollouts; for Rogan-Gladen, on hacks and on honest rollouts."""

PEER = "Rogan-Gladen, Lang and Reiczigel"

Outcome = tuple[Corrected, float]
"""A corrected rate and the true one."""
Cell = tuple[float, float, float, int, int]
"""Prevalence, sensitivity, specificity, and numbers of verdicts."""
Design = Callable[[np.random.Generator, float, float, float, int, int], Outcome]


def measure(options: Options) -> Iterator[Measure]:
    runs = options.size(RUNS, 40)
    cells = [(p, *quality, *verdicts) for p, quality, verdicts in itertools.product(PREVALENCES, QUALITIES, VERDICTS)]
    everything: list[float] = []
    worst_of_all = []
    designs: dict[str, Design] = {
        "equal chances": equal_chances,
        "unequal chances, by reward": partial(unequal_chances, by_reward=True),
        "unequal chances, at random": partial(unequal_chances, by_reward=False),
        "Rogan-Gladen": measured_elsewhere,
        PEER: lang_reiczigel,
    }
    for number, (name, design) in enumerate(designs.items()):
        dice = np.random.default_rng(number)
        simulated = [simulate(design, dice, cell, runs) for cell in cells]
        suspects = [(held, cell) for (held, _), cell in zip(simulated, cells, strict=True)]
        for number_of_cells, again in SUSPECTS:
            again = options.size(again, 100)
            suspects = [
                (simulate(design, dice, cell, again)[0], cell) for _, cell in sorted(suspects)[:number_of_cells]
            ]
        worst, cell = min(suspects)
        where = "prevalence {:g}, sensitivity {:g}, specificity {:g}, {} and {} verdicts".format(*cell)
        coverage, widths = zip(*simulated, strict=True)
        pooled = f"{len(cells)} cells × {runs} runs"
        yield Measure(f"{name}: pooled coverage", "%", [float(np.mean(coverage))], note=pooled)
        yield Measure(f"{name}: worst cell", "%", [worst], note=f"{where}; {again} runs")
        yield Measure(f"{name}: mean width", "points", [float(np.mean(widths))])
        if name != PEER:
            everything += coverage
            worst_of_all.append(worst)
    yield Measure("all corrected intervals: pooled coverage", "%", [float(np.mean(everything))], note="target 95 ± 1")
    yield Measure("all corrected intervals: worst cell", "%", [min(worst_of_all)], note="target at least 94")


def simulate(design: Design, dice: np.random.Generator, cell: Cell, runs: int) -> tuple[float, float]:
    """Return the share of intervals that contain the truth, in percent, and their mean width in points."""
    outcomes = [design(dice, *cell) for _ in range(runs)]
    assert all(0 <= rate.low <= rate.value <= rate.high <= 1 for rate, _ in outcomes)
    held = [rate.low - 1e-9 <= truth <= rate.high + 1e-9 for rate, truth in outcomes]
    return 100 * float(np.mean(held)), 100 * float(np.mean([rate.high - rate.low for rate, _ in outcomes]))


def equal_chances(
    dice: np.random.Generator, prevalence: float, sensitivity: float, specificity: float, flagged: int, unflagged: int
) -> Outcome:
    hacks = dice.random(ROLLOUTS) < prevalence
    flags = np.where(hacks, dice.random(ROLLOUTS) < sensitivity, dice.random(ROLLOUTS) >= specificity)
    strata, known = [], 0.0
    for is_flagged, most in ((True, flagged), (False, unflagged)):
        members = np.flatnonzero(flags == is_flagged)
        reviewed = hacks[dice.permutation(members)[:most]]
        known += float(reviewed.sum())
        rest = len(members) - len(reviewed)
        strata.append(Stratum(weigh((bool(hack), 1.0) for hack in reviewed), rest, rest))
    return predict(strata, known).scaled(ROLLOUTS), float(hacks.mean())


def unequal_chances(
    dice: np.random.Generator,
    prevalence: float,
    sensitivity: float,
    specificity: float,
    flagged: int,
    unflagged: int,
    *,
    by_reward: bool,
) -> Outcome:
    """The share of all reward that hacks earn. The sample is a Poisson sample, so its size varies."""
    hacks = dice.random(ROLLOUTS) < prevalence
    flags = np.where(hacks, dice.random(ROLLOUTS) < sensitivity, dice.random(ROLLOUTS) >= specificity)
    rewards = dice.choice([0.2, 0.5, 1.0], ROLLOUTS, p=[0.2, 0.2, 0.6])
    sizes = 0.5 + rewards if by_reward else dice.choice([0.5, 1.0, 2.0], ROLLOUTS)
    strata, known = [], 0.0
    for is_flagged, expected in ((True, flagged), (False, unflagged)):
        inside = flags == is_flagged
        chances = np.minimum(1.0, expected * sizes / max(1e-9, float(sizes[inside].sum())))
        sampled = inside & (dice.random(ROLLOUTS) < chances)
        known += float(rewards[sampled & hacks].sum())
        rest = rewards[inside & ~sampled]
        evidence = weigh(zip(hacks[sampled].tolist(), (rewards / chances)[sampled].tolist(), strict=True))
        strata.append(Stratum(evidence, float(rest.sum()), _effective(rest)))
    total = float(rewards.sum())
    return predict(strata, known).scaled(total), float(rewards[hacks].sum()) / total


def measured_elsewhere(
    dice: np.random.Generator, prevalence: float, sensitivity: float, specificity: float, hacks: int, honest: int
) -> Outcome:
    positive, true, false = _counts(dice, prevalence, sensitivity, specificity, hacks, honest)
    found = rogan_gladen(positive, ROLLOUTS, ReviewedShare(true / hacks, hacks), ReviewedShare(false / honest, honest))
    return found or Corrected(0.5, 0.0, 1.0), prevalence


def lang_reiczigel(
    dice: np.random.Generator, prevalence: float, sensitivity: float, specificity: float, hacks: int, honest: int
) -> Outcome:
    """Adjusted limits with Agresti-Coull and plus-one shares (Lang and Reiczigel 2014, equations of section 2)."""
    positive, true, false = _counts(dice, prevalence, sensitivity, specificity, hacks, honest)
    z = 1.959964
    count = ROLLOUTS + z * z
    apparent, se, sp = (positive + z * z / 2) / count, (true + 1) / (hacks + 2), (false + 1) / (honest + 2)
    youden = se + sp - 1
    if youden <= 0:
        return Corrected(0.5, 0.0, 1.0), prevalence
    rate = min(1.0, max(0.0, (apparent + sp - 1) / youden))
    shift = 2 * z * z * (rate * se * (1 - se) / hacks - (1 - rate) * sp * (1 - sp) / honest)
    variance = (
        apparent * (1 - apparent) / count + rate**2 * se * (1 - se) / hacks + (1 - rate) ** 2 * sp * (1 - sp) / honest
    )
    reach = z * math.sqrt(variance) / youden
    low, high = (min(1.0, max(0.0, rate + shift + side * reach)) for side in (-1, 1))
    return Corrected(min(max(rate, low), high), low, high), prevalence


def _counts(
    dice: np.random.Generator, prevalence: float, sensitivity: float, specificity: float, hacks: int, honest: int
) -> tuple[int, int, int]:
    """Positives of the run, true positives and true negatives elsewhere."""
    apparent = prevalence * sensitivity + (1 - prevalence) * (1 - specificity)
    counts = ((ROLLOUTS, apparent), (hacks, sensitivity), (honest, specificity))
    positive, true, false = (int(dice.binomial(count, share)) for count, share in counts)
    return positive, true, false


def _effective(amounts: np.ndarray) -> float:
    squares = float((amounts**2).sum())
    return float(amounts.sum()) ** 2 / squares if squares else 0.0
