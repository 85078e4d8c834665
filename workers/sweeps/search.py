"""The search of a sweep, rebuilt from its trials at each step: Optuna stores nothing."""

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler

from backend.domain.sweeps.space import Axis, Point, Value, grid_size
from backend.domain.sweeps.sweep import (
    FEWEST_FOR_IMPORTANCE,
    REDUCTION,
    SweepPruner,
    SweepSampler,
    SweepSettings,
    TrialState,
)

REDRAWS = 30
"""Draws after which a search without a new point ends."""
FEWEST_GOOD = 5
"""Trials that importance should count as good ones."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class HeldoutReward:
    """The result of a held-out evaluation during a trial."""

    step: int
    reward: float
    at: datetime


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial as far as it is known."""

    number: int
    values: Point
    state: TrialState
    reward: float | None
    """Its result. None: it has none."""
    rewards: Sequence[HeldoutReward] = ()
    """In the order of steps."""


class Search:
    """The samplers and pruners of Optuna over the trials of a sweep, all of them in the order of their numbers."""

    def __init__(self, settings: SweepSettings, trials: Sequence[TrialRecord], first_rung: int) -> None:
        """`first_rung`: step of the first held-out evaluation."""
        self._settings = settings
        self._trials = trials
        self._tried = [each.values for each in trials]
        self._distributions = {name: _distribution_of(axis) for name, axis in settings.space.items()}
        pruners: dict[SweepPruner, BasePruner] = {
            SweepPruner.NONE: NopPruner(),
            SweepPruner.MEDIAN: MedianPruner(n_startup_trials=settings.startup_trials),
            SweepPruner.HALVING: SuccessiveHalvingPruner(min_resource=max(1, first_rung), reduction_factor=REDUCTION),
        }
        self._study = optuna.create_study(direction="maximize", pruner=pruners[settings.pruner])
        self._by_number = {each.number: self._replay(each) for each in trials}
        self._is_behind: dict[int, bool] = {}
        """By number: whether its latest reward is not in the best third of its rung, which is decided only once."""
        events = [(point.at, each.number, point) for each in trials for point in each.rewards]
        for _, number, point in sorted(events, key=lambda event: (event[0], event[1])):
            trial = self._by_number[number]
            trial.report(point.reward, point.step)
            if settings.pruner is SweepPruner.HALVING:
                self._is_behind[number] = trial.should_prune()
        for each in trials:
            if each.state is not TrialState.RUNNING:
                self._tell(each)

    def _replay(self, record: TrialRecord) -> optuna.Trial:
        axes = self._settings.space
        self._study.enqueue_trial({name: _encoded(axes[name], value) for name, value in record.values.items()})
        return self._study.ask(self._distributions)

    def _tell(self, record: TrialRecord) -> None:
        trial = self._by_number[record.number]
        if record.state is TrialState.COMPLETED and record.reward is not None:
            self._study.tell(trial, record.reward)
        elif record.state in {TrialState.PRUNED, TrialState.STOPPED} and record.rewards:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)  # its last reward counts
        else:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def next_point(self) -> Point | None:
        """Return the values to try next, or None if every point was tried. They count as running from now on."""
        space, seed = self._settings.space, self._settings.seed
        number = len(self._tried)
        if self._settings.sampler is SweepSampler.GRID and number >= grid_size(space):
            return None
        for draw in range(REDRAWS):
            self._study.sampler = self._sampler(seed + number + 1000 * draw)
            trial = self._study.ask(self._distributions)
            point = {name: _decoded(axis, trial.params[name]) for name, axis in space.items()}
            if point not in self._tried:
                self._tried.append(point)
                return point
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return None

    def to_prune(self) -> dict[int, str]:
        """Return the running trials that are not worth continuing, by number, with the reason as a sentence."""
        finished = [each for each in self._trials if each.state is TrialState.COMPLETED]
        if len(finished) < self._settings.startup_trials:
            return {}
        found = {}
        for each in self._trials:
            if each.state is not TrialState.RUNNING or not each.rewards:
                continue
            is_halving = self._settings.pruner is SweepPruner.HALVING
            if not (self._is_behind[each.number] if is_halving else self._by_number[each.number].should_prune()):
                continue
            latest = each.rewards[-1]
            if is_halving:
                found[each.number] = (
                    f"Pruned after step {latest.step:,}: its held-out reward, {latest.reward:.3f}, is not among the"
                    " best third of the runs that reached this step."
                )
                continue
            best = max(point.reward for point in each.rewards)
            others = [point.reward for other in finished for point in other.rewards if point.step == latest.step]
            found[each.number] = (
                f"Pruned after step {latest.step:,}: its best held-out reward, {best:.3f}, is below the median of the"
                f" finished runs at this step, {statistics.median(others):.3f}."
            )
        return found

    def importance(self) -> dict[str, float] | None:
        """Return the share of each setting in reaching the best rewards, largest first (PED-ANOVA).

        None: too few trials are completed, or all rewards are equal.
        """
        rewards = [
            each.reward for each in self._trials if each.state is TrialState.COMPLETED and each.reward is not None
        ]
        if len(rewards) < FEWEST_FOR_IMPORTANCE or len(set(rewards)) == 1:
            return None
        quantile = max(0.1, min(0.5, FEWEST_GOOD / len(rewards)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ties may leave few trials on one side
            evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
            return get_param_importances(self._study, evaluator=evaluator)

    def _sampler(self, seed: int) -> BaseSampler:
        match self._settings.sampler:
            case SweepSampler.GRID:
                names = {
                    name: [_encoded(axis, each) for each in axis.grid()] for name, axis in self._settings.space.items()
                }
                return GridSampler(names, seed=self._settings.seed)
            case SweepSampler.RANDOM:
                return RandomSampler(seed=seed)
            case SweepSampler.TPE:
                startup = self._settings.startup_trials
                return TPESampler(seed=seed, n_startup_trials=startup, constant_liar=self._settings.parallel > 1)


def _distribution_of(axis: Axis) -> BaseDistribution:
    if axis.values is not None:
        return CategoricalDistribution(tuple(range(len(axis.values))))
    if axis.low is None or axis.high is None:
        raise ValueError("a range needs limits")
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _encoded(axis: Axis, value: Value) -> int | float:
    """The value as Optuna knows it: a listed one by its place, so that it may be anything."""
    if axis.values is not None:
        return axis.values.index(value)
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is in no range")
    return value


def _decoded(axis: Axis, sampled: int | float) -> Value:
    return axis.values[int(sampled)] if axis.values is not None else axis.rounded(sampled)
