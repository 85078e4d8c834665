"""Is success possible, but not certain? By a script of the package, and by a policy that somebody chose."""

from collections.abc import Sequence
from typing import Any

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import CheckStatus
from workers.environments.checks.base import Check, Finding, failed, passed, skipped, warned
from workers.environments.checks.bounds import TOLERANCE, success_bounds
from workers.environments.checks.policies import errs
from workers.environments.checks.subject import Reference, Subject
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy

GROUPS = 24
MEMBERS = 4
MIXED = (0.2, 0.9)
"""Share of groups that should hold successes and failures."""


async def _mixed(subject: Subject) -> Finding:
    """Groups that are all right or all wrong teach nothing.

    What the script shows is held against the environment; what the chosen policy shows can only warn, for it may be
    too weak or too strong for this environment.
    """
    bounds = success_bounds(subject.manifest)
    if bounds is None:
        return skipped("No measure of success: declare `checks.floor_maximum`, or the `range` of every column.")
    by_script = await _by_script(subject, bounds)
    if subject.reference is None or by_script.status is CheckStatus.FAILED:
        return by_script
    chosen = _by_chosen(subject.reference, await subject.reference_rollouts(), bounds)
    return Finding(
        chosen.status if chosen.status is CheckStatus.WARNED else by_script.status,
        f"{chosen.evidence} {by_script.evidence}",
        {**chosen.details, "script": by_script.details},
        chosen.rollouts or by_script.rollouts,
    )


async def _by_script(subject: Subject, bounds: Sequence[float]) -> Finding:
    """By a script that errs about once an episode, where the package has one."""
    script = subject.manifest.proctor.checks.reference or next(
        (name for name in ("teacher", "gold") if name in subject.scripts), "random"
    )
    rollouts = await _groups(subject, script)
    who = f"`{script}`" if script == "random" else f"`{script}`, erring about once an episode,"
    told, details = _counted(who, rollouts, bounds)
    if not details["successes"]:
        return failed(f"Success never happens: {told}", rollouts, **details)
    if details["successes"] == len(rollouts):
        return failed(f"Success is certain: {told}", rollouts, **details)
    if _is_outside(details):
        return warned(f"Not between {MIXED[0]:.0%} and {MIXED[1]:.0%}: {told}", rollouts, **details)
    return passed(told[0].upper() + told[1:], **details)


def _by_chosen(reference: Reference, played: Sequence[Rollout], bounds: Sequence[float]) -> Finding:
    rollouts = [rollout for rollout in played if rollout.is_completed]
    broken = [rollout for rollout in played if not rollout.is_completed]
    if not rollouts:
        why = f": {broken[0].error_message}" if broken else ""
        return warned(f"No episode of the chosen policy `{reference.name}` came to its end{why}.", broken)
    told, details = _counted(f"the chosen policy `{reference.name}`", rollouts, bounds)
    if broken:
        told += f" {len(broken)} episodes broke and do not count: {broken[0].error_message}."
    if not details["successes"]:
        return warned(f"Success never happens: {told}", rollouts, **details)
    if details["successes"] == len(rollouts):
        return warned(f"Success is certain: {told}", rollouts, **details)
    if not details["mixed"]:
        told += " All members of a group end alike: does it vary what it writes?"
    if _is_outside(details):
        return warned(f"Not between {MIXED[0]:.0%} and {MIXED[1]:.0%}: {told}", rollouts, **details)
    return passed(told[0].upper() + told[1:], rollouts, **details)


def _counted(who: str, rollouts: Sequence[Rollout], bounds: Sequence[float]) -> tuple[str, dict[str, Any]]:
    """A sentence and its figures."""
    groups: dict[int, list[bool]] = {}
    for rollout in rollouts:
        succeeded = (rollout.reward or 0.0) >= bounds[rollout.task.level] - TOLERANCE
        groups.setdefault(rollout.group, []).append(succeeded)
    successes = sum(sum(group) for group in groups.values())
    mixed = sum(0 < sum(group) < len(group) for group in groups.values())
    share = mixed / max(1, len(groups))
    told = (
        f"{who} succeeds in {successes} of {len(rollouts)} episodes (success begins at {min(bounds):.3f});"
        f" {mixed} of {len(groups)} groups of {MEMBERS} are mixed ({share:.0%})."
    )
    figures = {"share": share, "mixed": mixed, "groups": len(groups)}
    return told, {**figures, "successes": successes, "episodes": len(rollouts)}


def _is_outside(details: dict[str, Any]) -> bool:
    low, high = _interval(details["mixed"], details["groups"])
    return high < MIXED[0] or low > MIXED[1]


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


MIXED_GROUPS = Check(
    "success_mixed",
    "Success is possible, but not certain: a group holds both often enough to learn from.",
    _mixed,
    needs=("steps_and_ends",),
)
