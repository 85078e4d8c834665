"""What the figures that a worker measured mean for a training run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding, ok, problem, warning
from backend.domain.training.warm_up import HOPELESS

SATURATED = 0.95
"""Success above which a group hardly ever holds a failure."""
BUSIER = 1.5
"""So many times the slowest that was measured: storing, detectors and other processes of the machine come beside it."""
WASTED = 0.6
"""Share of groups without a gradient that is worth a warning."""


@dataclass(frozen=True, slots=True)
class TaskSuccess:
    """How often the policy succeeded at one task."""

    level: int
    successes: int
    attempts: int
    is_uniform: bool
    """All of its episodes earned the same reward."""


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds, from the fastest to the slowest that was measured."""

    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Range":
        return cls(min(seconds), max(seconds))

    def times(self, count: float) -> "Range":
        return Range(self.low * count, self.high * count)

    def plus(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.high + other.high)


NOTHING = Range(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds that were measured."""

    rollout: Range
    """A sampled episode among the others of its step."""
    examined: Range
    """An episode of an examination among the others."""
    scripted: float
    """A scripted episode."""
    sft_step: Range
    """Of the warm-up, with the trainer's work around it."""
    grpo_step: Range
    """All that follows the play of a GRPO step."""
    assumed: tuple[str, ...] = ()
    """What was not measured as it will be, each as a clause."""


SCRIPTED, UNTRAINED = "scripted conversations", "conversations of the policy before training"
"""Whose conversations are measured."""


def conversation_finding(lengths: Sequence[int], context: int, *, of: str = SCRIPTED) -> PreflightFinding:
    """What was played, in tokens, against what the model reads."""
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    sentence = (
        f"The longest of {len(lengths)} {of} has {longest:,} tokens (mean {mean:,.0f}); the model reads {context:,}."
    )
    evidence = {"longest": longest, "mean": mean, "context": context}
    if longest > context:
        return problem(
            "conversation", sentence, "Give the model a longer context (model.context) or another base.", **evidence
        )
    if longest > 0.8 * context:
        later = "Episodes of a policy that errs are longer" if of == SCRIPTED else "In training they may become longer"
        advice = f"{later}: those that do not fit end as cut."
        return warning("conversation", sentence, advice, **evidence)
    return ok("conversation", sentence, **evidence)


def success_finding(tasks: Sequence[TaskSuccess], configuration: TrainingConfiguration, rule: str) -> PreflightFinding:
    """What the policy reaches before training: nothing to be made likelier, or nothing left to learn?"""
    attempts = sum(task.attempts for task in tasks)
    if not attempts:
        return problem("base_success", "No episode of the policy could be played.", "Read the environment's log.")
    share = sum(task.successes for task in tasks) / attempts
    by_level = success_by_level(tasks)
    levels = "; " + ", ".join(f"level {level} {each:.0%}" for level, each in by_level.items())
    sentence = (
        f"Before training {share:.0%} of {attempts:,} episodes on {len(tasks)} tasks succeed ({rule})"
        f"{levels if len(by_level) > 1 else ''}."
    )
    evidence = {"share": share, "attempts": attempts, "levels": {str(level): each for level, each in by_level.items()}}
    if share < HOPELESS:
        return _hopeless(sentence, configuration, evidence)
    if share > SATURATED:
        return warning("base_success", sentence, f"There is little left to learn: {_harder(by_level)}.", **evidence)
    return ok("base_success", sentence, **evidence)


def _hopeless(sentence: str, configuration: TrainingConfiguration, evidence: dict[str, object]) -> PreflightFinding:
    if configuration.recipe.has_sft:
        advice = "The warm-up has to change this; the gate holds the run back if it does not (gate.minimum_success)."
        return ok("base_success", f"{sentence} {advice}", **evidence)
    advice = (
        "Reinforcement makes likelier what succeeds sometimes, and nothing does: warm up by SFT (recipe sft_then_grpo),"
        " or play an easier level (grpo.levels, or an adaptive curriculum)."
    )
    return problem("base_success", sentence, advice, **evidence)


def _harder(by_level: Mapping[int, float]) -> str:
    if len(by_level) < 2:
        return "choose a harder environment or version"
    hardest = min(by_level, key=lambda level: by_level[level])
    return (
        f"give harder levels more weight (grpo.levels; level {hardest} succeeds least), or choose a harder environment"
    )


def success_by_level(tasks: Sequence[TaskSuccess]) -> dict[int, float]:
    levels = sorted({task.level for task in tasks})
    return {level: _share([task for task in tasks if task.level == level]) for level in levels}


def _share(tasks: Sequence[TaskSuccess]) -> float:
    attempts = sum(task.attempts for task in tasks)
    return sum(task.successes for task in tasks) / attempts if attempts else 0.0


def no_gradient_share(tasks: Sequence[TaskSuccess], group_size: int) -> float:
    """Mean over tasks of p^G + (1-p)^G: the chance that a group of G holds only successes or only failures.

    p is each task's own share of successes.
    """
    played = [task for task in tasks if task.attempts]
    if not played:
        return math.nan
    shares = [task.successes / task.attempts for task in played]
    return math.fsum(p**group_size + (1 - p) ** group_size for p in shares) / len(shares)


def gradient_finding(tasks: Sequence[TaskSuccess], configuration: TrainingConfiguration) -> PreflightFinding:
    size = configuration.grpo.group_size
    expected = no_gradient_share(tasks, size)
    uniform = sum(task.is_uniform for task in tasks) / len(tasks) if tasks else math.nan
    sentence = (
        f"Of groups of {size}, about {expected:.0%} would hold only successes or only failures; in {uniform:.0%} of"
        " those played all rewards were equal, and such a group gives no gradient."
    )
    evidence = {"expected": expected, "uniform": uniform}
    if uniform <= WASTED:
        return ok("gradient", sentence, **evidence)
    if configuration.recipe.has_sft:
        return ok("gradient", f"{sentence} The warm-up changes this.", **evidence)
    advice = "Play other levels, larger groups, or replace such groups (grpo.replace_uniform)."
    return warning("gradient", sentence, advice, **evidence)


def time_finding(speed: Speed, configuration: TrainingConfiguration) -> PreflightFinding:
    """Measured seconds times what will be done. Nobody else is at work on the machine in the best case."""
    stages = stage_seconds(speed, configuration)
    total = NOTHING
    for each in stages.values():
        total = total.plus(each)
    high = total.high * BUSIER
    told = ", ".join(f"{name} {in_time_range(each)}" for name, each in stages.items() if each.high)
    sentence = (
        f"Between {in_time(total.low)} and {in_time(high)} of work on this worker: {told}; the most is {BUSIER:g} times"
        " the slowest that was measured. Starting up comes on top."
    )
    if speed.assumed:
        sentence += f" Assumed: {'; '.join(speed.assumed)}."
    seconds = {name: (each.low + each.high) / 2 for name, each in stages.items()}
    evidence = {"seconds": total.low, "at_most": high, **seconds, "assumed": list(speed.assumed)}
    limit = configuration.budget.minutes
    if limit is not None and limit * 60 < total.low:
        return warning("time", sentence, f"The budget ends it after {limit:g} minutes.", **evidence)
    return ok("time", sentence, **evidence)


def stage_seconds(speed: Speed, configuration: TrainingConfiguration) -> dict[str, Range]:
    sft, grpo, recipe = configuration.sft, configuration.grpo, configuration.recipe
    found: dict[str, Range] = {}
    examinations = 1
    if recipe.has_sft:
        examinations += 1 + (sft.steps // sft.examine_every if sft.examine_every else 0)
        lessons = sft.scripted_episodes * speed.scripted
        found |= {"lessons": Range(lessons, lessons), "imitation": speed.sft_step.times(sft.steps)}
    if recipe.has_grpo:
        examinations += math.ceil(grpo.steps / configuration.heldout.every)
        rollouts = grpo.steps * grpo.episodes_per_step
        most = Range(rollouts, rollouts * (1 + grpo.replace_uniform))
        found |= {
            "playing": Range(most.low * speed.rollout.low, most.high * speed.rollout.high),
            "learning": speed.grpo_step.times(grpo.steps),
        }
    return found | {"examinations": speed.examined.times(examinations * configuration.heldout.tasks)}


def in_time_range(seconds: Range) -> str:
    low, high = in_time(seconds.low), in_time(seconds.high)
    return low if low == high else f"{low} to {high}"


def in_time(seconds: float) -> str:
    """For a person: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
