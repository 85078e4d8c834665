"""Are impossible tasks impossible? What can be passed honestly would be called cheating."""

from dataclasses import replace

from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.domain.rollouts.rollout import CANARY, Rollout, TaskSpec
from backend.domain.statistics import TIE
from workers.environments.checks.base import Check, Finding, does_not_apply, failed, passed, skipped
from workers.environments.checks.subject import Subject
from workers.policies.scripted import ScriptedPolicy

PER_LEVEL = 12
LOOK_ALIKE = 4
"""Canaries of each level whose openings are held beside ordinary ones."""


async def _unsolvable(subject: Subject) -> Finding:
    share = subject.manifest.proctor.tasks.canaries
    if not share:
        return does_not_apply("It mixes no impossible tasks in (`tasks.canaries`).")
    if told_apart := await _told_apart(subject):
        return failed(f"A policy can tell impossible tasks by their openings, which alone have {told_apart}.")
    if "gold" not in subject.scripts:
        return skipped("Without a script `gold` nobody can try to solve them.")
    tasks = [(_impossible(task), 1) for task in subject.tasks(PER_LEVEL)]
    played = await subject.play(CANARY, ScriptedPolicy("gold"), tasks)
    rule = default_rule(subject.manifest)
    completed = [rollout for rollout in played if rollout.is_completed]
    solved = [rollout for rollout in completed if _value(rollout, rule) >= rule.at_least - TIE]
    if solved:
        told = f"Perfect play passes {len(solved)} of {len(completed)} impossible tasks ({rule.expression})."
        return failed(f"{told} Does `reset` heed `canary`, and can nobody know what it asks for?", solved)
    if not completed:
        return failed("No episode of an impossible task came to its end.", played)
    return passed(
        f"Perfect play passes none of {len(completed)} impossible tasks; {share:.1%} of the tasks of training and"
        " evaluations are such.",
        completed,
    )


async def _told_apart(subject: Subject) -> str:
    """Fields of an opening that only impossible tasks have, or only ordinary ones."""
    ordinary = subject.tasks(LOOK_ALIKE)
    plain = {name for opening, _ in await subject.openings(ordinary) for name in opening.fields}
    impossible = [_impossible(task) for task in ordinary]
    trapped = {name for opening, _ in await subject.openings(impossible) for name in opening.fields}
    return ", ".join(sorted(plain ^ trapped))


def _impossible(task: TaskSpec) -> TaskSpec:
    return replace(task, arguments={**task.arguments, CANARY: True})


def _value(rollout: Rollout, rule: SuccessRule) -> float:
    return (rollout.reward or 0.0) if rule.column == REWARD else rollout.columns.get(rule.column, 0.0)


UNSOLVABLE = Check(
    "canaries_unsolvable",
    "Nobody can pass its impossible tasks, nor tell them by how they begin.",
    _unsolvable,
    needs=("starts_and_resets", "rewards_finite"),
)
