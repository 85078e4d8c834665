"""May runs be compared, and what is missing: reasons in words, each with what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, RunKind
from backend.results.scores import Scores, Side, TaskKey
from backend.runs.tables import Run

DERIVED = frozenset({RunKind.RESCORE, RunKind.REPLAY})
"""Kinds of run that lay another version's rewards over the play of an older one."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that stands between runs."""

    text: str
    is_blocking: bool = False
    """There is nothing to compare then."""
    href: str = ""
    """Where it can be mended."""
    action: str = ""


def obstacles(sides: Sequence[Side]) -> list[Remark]:
    """Why these cannot be compared, from what the runs are; none when they can."""
    if len({side.reference for side in sides}) < len(sides):
        return [Remark("This is the same run twice. Choose another one.", is_blocking=True)]
    first = sides[0]
    for other in sides[1:]:
        one, two = first.run.version, other.run.version
        if one.environment_id != two.environment_id:
            names = f"{one.environment.name} and {two.environment.name}"
            return [Remark(f"These runs played different environments: {names}.", is_blocking=True)]
        if one.id != two.id and not DERIVED & {first.run.kind, other.run.kind}:
            return [_other_version(first, other)]
    return []


def _other_version(first: Side, other: Side) -> Remark:
    one, two = first.run.version, other.run.version
    newer, older = (first, other) if one.number > two.number else (other, first)
    return Remark(
        f"These runs played different versions of {one.environment.name}, v{one.number} and v{two.number}: their "
        "tasks and rewards need not be the same. Evaluate both policies on one version.",
        is_blocking=True,
        href=_like(newer.run, older.run),
        action=f"Evaluate {older.label} on v{newer.run.version.number}",
    )


def _like(plan_of: Run, policy_of: Run) -> str:
    """The form for the policy of one run with the plan of another."""
    choice = {"again": plan_of.id, "policy_id": policy_of.policy_id, "checkpoint_id": policy_of.checkpoint_id}
    return "/evaluations/new?" + urlencode({name: value for name, value in choice.items() if value})


def remarks(found: Sequence[Scores], shared: Sequence[TaskKey]) -> list[Remark]:
    """What one should know before believing a comparison."""
    sides = [each.side for each in found]
    return [*_states(sides), *_weights(sides), *_versions(sides), *_missing(found, shared), *_conditions(sides)]


def _states(sides: Sequence[Side]) -> list[Remark]:
    unfinished = [side for side in sides if not side.run.status.is_over]
    return [Remark(f"{side.label} is still {side.run.status}: its figures change.") for side in unfinished]


def has_same_reward(one: Run, other: Run) -> bool:
    """Is the reward of both the same weighted sum?"""
    return _weights_of(one) == _weights_of(other)


def _weights_of(run: Run) -> dict[str, float]:
    return dict(zip(run.columns, run.weights, strict=False))


def _weights(sides: Sequence[Side]) -> list[Remark]:
    first = sides[0].run
    weights = _weights_of(first)
    for side in sides[1:]:
        others = _weights_of(side.run)
        if weights != others:
            named = sorted(name for name in weights.keys() | others.keys() if weights.get(name) != others.get(name))
            return [
                Remark(
                    f"The reward is not the same sum in {sides[0].label} and {side.label} ({', '.join(named)} weighted "
                    "differently): look at the columns, not at the reward."
                )
            ]
    return []


def _versions(sides: Sequence[Side]) -> list[Remark]:
    numbers = sorted({side.run.version.number for side in sides})
    if len(numbers) < 2:
        return []
    told = " and ".join(f"v{number}" for number in numbers)
    return [Remark(f"Stored play of one version under the rewards of another: {told}. Tasks are paired by their seed.")]


def _missing(found: Sequence[Scores], shared: Sequence[TaskKey]) -> list[Remark]:
    """Which runs keep tasks out of the comparison."""
    everything = set().union(*(each.tasks for each in found))
    if len(everything) == len(shared):
        return []
    told = [
        Remark(
            f"Only tasks that both sides completed are compared: {len(shared):,} of {len(everything):,}."
            if len(found) == 2
            else f"Only tasks that every run completed are compared: {len(shared):,} of {len(everything):,}."
        )
    ]
    for each in found:
        lacking = len(everything) - len(each.tasks)
        if lacking:
            told.append(_lacks(each, lacking, everything))
    return told


def _lacks(each: Scores, lacking: int, everything: set[TaskKey]) -> Remark:
    run, label = each.side.run, each.side.label
    if run.can_resume:
        return Remark(f"{label} lacks {lacking:,} tasks: rollouts failed.", href=f"/runs/{run.id}", action="Resume it")
    if run.kind is not RunKind.EVALUATION or (run.policy and run.policy.kind is PolicyKind.EXTERNAL):
        return Remark(f"{label} lacks {lacking:,} tasks.")
    indexes = [key.number for key in everything]
    choice = {"again": run.id, "first_task": min(indexes), "tasks": max(indexes) - min(indexes) + 1}
    return Remark(
        f"{label} lacks {lacking:,} tasks.",
        href=f"/evaluations/new?{urlencode(choice)}",
        action=f"Evaluate it on {lacking:,} more",
    )


def _conditions(sides: Sequence[Side]) -> list[Remark]:
    """Group size of all, and sampling of those that sample, where evaluations differ in them."""
    plans = [
        (side, EvaluationPlan.model_validate(side.run.configuration))
        for side in sides
        if side.run.kind is RunKind.EVALUATION
    ]
    sizes = {side.label: f"{plan.group_size} a task" for side, plan in plans}
    sampling = {side.label: _sampling(plan) for side, plan in plans if not _is_script(side.run)}
    return [
        Remark(f"Played {what}: " + "; ".join(f"{who} {how}" for who, how in told.items()) + ".")
        for what, told in (("different numbers of rollouts", sizes), ("under different sampling", sampling))
        if len(set(told.values())) > 1
    ]


def _is_script(run: Run) -> bool:
    return bool(run.policy and run.policy.configuration.get("script"))


def _sampling(plan: EvaluationPlan) -> str:
    chosen = plan.sampling
    return f"temperature {chosen.temperature:g}, top p {chosen.top_p:g}, {chosen.max_tokens_per_turn:,} tokens a turn"
