"""Can a policy learn from the tasks: no leaked answers, disjoint splits, rising levels, uncertain success?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from backend.domain.environments.answers import secret_values
from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.results.pass_at_k import REWARD, default_rule
from backend.domain.rollouts.rollout import CANARY, Rollout
from backend.domain.statistics import TIE, wilson
from backend.domain.vocabulary import CheckStatus, Split
from workers.environments.checks.base import (
    TOLERANCE,
    Check,
    CheckFinding,
    Cost,
    by_level,
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
from workers.environments.checks.subject import CheckSubject
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy

LEAK_TASKS = 64
SPLIT_TASKS = 200
"""Number of tasks of each split whose prompts are compared."""
SUCCESS_GROUPS, SUCCESS_MEMBERS = 24, 4
MIXED = (0.2, 0.9)
"""Share of groups that should contain successes and failures."""


@dataclass(frozen=True, slots=True)
class _LeakCase:
    """One task with its secrets, and the texts that must not contain them."""

    key: str
    secrets: Sequence[str]
    texts: Mapping[str, Sequence[str]]
    """Prompts and observations."""
    rollout: Rollout | None


@Check(
    label="Hidden answer",
    sentence="Neither the prompt nor an observation gives the answer away before the episode ends.",
    advice="Remove the answer from observations and metadata. If it belongs in the prompt, set "
    "`checks.answer_in_prompt`.",
    example="""
    class SumObservation(Observation):
        question: str  # no field with the answer

    @property
    def state(self) -> State:  # never shown to a policy
        return State(episode_id=self._id, step_count=0, answer=self._expected)
    """,
    cost=Cost.EPISODES,
)
async def answer_hidden(subject: CheckSubject) -> CheckFinding:
    """Search prompts and observations of 64 tasks for the state's `answer`, `solution`, `target` … before the end.

    In one-move tasks gold's move is the answer. Some answers appear by chance (`12` in `5 + 12`), so answers of other
    tasks are searched for too. Fails if the own answer is found on 20% more tasks than others, warns above 5%. With
    `checks.answer_in_prompt` it may appear.
    """
    cases = [case for case in await _leak_cases(subject) if case.secrets]
    if not cases:
        return does_not_apply("The state names no `answer`, and gold needs more than one move: nothing to search for.")
    for where in ("prompt", "observation"):
        own = [_contains(case.texts[where], case.secrets) for case in cases]
        chance = []
        for number, case in enumerate(cases):
            others = [cases[(number + step * 7) % len(cases)] for step in range(1, 17)]
            distinct = [other for other in others if not set(other.secrets) & set(case.secrets)]
            chance += [_contains(case.texts[where], other.secrets) for other in distinct]
        own_share, chance_share = sum(own) / len(own), sum(chance) / len(chance) if chance else 0.0
        excess = own_share - chance_share
        summary = (
            f"On {own_share:.0%} of {len(cases)} tasks the answer appears in the {where} before the episode ends,"
            f" answers of other tasks on {chance_share:.0%}"
        )
        if excess < 0.05:
            continue
        if subject.manifest.proctor.checks.answer_in_prompt:
            if where == "observation":
                continue
            return passed(f"{summary}: by design (`checks.answer_in_prompt`).", own=own_share, others=chance_share)
        shown = [case for case, is_leaked in zip(cases, own, strict=True) if is_leaked]
        judge = failed if excess >= 0.2 else warned
        return judge(
            f"{summary}, e.g. {clipped(shown[0].secrets[0])} on {shown[0].key}.",
            [case.rollout for case in shown if case.rollout],
            own=own_share,
            others=chance_share,
        )
    return passed(f"{len(cases)} tasks: neither prompts nor observations hold the answer more often than by chance.")


async def _leak_cases(subject: CheckSubject) -> list[_LeakCase]:
    """Collect the openings of some tasks, and everything that policies without knowledge saw on them."""
    agent = subject.manifest.proctor.agent
    gold = {r.task.key: r for r in await subject.completed("gold")} if "gold" in subject.scripts else {}
    idle: dict[str, list[Rollout]] = {}
    for policy in IDLE:
        for rollout in await subject.completed(policy):
            idle.setdefault(rollout.task.key, []).append(rollout)
    tasks = subject.tasks(max(2, LEAK_TASKS // subject.levels))[: max(8, subject.replay_limit(LEAK_TASKS))]
    cases = []
    for task, (opening, state) in zip(tasks, await subject.openings(tasks, with_state=True), strict=True):
        played, perfect = idle.get(task.key, []), gold.get(task.key)
        answers = secret_values(state)
        if not answers and perfect is not None and len(perfect.steps) == 1:  # one move is the answer
            move = perfect.steps[0]
            action = move.action or parse_reply(agent.action, move.reply).action
            answers = secret_values({"gold": list((action or {}).values())})
        steps = [step for rollout in played for step in rollout.steps if not step.done]
        first = render_observation(agent.observation, opening.fields)
        metadata = {name: value for name, value in opening.metadata.items() if name != "rewards"}
        observations = [{**opening.fields, "_": metadata}, *(step.observation for step in steps)]
        texts = {
            "prompt": [agent.system, first, *(step.text for step in steps)],
            "observation": [orjson.dumps(fields, default=str).decode() for fields in observations],
        }
        cases.append(_LeakCase(task.key, answers, texts, perfect or (played[0] if played else None)))
    return cases


def _contains(texts: Sequence[str], answers: Sequence[str]) -> bool:
    """Return whether an answer appears in a text as whole words, ignoring case and whitespace."""
    for answer in answers:
        if words := r"\s+".join(re.escape(word) for word in answer.split()):
            pattern = re.compile(rf"(?<![\w.]){words}(?![\w]|\.\d)", re.IGNORECASE)
            if any(pattern.search(text) for text in texts):
                return True
    return False


@Check(
    label="Levels get harder",
    sentence="A higher level is not easier for a reference policy.",
    advice="Reorder the levels or make the higher one harder.",
    example="""
    LARGEST_BY_LEVEL = (10, 100, 1000)  # harder with each level
    self._terms = [chance.randint(1, LARGEST_BY_LEVEL[level]) for _ in range(2)]
    """,
    cost=Cost.EPISODES,
)
async def levels_monotone(subject: CheckSubject) -> CheckFinding:
    """Compare means by level of `teacher`, else of random play. Fails if the highest level is easier than the lowest.

    An easier level in between warns. If a policy was chosen, the means of its groups count too, on levels with at least
    four groups. They can only warn, because the policy may be unusual.
    """
    if subject.levels < 2:
        return does_not_apply("There is only one level: nothing to compare.")
    policy = "teacher" if "teacher" in subject.scripts else "random"
    rollouts = await subject.completed(policy)
    levels = by_level(rollouts)
    summary = ", ".join(f"level {level} {estimate.mean:.3f}" for level, estimate in levels.items())
    numbers = sorted(levels)
    if len(numbers) > 1 and levels[numbers[-1]].low > levels[numbers[0]].high + TOLERANCE:
        return failed(f"`{policy}` finds the highest level easier than the lowest: {summary}.", rollouts)
    easier = [n for n in numbers if n - 1 in levels and levels[n].low > levels[n - 1].high + TOLERANCE]
    if easier:
        by_script = warned(f"`{policy}` finds level {listed(easier)} easier than the one before: {summary}.", rollouts)
    else:
        by_script = passed(f"`{policy}` finds no level clearly easier than the one before: {summary}.")
    if subject.reference is None:
        return by_script
    rollouts = [rollout for rollout in await subject.reference_rollouts() if rollout.is_completed]
    levels = {level: estimate for level, estimate in by_level(rollouts).items() if estimate.count >= 4}
    if len(levels) < 2:
        return by_script
    (lowest, first), *_, (highest, last) = levels.items()
    summary = ", ".join(f"level {level} {estimate.mean:.3f}" for level, estimate in levels.items())
    evidence = f"{by_script.evidence} The chosen policy `{subject.reference.name}`: {summary}."
    if last.low > first.high + TOLERANCE:
        shown = [rollout for rollout in rollouts if rollout.task.level == highest]
        return warned(f"{evidence} It finds level {highest} easier than level {lowest}.", shown)
    return replace(by_script, evidence=evidence)


@Check(
    label="Disjoint splits",
    sentence="Held-out tasks are not among the training tasks.",
    advice="Generate the splits from different seeds or disjoint lists of tasks.",
    example="""
    is_heldout = zlib.crc32(question.encode()) % 5 == 0
    if is_heldout == (split == "heldout"):
        return question  # otherwise draw again
    """,
    cost=Cost.RESETS,
    needs=("starts_and_resets", "agent_fits"),
)
async def splits_disjoint(subject: CheckSubject) -> CheckFinding:
    """Compare first prompts, and answers where the state names them, of 200 tasks per split.

    Fails above 20% overlap, warns above 1%. If prompts do not identify tasks, seeds separate the splits.
    """
    template = subject.manifest.proctor.agent.observation
    per_level = max(2, min(SPLIT_TASKS, subject.replay_limit(SPLIT_TASKS)) // subject.levels)
    starts = {}
    for split in (Split.TRAIN, Split.HELDOUT):
        tasks = subject.tasks(per_level, split)
        [(_, state)] = await subject.openings(tasks[:1], with_state=True)
        openings = await subject.openings(
            tasks, with_state=bool(secret_values(state))
        )  # reading a state may take seconds
        starts[split] = [
            (render_observation(template, opening.fields), secret_values(state)) for opening, state in openings
        ]
    train, heldout = starts[Split.TRAIN], starts[Split.HELDOUT]
    prompts = {prompt for prompt, _ in heldout}
    if len(prompts) < 0.2 * len(heldout):
        return passed(
            f"{len(heldout)} held-out tasks begin with {len(prompts)} different prompts: only their seeds distinguish"
            " them, and seeds of the two splits never overlap."
        )
    common = [start for start in heldout if start in train]
    share = len(common) / len(heldout)
    summary = f"{len(common)} of {len(heldout)} held-out tasks ({share:.1%}) are among {len(train)} training tasks"
    if not common:
        return passed(f"{summary}.", share=share)
    judge = failed if share > 0.2 else warned if share > 0.01 else passed
    return judge(f"{summary}, e.g. {common[0][0][:120]!r}.", share=share)


@Check(
    label="Mixed success",
    sentence="Success is possible but not certain: groups contain both often enough to learn from.",
    advice="Make tasks easier or harder, or add levels, until a policy succeeds sometimes.",
    example="""
    # openenv.yaml, under proctor: more levels, from easy to hard
    tasks: {train: 100000, heldout: 2000, levels: 4}
    """,
    cost=Cost.EPISODES,
)
async def success_mixed(subject: CheckSubject) -> CheckFinding:
    """Play 24 groups of 4 with `checks.reference` (else `teacher`, else `gold`) and about one error per episode.

    Without a script, random play is used. Fails if success never happens or is certain; warns if clearly fewer
    than 20% or more than 90% of the groups are mixed, because uniform groups teach nothing (HUD: spread). A chosen
    policy is measured too and can only warn: it may be too weak or too strong for this environment.
    """
    bounds = success_bounds(subject.manifest)
    if bounds is None:
        return skipped("No measure of success: declare `checks.floor_maximum`, or the `range` of every column.")
    script = subject.manifest.proctor.checks.reference or next(
        (name for name in ("teacher", "gold") if name in subject.scripts), "random"
    )
    tasks = subject.tasks(max(2, SUCCESS_GROUPS // subject.levels))
    limit = subject.replay_limit(SUCCESS_GROUPS * SUCCESS_MEMBERS) // SUCCESS_MEMBERS
    policy: Policy = ScriptedPolicy("random")
    who = "`random`"
    if script != "random":
        known = await subject.completed(script) if script in {"teacher", "gold"} else []
        turns = sum(len(rollout.steps) for rollout in known) / len(known) if known else 2.0
        policy = errs(script, min(0.5, 1.0 / max(turns, 1.0)))
        who = f"`{script}`, erring about once an episode,"
    pairs = [(task, SUCCESS_MEMBERS) for task in tasks[: max(4, min(SUCCESS_GROUPS, limit))]]
    rollouts = [rollout for rollout in await subject.play("erring", policy, pairs) if rollout.is_completed]
    by_script = _mixed_success(who, rollouts, bounds)
    if subject.reference is None or by_script.status is CheckStatus.FAILED:
        return by_script
    played = await subject.reference_rollouts()
    completed = [rollout for rollout in played if rollout.is_completed]
    broken = [rollout for rollout in played if not rollout.is_completed]
    name = f"the chosen policy `{subject.reference.name}`"
    if completed:
        note = f" {len(broken)} episodes broke and do not count: {broken[0].error_message}." if broken else ""
        uniform = " All members of a group end alike: check that the policy samples different replies."
        chosen = _mixed_success(name, completed, bounds, note, uniform)
    else:
        chosen = warned(f"No episode of {name} completed{f': {broken[0].error_message}' if broken else ''}.", broken)
    is_in_doubt = chosen.status is not CheckStatus.PASSED
    return CheckFinding(
        CheckStatus.WARNED if is_in_doubt else by_script.status,
        f"{chosen.evidence} {by_script.evidence}",
        {**chosen.details, "script": by_script.details},
        chosen.rollouts or by_script.rollouts,
    )


def _mixed_success(
    who: str, rollouts: Sequence[Rollout], bounds: Sequence[float], note: str = "", uniform: str = ""
) -> CheckFinding:
    """Count groups with successes and failures; the 95% interval of their share must overlap MIXED."""
    groups: dict[int, list[bool]] = {}
    for rollout in rollouts:
        is_success = (rollout.reward or 0.0) >= bounds[rollout.task.level] - TOLERANCE
        groups.setdefault(rollout.group, []).append(is_success)
    successes = sum(sum(group) for group in groups.values())
    mixed = sum(0 < sum(group) < len(group) for group in groups.values())
    share = mixed / max(1, len(groups))
    summary = (
        f"{who} succeeds in {successes} of {len(rollouts)} episodes (success begins at {min(bounds):.3f});"
        f" {mixed} of {len(groups)} groups of {SUCCESS_MEMBERS} are mixed ({share:.0%}).{note}"
    )
    details = {"share": share, "mixed": mixed, "groups": len(groups), "successes": successes, "episodes": len(rollouts)}
    if not successes:
        return failed(f"Success never happens: {summary}", rollouts, **details)
    if successes == len(rollouts):
        return failed(f"Success is certain: {summary}", rollouts, **details)
    if not mixed:
        summary += uniform
    interval = wilson(mixed, len(groups))
    if interval.high < MIXED[0] or interval.low > MIXED[1]:
        return warned(f"Not between {MIXED[0]:.0%} and {MIXED[1]:.0%}: {summary}", rollouts, **details)
    return passed(summary[0].upper() + summary[1:], rollouts, **details)


@Check(
    label="Impossible tasks",
    sentence="Impossible tasks cannot be passed and cannot be recognized by how they start.",
    advice="Make `reset` honor `canary`, and let impossible tasks start like ordinary ones.",
    example="""
    def reset(self, seed=None, canary=False, **kwargs):
        chance = random.Random(seed)
        self._terms = [chance.randint(1, 99) for _ in range(2)]  # looks like any task
        self._expected = chance.randrange(10**8) if canary else sum(self._terms)
    """,
    cost=Cost.EPISODES,
    needs=("starts_and_resets", "rewards_finite"),
)
async def canaries_unsolvable(subject: CheckSubject) -> CheckFinding:
    """Play `gold` on 12 canaries per level; none may pass by the success rule.

    The fields of 4 openings per level are compared with those of the same ordinary tasks.
    """
    share = subject.manifest.proctor.tasks.canaries
    if not share:
        return does_not_apply("The environment has no impossible tasks (`tasks.canaries`).")
    ordinary = subject.tasks(4)
    plain = {name for opening, _ in await subject.openings(ordinary) for name in opening.fields}
    impossible = [replace(task, arguments={**task.arguments, CANARY: True}) for task in subject.tasks(12)]
    trapped = {name for opening, _ in await subject.openings(impossible[: len(ordinary)]) for name in opening.fields}
    if different := ", ".join(sorted(plain ^ trapped)):
        return failed(f"A policy can recognize impossible tasks by their openings; only one kind has {different}.")
    if "gold" not in subject.scripts:
        return skipped("Without a `gold` script, nothing can try to solve them.")
    played = await subject.play(CANARY, ScriptedPolicy("gold"), [(task, 1) for task in impossible])
    rule = default_rule(subject.manifest)
    completed = [rollout for rollout in played if rollout.is_completed]
    values = [(r.reward or 0.0) if rule.column == REWARD else r.columns.get(rule.column, 0.0) for r in completed]
    solved = [rollout for rollout, value in zip(completed, values, strict=True) if value >= rule.at_least - TIE]
    if solved:
        return failed(
            f"Perfect play passes {len(solved)} of {len(completed)} impossible tasks ({rule.expression}). Check that"
            " `reset` honors `canary` and that the answer cannot be known.",
            solved,
        )
    if not completed:
        return failed("No episode of an impossible task completed.", played)
    return passed(
        f"Perfect play passes none of {len(completed)} impossible tasks; {share:.1%} of the tasks in training and"
        " evaluations are impossible.",
        completed,
    )
