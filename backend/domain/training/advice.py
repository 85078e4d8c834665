"""Which recipe suits a policy on an environment, from what a pre-flight measured. Pure decision rules.

The rules follow common practice. SFT first where the policy cannot be rewarded yet: the cold start of DeepSeek-R1
(arXiv 2501.12948, §2.3). GRPO where the episodes of a task differ: groups with equal rewards have no gradient (DAPO,
arXiv 2503.14476, §3.2). Levels that are sometimes solved: RLVE (arXiv 2511.07317). Rejection sampling where successes
are rare but exist: STaR (arXiv 2203.14465). Thresholds without a source are starting points.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from backend.domain.described import Described
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.grpo import CurriculumChoice
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.training.warm_up import HOPELESS, GateChoice

READABLE = GateChoice().minimum_format
"""Share of parsed replies from which rewards can teach: the default of the gate before GRPO."""
RARE = 0.1
"""Success rate below which a group of 8 has no success more often than not: 0.9⁸ = 0.43, 0.92⁸ = 0.51. Starting
point."""
MASTERED = 0.95
"""Success rate above which hardly any group has a failure; also the bar of the pre-flight's finding."""
ENOUGH_GRADIENT = 0.4
"""Share of groups with unequal rewards from which GRPO needs no help; the bar of the pre-flight's finding."""
SOME_GRADIENT = 0.1
"""Share of groups with unequal rewards below which nearly all sampling is wasted. Starting point."""
LEARNABLE = (RARE, CurriculumChoice().mastery)
"""Success rates of a level between which it teaches most: from a few successes to the mastery of the curriculum."""
GOOD_TEACHER = 0.5
"""Success rate from which a scripted policy is worth copying. Starting point; at least twice the policy's own, too."""
ENOUGH_EXAMPLES = 32
"""Stored successes from which SFT is proposed: one batch of the default size. Starting point."""


@dataclass(frozen=True, slots=True)
class StoredExamples:
    """Successful episodes on training tasks that an evaluation stored."""

    run_id: str
    run: str
    successes: int
    where: str
    """The filter that selects them."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Known facts about a policy on an environment before it is trained."""

    success: float
    attempts: int
    parsed: float | None = None
    """Mean share of parsed replies."""
    gradient: float | None = None
    """Share of sampled groups whose rewards differ."""
    levels: Mapping[int, float] = field(default_factory=dict)
    """Success rate by level, if there are several."""
    script: str = ""
    """The scripted policy that was played, or none."""
    script_success: float = 0.0
    stored: StoredExamples | None = None

    @property
    def has_script(self) -> bool:
        """A scripted policy plays well enough, and better than the policy."""
        return bool(self.script) and self.script_success >= max(GOOD_TEACHER, 2 * self.success)

    @property
    def has_stored(self) -> bool:
        return self.stored is not None and self.stored.successes >= ENOUGH_EXAMPLES

    def measured(self) -> list[str]:
        """The measurements, as short sentences."""
        told = [f"{self.success:.0%} of {self.attempts:,} episodes succeed before training"]
        if len(self.levels) > 1:
            told[0] += f" ({', '.join(f'level {level} {share:.0%}' for level, share in sorted(self.levels.items()))})"
        if self.parsed is not None:
            told.append(f"{self.parsed:.0%} of replies can be parsed")
        if self.gradient is not None:
            told.append(f"rewards differ in {self.gradient:.0%} of the sampled groups")
        if self.script:
            told.append(f"the scripted policy `{self.script}` succeeds in {self.script_success:.0%} of its episodes")
        else:
            told.append("the environment has no scripted policy")
        if self.stored:
            told.append(
                f"{self.stored.successes:,} successful episodes on training tasks are stored in {self.stored.run}"
            )
        return told


class Advice(Described, frozen=True):
    """The recipe that suits a run, with reasons."""

    title: str
    reasons: list[str]
    """Why, one sentence each."""
    measured: list[str]
    """The measurements that it follows from."""
    changes: dict[str, str] = Field(default_factory=dict)
    """Settings to change, by dotted name. Empty if the run already follows the advice, or if no setting helps."""
    is_followed: bool = False
    """The settings of the run already follow the advice."""


def starting_point(findings: Sequence[PreflightFinding], stored: StoredExamples | None = None) -> StartingPoint | None:
    """Read what a pre-flight measured, None if it did not get that far. Of a mix, the mean of its environments."""
    by_name: dict[str, list[Mapping[str, object]]] = {}
    for finding in findings:
        by_name.setdefault(finding.name.partition(":")[0], []).append(finding.evidence)
    played = by_name.get("base_success", [])
    success, attempts = _mean(played, "share"), sum(_number(each, "attempts") for each in played)
    if success is None or not attempts:
        return None
    uniform = _mean(played, "uniform")
    is_mixed = len(played) > 1
    levels = played[0].get("levels")
    scripts = by_name.get("script", [])
    return StartingPoint(
        success=success,
        attempts=round(attempts),
        parsed=_mean(played, "format"),
        gradient=None if uniform is None else 1 - uniform,
        levels={} if is_mixed or not isinstance(levels, Mapping) else {int(k): float(v) for k, v in levels.items()},
        script=str(scripts[0].get("script") or "") if scripts else "",
        script_success=_mean(scripts, "share") or 0.0,
        stored=stored,
    )


def advise(
    point: StartingPoint, configuration: TrainingConfiguration, recipes: Collection[str] = tuple(Recipe)
) -> Advice:
    """Choose a recipe of `recipes` for a policy, with the settings to change in this configuration."""
    title, reasons, wanted = _choose(point, configuration, recipes)
    flat = {name: _value(configuration, name) for name in wanted}
    changes = {name: text for name, text in wanted.items() if flat[name] != text}
    return Advice(
        title=title,
        reasons=reasons,
        measured=point.measured(),
        changes=changes,
        is_followed=bool(wanted) and not changes,
    )


def _choose(
    point: StartingPoint, configuration: TrainingConfiguration, recipes: Collection[str]
) -> tuple[str, list[str], dict[str, str]]:
    """Return the title, the reasons and the settings of the first rule that applies."""
    is_readable = point.parsed is None or point.parsed >= READABLE
    is_scratch = configuration.model.source == "scratch"
    gradient = math.nan if point.gradient is None else point.gradient
    examples = _examples(point)
    if point.success > MASTERED:
        return _harder(point)
    if not is_readable or is_scratch:
        reason = (
            "An untrained model cannot write replies."
            if is_scratch
            else f"Fewer than {READABLE:.0%} of replies can be parsed, so rewards would mostly teach the format."
        )
        if examples:
            return (
                "SFT, then GRPO",
                [reason, _source(point), "GRPO then improves on them."],
                {"recipe": Recipe.SFT_THEN_GRPO, **examples},
            )
        if is_scratch or point.success < HOPELESS:
            return _no_examples(reason, configuration, recipes)
    if point.success < HOPELESS:
        reason = f"Fewer than {HOPELESS:.0%} of episodes succeed, so hardly any group has a success to reinforce."
        if easier := _learnable(point):
            reason = f"{reason} On level {max(easier)}, {point.levels[max(easier)]:.0%} do."
            return (
                "An easier level first, with GRPO",
                [reason, "The curriculum climbs when a level is mastered."],
                {
                    "recipe": Recipe.GRPO,
                    "curriculum.kind": "adaptive",
                    "curriculum.start": str(max(easier)),
                    "grpo.levels": "",
                },
            )
        if examples:
            return (
                "SFT, then GRPO",
                [reason, _source(point), "GRPO then improves on them."],
                {"recipe": Recipe.SFT_THEN_GRPO, **examples},
            )
        if gradient >= ENOUGH_GRADIENT and is_readable:
            return (
                "GRPO on partial rewards",
                [
                    reason,
                    f"Rewards still differ in {gradient:.0%} of the groups, which GRPO can learn from.",
                ],
                {"recipe": Recipe.GRPO},
            )
        return _no_examples(reason, configuration, recipes)
    if point.success < RARE and examples:
        return (
            "SFT, then GRPO",
            [
                f"Only {point.success:.0%} of episodes succeed: most groups of 8 would have no success.",
                _source(point),
                "A short warm-up makes successes frequent enough to compare.",
            ],
            {"recipe": Recipe.SFT_THEN_GRPO, **examples},
        )
    if not gradient < ENOUGH_GRADIENT:
        return (
            "GRPO",
            [
                f"The policy succeeds in {point.success:.0%} of episodes: sometimes, and not always.",
                "Episodes of the same task earn different rewards, so every step has something to compare."
                if point.gradient is None
                else f"Rewards differ in {gradient:.0%} of the groups, which is what GRPO learns from.",
            ],
            {"recipe": Recipe.GRPO},
        )
    reason = f"Rewards are equal in {1 - gradient:.0%} of the groups, which then have no gradient."
    if easier := _learnable(point):
        shares = ["1" if level in easier else "0" for level in range(max(point.levels) + 1)]
        if len(easier) < len(point.levels):
            named = ", ".join(f"{level} ({point.levels[level]:.0%})" for level in easier)
            return (
                "GRPO on the levels that teach",
                [reason, f"Levels that succeed sometimes: {named}."],
                {"recipe": Recipe.GRPO, "curriculum.kind": "fixed", "grpo.levels": ",".join(shares)},
            )
    if gradient < SOME_GRADIENT and examples:
        return (
            "SFT",
            [reason, _source(point), "Copying it gains more than comparing episodes that are nearly equal."],
            {"recipe": Recipe.SFT, **examples},
        )
    if Recipe.REJECTION_SAMPLING in recipes:
        return (
            "Rejection sampling",
            [
                reason,
                f"It keeps the successes, {point.success:.0%} of the episodes, and learns from them by SFT, so tasks"
                " that always fail cost nothing but their samples.",
            ],
            {"recipe": Recipe.REJECTION_SAMPLING},
        )
    return (
        "GRPO with dynamic sampling",
        [reason, "Groups with equal rewards are replaced by groups of new tasks, which costs more sampling."],
        {"recipe": Recipe.GRPO, "grpo.replace_uniform": str(max(2, configuration.grpo.replace_uniform))},
    )


def _harder(point: StartingPoint) -> tuple[str, list[str], dict[str, str]]:
    reason = f"The policy already succeeds in more than {MASTERED:.0%} of episodes: hardly any group has a failure."
    if hard := [level for level, share in sorted(point.levels.items()) if share < LEARNABLE[1]]:
        shares = ["1" if level in hard else "0" for level in range(max(point.levels) + 1)]
        named = ", ".join(f"{level} ({point.levels[level]:.0%})" for level in hard)
        return (
            "GRPO on harder levels",
            [reason, f"Levels with failures: {named}."],
            {"recipe": Recipe.GRPO, "curriculum.kind": "fixed", "grpo.levels": ",".join(shares)},
        )
    return "A harder environment", [reason, "Choose a harder version or environment; no setting helps."], {}


def _no_examples(
    reason: str, configuration: TrainingConfiguration, recipes: Collection[str]
) -> tuple[str, list[str], dict[str, str]]:
    """Nothing succeeds and nothing can be copied: a teacher's probabilities teach anyway; otherwise no recipe does."""
    can_distill = Recipe.DISTILLATION in recipes and configuration.model.source != "scratch"
    if can_distill and configuration.distillation.problem() is None:
        taught = (
            f"The teacher, {configuration.distillation.described}, scores every token, so no episode has to succeed."
        )
        return "Distillation", [reason, taught], {"recipe": Recipe.DISTILLATION}
    steps = (
        "Evaluate a stronger model on training tasks, upload conversations, or add an easier level or a scripted policy"
        " to the environment. Then use SFT, then GRPO."
    )
    if can_distill:
        steps += " Or name a larger model of the same family as teacher (distillation.base) and use distillation."
    nothing = "There is nothing to copy: no scripted policy plays well, and no evaluation stored enough successes."
    return "Examples first", [reason, nothing, steps], {}


def _examples(point: StartingPoint) -> dict[str, str]:
    """The settings of SFT for the best examples that there are; empty if there are none."""
    if point.has_script:
        return {"sft.source": "script", "sft.script": point.script}
    if point.has_stored and point.stored is not None:
        return {"sft.source": "rollouts", "sft.runs": point.stored.run_id, "sft.where": point.stored.where}
    return {}


def _source(point: StartingPoint) -> str:
    if point.has_script:
        return f"The scripted policy `{point.script}` succeeds in {point.script_success:.0%} of its episodes: copy it."
    assert point.stored is not None
    return f"{point.stored.run} stored {point.stored.successes:,} successes on training tasks: copy them."


def _learnable(point: StartingPoint) -> list[int]:
    """The levels that succeed sometimes, if there are several."""
    low, high = LEARNABLE
    return (
        sorted(level for level, share in point.levels.items() if low <= share <= high) if len(point.levels) > 1 else []
    )


def _value(configuration: TrainingConfiguration, name: str) -> str:
    """A setting as the launch form writes it."""
    value: object = configuration
    for part in name.split("."):
        value = getattr(value, part)
    if isinstance(value, list):
        return ",".join(f"{each:g}" if isinstance(each, float) else str(each) for each in value)
    return "" if value is None else str(value)


def _number(evidence: Mapping[str, object], name: str) -> float:
    value = evidence.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _mean(rows: Sequence[Mapping[str, object]], name: str) -> float | None:
    values = [value for row in rows if not math.isnan(value := _number(row, name))]
    return math.fsum(values) / len(values) if values else None
