"""Are the tasks fit to learn from: harder by level, possible but not certain, held-out ones unseen?"""

from collections.abc import Sequence
from dataclasses import replace

from backend.domain.environments.prompts import render_observation
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.statistics import estimate_mean
from backend.domain.vocabulary import CheckStatus, Split
from workers.environments.checks.base import Check, Finding, does_not_apply, failed, listed, passed, warned
from workers.environments.checks.bounds import TOLERANCE, by_level
from workers.environments.checks.leaks import secrets
from workers.environments.checks.subject import Subject

FEWEST = 4
"""Groups of a level below which the chosen policy's mean says little."""
SPLIT_SAMPLES = 200
"""Tasks of each split whose prompts are compared."""
FEW_PROMPTS = 0.2
"""Fewer different prompts than this share of the tasks: the prompt does not tell tasks apart."""
OVERLAP_WARNS, OVERLAP_FAILS = 0.01, 0.2


async def _monotone(subject: Subject) -> Finding:
    if subject.levels < 2:
        return does_not_apply("There is only one level: nothing to compare.")
    return await _monotone_by_chosen(subject, await _monotone_by_script(subject))


async def _monotone_by_script(subject: Subject) -> Finding:
    """By the teacher, who can do something at least, else by random play."""
    policy = "teacher" if "teacher" in subject.scripts else "random"
    rollouts = await subject.completed(policy)
    levels = by_level(rollouts)
    told = ", ".join(f"level {level} {estimate.mean:.3f}" for level, estimate in levels.items())
    numbers = sorted(levels)
    if len(numbers) > 1 and levels[numbers[-1]].low > levels[numbers[0]].high + TOLERANCE:
        return failed(f"`{policy}` finds the highest level easier than the lowest: {told}.", rollouts)
    easier = [n for n in numbers if n - 1 in levels and levels[n].low > levels[n - 1].high + TOLERANCE]
    if easier:
        return warned(f"`{policy}` finds level {listed(easier)} easier than the one before: {told}.", rollouts)
    return passed(f"`{policy}` finds no level clearly easier than the one before: {told}.")


async def _monotone_by_chosen(subject: Subject, by_script: Finding) -> Finding:
    """Means of whole groups; a policy that finds a high level easier may be an odd one, so this only warns."""
    if subject.reference is None or by_script.status is CheckStatus.FAILED:
        return by_script
    groups: dict[int, list[Rollout]] = {}
    for rollout in await subject.reference_rollouts():
        if rollout.is_completed:
            groups.setdefault(rollout.group, []).append(rollout)
    rewards: dict[int, list[float]] = {}
    for group in groups.values():
        mean = sum(rollout.reward or 0.0 for rollout in group) / len(group)
        rewards.setdefault(group[0].task.level, []).append(mean)
    levels = {level: e for level in sorted(rewards) if (e := estimate_mean(rewards[level])) and e.count >= FEWEST}
    if len(levels) < 2:
        return by_script
    (lowest, first), *_, (highest, last) = levels.items()
    told = ", ".join(f"level {level} {estimate.mean:.3f}" for level, estimate in levels.items())
    evidence = f"{by_script.evidence} The chosen policy `{subject.reference.name}`: {told}."
    if last.low > first.high + TOLERANCE:
        shown = [rollout for group in groups.values() for rollout in group if group[0].task.level == highest]
        return warned(f"{evidence} It finds level {highest} easier than level {lowest}.", shown)
    return replace(by_script, evidence=evidence)


async def _disjoint(subject: Subject) -> Finding:
    """By what the policy reads first; where that tells nothing, tasks differ by their seeds, which never meet."""
    per_level = max(2, min(SPLIT_SAMPLES, subject.replays(SPLIT_SAMPLES)) // subject.levels)
    train = await _beginnings(subject, subject.tasks(per_level, Split.TRAIN))
    heldout = await _beginnings(subject, subject.tasks(per_level, Split.HELDOUT))
    prompts = {prompt for prompt, _ in heldout}
    if len(prompts) < FEW_PROMPTS * len(heldout):
        return passed(
            f"{len(heldout)} held-out tasks begin with {len(prompts)} different prompts: what tells them apart is"
            " their seeds, and those of the two splits never meet."
        )
    known = set(train)
    common = [beginning for beginning in heldout if beginning in known]
    share = len(common) / len(heldout)
    told = f"{len(common)} of {len(heldout)} held-out tasks ({share:.1%}) stand among {len(train)} training tasks"
    if not common:
        return passed(f"{told}.", share=share)
    judge = failed if share > OVERLAP_FAILS else warned if share > OVERLAP_WARNS else passed
    return judge(f"{told}, e.g. {common[0][0][:120]!r}.", share=share)


async def _beginnings(subject: Subject, tasks: Sequence[TaskSpec]) -> list[tuple[str, tuple[str, ...]]]:
    """The first prompt of each task, and the answer where the state names it: two tasks may begin alike."""
    template = subject.manifest.proctor.agent.observation
    [(_, state)] = await subject.openings(tasks[:1], with_state=True)
    openings = await subject.openings(tasks, with_state=bool(secrets(state)))  # a state may cost seconds
    return [(render_observation(template, opening.fields), tuple(secrets(state))) for opening, state in openings]


MONOTONE = Check(
    "levels_monotone", "A higher level is not easier for a reference policy.", _monotone, needs=("steps_and_ends",)
)
DISJOINT = Check(
    "splits_disjoint",
    "Held-out tasks are not among the training tasks.",
    _disjoint,
    needs=("starts_and_resets", "agent_fits"),
)
