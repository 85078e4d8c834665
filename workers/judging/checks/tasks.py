"""Are the tasks fit to learn from: harder by level, possible but not certain, held-out ones unseen?"""

from collections.abc import Sequence
from typing import Any

from backend.domain.prompts import render_observation
from backend.domain.rollouts import Rollout, TaskSpec
from backend.domain.vocabulary import Split
from workers.judging.checks.base import Check, Finding, does_not_apply, failed, listed, passed, skipped, warned
from workers.judging.checks.bounds import TOLERANCE, by_level, success_bounds
from workers.judging.checks.leaks import secrets
from workers.judging.checks.policies import errs
from workers.judging.checks.subject import Subject
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy

GROUPS = 24
MEMBERS = 4
MIXED = (0.2, 0.9)
"""Share of groups that should hold successes and failures."""
SPLIT_SAMPLES = 200
"""Tasks of each split whose prompts are compared."""
FEW_PROMPTS = 0.2
"""Fewer different prompts than this share of the tasks: the prompt does not tell tasks apart."""
OVERLAP_WARNS, OVERLAP_FAILS = 0.01, 0.2


async def _monotone(subject: Subject) -> Finding:
    """By the teacher, who can do something at least, else by random play."""
    if subject.levels < 2:
        return does_not_apply("There is only one level: nothing to compare.")
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


async def _mixed(subject: Subject) -> Finding:
    """Groups of a policy that errs about once an episode: all right or all wrong teaches nothing."""
    bounds = success_bounds(subject.manifest)
    if bounds is None:
        return skipped("No measure of success: declare `checks.floor_maximum`, or the `range` of every column.")
    script = subject.manifest.proctor.checks.reference or next(
        (name for name in ("teacher", "gold") if name in subject.scripts), "random"
    )
    rollouts = await _groups(subject, script)
    groups: dict[int, list[bool]] = {}
    for rollout in rollouts:
        succeeded = (rollout.reward or 0.0) >= bounds[rollout.task.level] - TOLERANCE
        groups.setdefault(rollout.group, []).append(succeeded)
    successes = sum(sum(group) for group in groups.values())
    mixed = sum(0 < sum(group) < len(group) for group in groups.values())
    who = f"`{script}`" if script == "random" else f"`{script}`, erring about once an episode,"
    share = mixed / max(1, len(groups))
    told = (
        f"{who} succeeds in {successes} of {len(rollouts)} episodes (success begins at {min(bounds):.3f});"
        f" {mixed} of {len(groups)} groups of {MEMBERS} are mixed ({share:.0%})."
    )
    details: dict[str, Any] = {"share": share, "successes": successes, "episodes": len(rollouts)}
    if not successes:
        return failed(f"Success never happens: {told}", rollouts, **details)
    if successes == len(rollouts):
        return failed(f"Success is certain: {told}", rollouts, **details)
    low, high = _interval(mixed, len(groups))
    if high < MIXED[0] or low > MIXED[1]:
        return warned(f"Not between {MIXED[0]:.0%} and {MIXED[1]:.0%}: {told}", rollouts, **details)
    return passed(told[0].upper() + told[1:], **details)


async def _groups(subject: Subject, script: str) -> list[Rollout]:
    tasks = subject.tasks(max(2, GROUPS // subject.levels))
    tasks = tasks[: max(4, min(GROUPS, subject.replays(GROUPS * MEMBERS) // MEMBERS))]
    policy: Policy = ScriptedPolicy("random")
    if script != "random":
        known = await subject.completed(script) if script in {"teacher", "gold"} else []
        turns = sum(len(rollout.steps) for rollout in known) / len(known) if known else 2.0
        policy = errs(script, min(0.5, 1.0 / max(turns, 1.0)))
    return [r for r in await subject.play("erring", policy, [(t, MEMBERS) for t in tasks]) if r.is_completed]


def _interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's, 95 %."""
    if not total:
        return 0.0, 1.0
    z, p = 1.96, count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    reach = z / (1 + z * z / total) * (p * (1 - p) / total + z * z / (4 * total * total)) ** 0.5
    return middle - reach, middle + reach


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
MIXED_GROUPS = Check(
    "success_mixed",
    "Success is possible, but not certain: a group holds both often enough to learn from.",
    _mixed,
    needs=("steps_and_ends",),
)
DISJOINT = Check(
    "splits_disjoint",
    "Held-out tasks are not among the training tasks.",
    _disjoint,
    needs=("starts_and_resets", "agent_fits"),
)
