"""Are the tasks fit to learn from: no leaked answers, disjoint splits, rising levels, success that is not certain?

An answer may appear in a prompt by chance (`12` in `5 + 12`). So each task's own answer is searched for, and answers of
other tasks too: it is a leak if the task's own answer appears clearly more often.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.domain.rollouts.rollout import CANARY, Rollout, TaskSpec
from backend.domain.statistics import TIE, estimate_mean
from backend.domain.vocabulary import CheckStatus, Split
from workers.environments.checks.base import (
    TOLERANCE,
    Finding,
    by_level,
    check,
    clipped,
    does_not_apply,
    failed,
    listed,
    passed,
    skipped,
    success_bounds,
    warned,
)
from workers.environments.checks.policies import IDLE, errs
from workers.environments.checks.subject import Reference, Subject
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy

LEAK_TASKS = 64
OTHERS = 16
"""Number of other tasks' answers that each text is compared with."""
WARNS, FAILS = 0.05, 0.2
"""Excess of a task's own answer over other tasks' answers, as a share of the tasks."""
SECRETS = frozenset(
    {"answer", "answers", "correct_answer", "expected", "expected_output", "gold", "ground_truth"}
    | {"hidden", "label", "secret", "solution", "solutions", "target", "truth"}
)
"""Names of state fields that hold secrets."""
FEWEST = 4
"""Groups of a level below which the chosen policy's mean says little."""
SPLIT_SAMPLES = 200
"""Tasks of each split whose prompts are compared."""
FEW_PROMPTS = 0.2
"""Fewer different prompts than this share of the tasks: the prompt does not identify tasks."""
OVERLAP_WARNS, OVERLAP_FAILS = 0.01, 0.2
SUCCESS_GROUPS = 24
SUCCESS_MEMBERS = 4
MIXED = (0.2, 0.9)
"""Share of groups that should hold successes and failures."""
CANARIES_PER_LEVEL = 12
LOOK_ALIKE = 4
"""Number of canaries per level whose openings are compared with ordinary ones."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A task, what must not be seen on it, and what can be seen."""

    key: str
    secrets: tuple[str, ...]
    prompts: tuple[str, ...]
    observations: tuple[str, ...]
    rollout: Rollout | None


@check(
    "answer_hidden",
    theme="tasks",
    label="Hidden answer",
    sentence="Neither the prompt nor an observation gives the answer away before the episode ends.",
    advice="Remove the answer from observations and metadata. If it belongs in the prompt, set "
    "`checks.answer_in_prompt`.",
    needs=("steps_and_ends",),
)
async def answer_hidden(subject: Subject) -> Finding:
    cases = [case for case in await _cases(subject) if case.secrets]
    if not cases:
        return does_not_apply(
            "There is nothing to look for: the state names no `answer`, and gold needs more than one move."
        )
    for where, texts in (("prompt", [c.prompts for c in cases]), ("observation", [c.observations for c in cases])):
        own, others = _shares(cases, texts)
        excess = own - others
        told = (
            f"On {own:.0%} of {len(cases)} tasks the answer stands in the {where} before the episode ends, answers of"
            f" other tasks on {others:.0%}"
        )
        if excess < WARNS:
            continue
        if where == "prompt" and subject.manifest.proctor.checks.answer_in_prompt:
            return passed(f"{told}: by design (`checks.answer_in_prompt`).", own=own, others=others)
        if subject.manifest.proctor.checks.answer_in_prompt:
            continue
        shown = [case for case, found in zip(cases, texts, strict=True) if _holds(found, case.secrets)]
        rollouts = [case.rollout for case in shown if case.rollout]
        example = f"e.g. {clipped(shown[0].secrets[0])} on {shown[0].key}"
        judge = failed if excess >= FAILS else warned
        return judge(f"{told}, {example}.", rollouts, own=own, others=others)
    return passed(f"{len(cases)} tasks: neither prompts nor observations hold the answer more often than by chance.")


async def _cases(subject: Subject) -> list[_Case]:
    """The openings of some tasks, and what policies that found nothing out were shown on them."""
    gold = {r.task.key: r for r in await subject.completed("gold")} if "gold" in subject.scripts else {}
    idle: dict[str, list[Rollout]] = {}
    for policy in IDLE:
        for rollout in await subject.completed(policy):
            idle.setdefault(rollout.task.key, []).append(rollout)
    tasks = subject.tasks(max(2, LEAK_TASKS // subject.levels))[: max(8, subject.replays(LEAK_TASKS))]
    cases = []
    for task, (opening, state) in zip(tasks, await subject.openings(tasks, with_state=True), strict=True):
        played = idle.get(task.key, [])
        going_on = [step for rollout in played for step in rollout.steps if not step.done]
        first = render_observation(subject.manifest.proctor.agent.observation, opening.fields)
        metadata = {name: value for name, value in opening.metadata.items() if name != "rewards"}
        cases.append(
            _Case(
                task.key,
                tuple(secrets(state) or _single_answer(subject, gold.get(task.key))),
                (subject.manifest.proctor.agent.system, first, *(step.text for step in going_on)),
                (_text({**opening.fields, "_": metadata}), *(_text(step.observation) for step in going_on)),
                gold.get(task.key) or (played[0] if played else None),
            )
        )
    return cases


def secrets(state: Mapping[str, Any]) -> list[str]:
    """Return the values that the state names as answers."""
    found = [value for name, value in state.items() if name.lower() in SECRETS]
    flat = [item for value in found for item in (value if isinstance(value, list) else [value])]
    return [str(item) for item in flat if _is_telling(item)]


def _is_telling(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


def _single_answer(subject: Subject, gold: Rollout | None) -> list[str]:
    """Where one move is the whole episode, the gold move is the answer. A longer one is not a single answer."""
    if gold is None or len(gold.steps) != 1:
        return []
    action = gold.steps[0].action or parse_reply(subject.manifest.proctor.agent.action, gold.steps[0].reply).action
    return [str(value) for value in (action or {}).values() if _is_telling(value)]


def _shares(cases: Sequence[_Case], texts: Sequence[Sequence[str]]) -> tuple[float, float]:
    """The share of tasks whose texts hold their own answer, and the mean share for answers that are not theirs."""
    own = sum(_holds(found, case.secrets) for case, found in zip(cases, texts, strict=True))
    tried = hits = 0
    for number, (case, found) in enumerate(zip(cases, texts, strict=True)):
        for step in range(1, OTHERS + 1):
            other = cases[(number + step * 7) % len(cases)]
            if set(other.secrets) & set(case.secrets):
                continue
            tried += 1
            hits += _holds(found, other.secrets)
    return own / len(cases), hits / tried if tried else 0.0


def _holds(texts: Sequence[str], secrets: Sequence[str]) -> bool:
    return any(_stands_in(secret, text) for text in texts for secret in secrets)


def _stands_in(secret: str, text: str) -> bool:
    """Whether the secret appears as whole words, ignoring case and whitespace."""
    words = secret.split()
    if not words:
        return False
    pattern = r"\s+".join(re.escape(word) for word in words)
    return re.search(rf"(?<![\w.]){pattern}(?![\w]|\.\d)", text, re.IGNORECASE) is not None


def _text(fields: Mapping[str, Any]) -> str:
    return orjson.dumps(fields, default=str).decode()


@check(
    "levels_monotone",
    theme="tasks",
    label="Levels get harder",
    sentence="A higher level is not easier for a reference policy.",
    advice="Reorder the levels or make the higher one harder.",
    needs=("steps_and_ends",),
)
async def levels_monotone(subject: Subject) -> Finding:
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


@check(
    "splits_disjoint",
    theme="tasks",
    label="Disjoint splits",
    sentence="Held-out tasks are not among the training tasks.",
    advice="Generate the splits from different seeds or disjoint lists of tasks.",
    needs=(
        "starts_and_resets",
        "agent_fits",
    ),
)
async def splits_disjoint(subject: Subject) -> Finding:
    """Compare first prompts. If prompts do not identify tasks, tasks differ by their seeds, which never overlap."""
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


@check(
    "success_mixed",
    theme="tasks",
    label="Mixed success",
    sentence="Success is possible but not certain: groups contain both often enough to learn from.",
    advice="Make tasks easier or harder, or add levels, until a policy succeeds sometimes.",
    needs=("steps_and_ends",),
)
async def success_mixed(subject: Subject) -> Finding:
    """Groups that are all right or all wrong teach nothing.

    A scripted policy can fail the environment; the chosen policy can only warn, because it may be
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
        f" {mixed} of {len(groups)} groups of {SUCCESS_MEMBERS} are mixed ({share:.0%})."
    )
    figures = {"share": share, "mixed": mixed, "groups": len(groups)}
    return told, {**figures, "successes": successes, "episodes": len(rollouts)}


def _is_outside(details: dict[str, Any]) -> bool:
    low, high = _interval(details["mixed"], details["groups"])
    return high < MIXED[0] or low > MIXED[1]


async def _groups(subject: Subject, script: str) -> list[Rollout]:
    tasks = subject.tasks(max(2, SUCCESS_GROUPS // subject.levels))
    tasks = tasks[: max(4, min(SUCCESS_GROUPS, subject.replays(SUCCESS_GROUPS * SUCCESS_MEMBERS) // SUCCESS_MEMBERS))]
    policy: Policy = ScriptedPolicy("random")
    if script != "random":
        known = await subject.completed(script) if script in {"teacher", "gold"} else []
        turns = sum(len(rollout.steps) for rollout in known) / len(known) if known else 2.0
        policy = errs(script, min(0.5, 1.0 / max(turns, 1.0)))
    return [r for r in await subject.play("erring", policy, [(t, SUCCESS_MEMBERS) for t in tasks]) if r.is_completed]


def _interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95% interval."""
    if not total:
        return 0.0, 1.0
    z, p = 1.96, count / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    reach = z / (1 + z * z / total) * (p * (1 - p) / total + z * z / (4 * total * total)) ** 0.5
    return middle - reach, middle + reach


@check(
    "canaries_unsolvable",
    theme="tasks",
    label="Impossible tasks",
    sentence="Impossible tasks cannot be passed and cannot be recognized by how they start.",
    advice="Make `reset` honor `canary`, and let impossible tasks start like ordinary ones.",
    needs=(
        "starts_and_resets",
        "rewards_finite",
    ),
)
async def canaries_unsolvable(subject: Subject) -> Finding:
    share = subject.manifest.proctor.tasks.canaries
    if not share:
        return does_not_apply("It mixes no impossible tasks in (`tasks.canaries`).")
    if told_apart := await _told_apart(subject):
        return failed(f"A policy can tell impossible tasks by their openings, which alone have {told_apart}.")
    if "gold" not in subject.scripts:
        return skipped("Without a script `gold` nobody can try to solve them.")
    tasks = [(_impossible(task), 1) for task in subject.tasks(CANARIES_PER_LEVEL)]
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
