"""Findings from what a worker measured: conversation lengths, success before training, groups, duration."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding, ok, problem, warning
from backend.domain.training.warm_up import HOPELESS

BUSIER = 1.5
"""Factor on the slowest measurement: storage, detectors and other processes share the machine."""
MOST_FULL = 0.5
"""Share of episodes that fill the context, above which training would mostly see episodes without an end."""
SCRIPTED, UNTRAINED = "scripted conversations", "conversations of the policy before training"
"""Policies whose conversations are measured."""


@dataclass(frozen=True, slots=True)
class TaskSuccess:
    level: int
    successes: int
    attempts: int
    is_uniform: bool
    """All episodes earned the same reward."""


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds, from the fastest to the slowest measurement."""

    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Range":
        return cls(min(seconds), max(seconds))

    def times(self, count: float) -> "Range":
        return Range(self.low * count, self.high * count)


NOTHING = Range(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured seconds."""

    rollout: Range
    """One training episode, sampled in parallel with those of its step."""
    heldout: Range
    """One held-out episode, sampled in parallel with others."""
    scripted: float
    """One scripted episode."""
    sft_step: Range
    """One SFT step, with the overhead of the trainer."""
    grpo_step: Range
    """One GRPO step after its episodes are sampled."""
    assumed: tuple[str, ...] = ()
    """Values that were not measured under real conditions, each as a clause."""


def conversation_finding(
    lengths: Sequence[int], context: int, *, of: str = SCRIPTED, full: int = 0
) -> PreflightFinding:
    """Compare the lengths of conversations, in tokens, with the context length of the model. `full`: number of
    episodes that ended because the conversation had filled it."""
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    sentence = (
        f"The longest of {len(lengths)} {of} has {longest:,} tokens (mean {mean:,.0f}); the context length is"
        f" {context:,}."
    )
    evidence = {"longest": longest, "mean": mean, "context": context, "context_full": full}
    if full:
        sentence = f"{sentence} {full:,} of them filled it, which ended the episode (stop reason context_full)."
        advice = (
            "Such an episode keeps the reward it has so far. Use a model with a longer context (model.context), fewer"
            " or shorter turns, or a context of the last turns (agent.context in the manifest)."
        )
        share = full / len(lengths)
        return (problem if share > MOST_FULL else warning)("conversation", sentence, advice, **evidence)
    if longest > context:
        advice = "Use a longer context (model.context) or another base model."
        return problem("conversation", sentence, advice, **evidence)
    if longest > 0.8 * context:
        later = "Episodes with errors are longer" if of == SCRIPTED else "They may get longer in training"
        advice = f"{later}. An episode that fills the context ends there."
        return warning("conversation", sentence, advice, **evidence)
    return ok("conversation", sentence, **evidence)


def success_finding(
    tasks: Sequence[TaskSuccess], configuration: TrainingConfiguration, rule: str, *, parsed: float | None = None
) -> PreflightFinding:
    """Whether the policy already succeeds sometimes, and not always, so that GRPO can learn. `parsed`: mean share of
    replies that could be parsed."""
    attempts = sum(task.attempts for task in tasks)
    if not attempts:
        return problem("base_success", "The policy could not play any episode.", "Read the log of the environment.")
    share = sum(task.successes for task in tasks) / attempts
    played: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for task in tasks:
        played[task.level][0] += task.successes
        played[task.level][1] += task.attempts
    by_level = {level: wins / total if total else 0.0 for level, (wins, total) in sorted(played.items())}
    levels = "; " + ", ".join(f"level {level} {each:.0%}" for level, each in by_level.items())
    sentence = (
        f"Before training, {share:.0%} of {attempts:,} episodes on {len(tasks)} tasks succeed ({rule})"
        f"{levels if len(by_level) > 1 else ''}."
    )
    evidence = {
        "share": share,
        "attempts": attempts,
        "levels": {str(level): each for level, each in by_level.items()},
        "format": parsed,
        "uniform": sum(task.is_uniform for task in tasks) / len(tasks),
    }
    if share < HOPELESS and configuration.recipe.has_sft:
        advice = "The warm-up must change this. The gate stops the run if it does not (gate.minimum_success)."
        return ok("base_success", f"{sentence} {advice}", **evidence)
    if share < HOPELESS:
        advice = (
            "Training reinforces episodes that sometimes succeed, and none do. Start with SFT (recipe sft_then_grpo),"
            " or with an easier level (grpo.levels, or an adaptive curriculum)."
        )
        return problem("base_success", sentence, advice, **evidence)
    if share > 0.95:  # hardly any group has a failure
        harder = "Choose a harder environment or version."
        if len(by_level) > 1:
            hardest = min(by_level, key=lambda level: by_level[level])
            harder = (
                f"Give harder levels more weight (grpo.levels; level {hardest} has the lowest success rate), or choose"
                " a harder environment."
            )
        return warning("base_success", sentence, f"There is little left to learn. {harder}", **evidence)
    return ok("base_success", sentence, **evidence)


def no_gradient_share(tasks: Sequence[TaskSuccess], group_size: int) -> float:
    """Mean over tasks of p^G + (1-p)^G: the probability that a group of G has only successes or only failures.

    p is the success rate of each task. NaN without attempts.
    """
    shares = [task.successes / task.attempts for task in tasks if task.attempts]
    if not shares:
        return math.nan
    return math.fsum(p**group_size + (1 - p) ** group_size for p in shares) / len(shares)


def gradient_finding(tasks: Sequence[TaskSuccess], configuration: TrainingConfiguration) -> PreflightFinding:
    """The share of groups whose rewards are all equal, which have no gradient."""
    size = configuration.grpo.group_size
    expected = no_gradient_share(tasks, size)
    uniform = sum(task.is_uniform for task in tasks) / len(tasks) if tasks else math.nan
    sentence = (
        f"About {expected:.0%} of groups of {size} would have only successes or only failures. In {uniform:.0%} of the"
        " sampled groups all rewards were equal. Such groups have no gradient."
    )
    evidence = {"expected": expected, "uniform": uniform}
    if uniform <= 0.6:
        return ok("gradient", sentence, **evidence)
    if configuration.recipe.has_sft:
        return ok("gradient", f"{sentence} The warm-up changes this.", **evidence)
    advice = "Use other levels or larger groups, or replace such groups (grpo.replace_uniform)."
    return warning("gradient", sentence, advice, **evidence)


def time_finding(speed: Speed, configuration: TrainingConfiguration) -> PreflightFinding:
    """The estimated duration: measured seconds times the planned work."""
    stages = stage_seconds(speed, configuration)
    low, high = sum(each.low for each in stages.values()), BUSIER * sum(each.high for each in stages.values())
    parts = []
    for name, each in stages.items():
        fastest, slowest = in_time(each.low), in_time(each.high)
        if each.high:
            parts.append(f"{name} {fastest}" + ("" if fastest == slowest else f" to {slowest}"))
    sentence = (
        f"The run takes {in_time(low)} to {in_time(high)} on this worker, plus startup: {', '.join(parts)}. The maximum"
        f" is {BUSIER:g} times the slowest measurement."
    )
    if speed.assumed:
        sentence += f" Assumed: {'; '.join(speed.assumed)}."
    seconds = {name: (each.low + each.high) / 2 for name, each in stages.items()}
    evidence = {"seconds": low, "at_most": high, **seconds, "assumed": list(speed.assumed)}
    limit = configuration.budget.minutes
    if limit is not None and limit * 60 < low:
        return warning("time", sentence, f"The budget ends the run after {limit:g} minutes.", **evidence)
    return ok("time", sentence, **evidence)


def stage_seconds(speed: Speed, configuration: TrainingConfiguration) -> dict[str, Range]:
    sft, grpo, recipe = configuration.sft, configuration.grpo, configuration.recipe
    seconds: dict[str, Range] = {}
    evaluations = 1
    if recipe.has_sft:
        evaluations += 1 + (sft.steps // sft.examine_every if sft.examine_every else 0)
        scripted = sft.scripted_episodes * speed.scripted
        seconds |= {"scripted episodes": Range(scripted, scripted), "SFT": speed.sft_step.times(sft.steps)}
    if recipe.has_grpo:
        evaluations += math.ceil(grpo.steps / configuration.heldout.every)
        rollouts = grpo.steps * grpo.episodes_per_step
        most = rollouts * (1 + grpo.replace_uniform)
        sampling = Range(rollouts * speed.rollout.low, most * speed.rollout.high)
        updates = speed.grpo_step.times(grpo.steps)
        if configuration.samples_ahead:  # at best, the longer one hides the other
            both = Range(max(sampling.low, updates.low), sampling.high + updates.high)
            seconds |= {"sampling and GRPO updates": both}
        else:
            seconds |= {"sampling": sampling, "GRPO updates": updates}
    if recipe is Recipe.REJECTION_SAMPLING:
        rejection = configuration.rejection
        evaluations += rejection.rounds
        seconds |= {
            "sampling": speed.rollout.times(rejection.episodes),
            "SFT": speed.sft_step.times(rejection.rounds * rejection.most_steps),
        }
    return seconds | {"held-out evaluations": speed.heldout.times(evaluations * configuration.heldout.tasks)}


def in_time(seconds: float) -> str:
    """Seconds as text: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
