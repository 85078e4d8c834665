"""Does the server start, does the manifest fit it, and do episodes run to their end?"""

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.environments.tools import Call, Tool, ToolsUnusable, read_tools
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split, StopReason
from workers.environments.checks.base import Finding, check, clipped, failed, listed, passed, skipped, warned
from workers.environments.checks.subject import Subject
from workers.environments.client import Observation

ABLE = ("gold", "teacher")
"""Scripts that play well, so that their replies must be readable."""
_REWARD_ERRORS = ("reward ", "metadata.rewards ", "the manifest declares ")
"""How the wire and the engine begin when they turn a reward down."""
SCHEMA_SAMPLES = 8
MAX_DEPTH = 6
MAX_ITEMS = 50
"""Maximum number of list items that are checked."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


@check(
    "starts_and_resets",
    theme="start",
    label="Starts and resets",
    sentence="The server starts, and every level of both splits can be reset.",
    advice="Read the server's log in the evidence. `reset` must accept every task of both splits and return "
    "an open episode.",
)
async def starts_and_resets(subject: Subject) -> Finding:
    seconds = []
    async with subject.server.session() as session:
        for split in Split:
            for level in range(min(subject.levels, 20)):
                began = time.perf_counter()
                task = task_of(subject.manifest, split, level)
                opening = await subject.open(session, task)
                seconds.append(time.perf_counter() - began)
                if opening.done:
                    return failed(f"Reset of {task.key} (level {task.level}) gave an episode that is over already.")
    return passed(
        f"{len(seconds)} resets, of every level in both splits; the slowest took {max(seconds) * 1000:.0f} ms.",
        slowest_seconds=max(seconds),
        sessions=subject.server.sessions,
    )


@check(
    "agent_fits",
    theme="start",
    label="Agent block fits",
    sentence="The manifest's `agent` block fits the package: template, action fields, tools and scripted replies.",
    advice="Compare `agent` in the manifest with the fields of the action and observation classes.",
    needs=("starts_and_resets",),
)
async def agent_fits(subject: Subject) -> Finding:
    """The manifest's agent block against the action's schema and a real observation."""
    async with subject.server.session() as session:
        opening, offered = await subject.begin(session, subject.tasks(2)[0])
        state = await session.state(timeout=subject.timeout) if subject.scripts else {}
    problems = [*_action_problems(subject), *_observation_problems(subject, opening)]
    tools: Sequence[Tool] = ()
    try:
        tools = _tools(subject, opening, offered)
    except ToolsUnusable as error:
        problems.append(f"The tools cannot be used: {error}.")
    else:
        problems += [*_tool_problems(subject, opening, tools), *_script_problems(subject, state, tools)]
    if problems:
        return failed(" ".join(problems), problems=problems)
    text = render_observation(subject.manifest.proctor.agent.observation, opening.fields)
    if not text.strip():
        return warned("The template renders, but the first observation is an empty text.")
    called = f"; {len(tools)} tools can be called: {listed([tool.name for tool in tools])}" if tools else ""
    told = f"The template renders ({len(text)} characters) and the action's fields exist{called}."
    return passed(told, text=text[:500])


def _action_problems(subject: Subject) -> list[str]:
    spec, schema = subject.manifest.proctor.agent.action, subject.server.action_schema
    fields = [name for name in schema.get("properties", {}) if name != "metadata"]
    filled = spec.filled_fields
    if filled is None:
        return []
    if missing := sorted(filled - set(fields)):
        named = (
            f"`agent.action.field` is `{spec.field}`" if spec.field in missing else f"Replies fill {listed(missing)}"
        )
        return [f"{named}, but the action class has no such field; it has: {listed(fields)}."]
    others = [name for name in schema.get("required", []) if name not in {*filled, "metadata"}]
    if others:
        return [f"The action class also requires {listed(others)}, which a `{spec.format}` reply never fills."]
    return []


def _observation_problems(subject: Subject, opening: Observation) -> list[str]:
    agent = subject.manifest.proctor.agent
    problems = []
    try:
        render_observation(agent.observation, opening.fields)
    except ValueError as error:
        problems.append(f"{error}. The observation has: {listed(opening.fields, 20)}.")
    if agent.action.choices and not isinstance(opening.fields.get(agent.action.choices), list):
        problems.append(
            f"`agent.action.choices` is `{agent.action.choices}`, but the observation has no list of that name;"
            f" it has: {listed(opening.fields, 20)}."
        )
    return problems


def _tools(subject: Subject, opening: Observation, offered: Any) -> Sequence[Tool]:
    """Return the tools of the manifest or of the environment. Raises ToolsUnusable."""
    spec = subject.manifest.proctor.agent.action
    if not isinstance(spec.tools, str):
        return spec.tools or ()
    found = offered if spec.discover else opening.fields.get(spec.tools)
    if not found:
        raise ToolsUnusable(f"the observation lists none under `{spec.tools}`")
    return read_tools(found)


def _tool_problems(subject: Subject, opening: Observation, tools: Sequence[Tool]) -> list[str]:
    """The action class takes each tool's name and an object of arguments; what is listed as legal can be called."""
    spec, schema = subject.manifest.proctor.agent.action, subject.server.action_schema
    if spec.format != "tool":
        return []
    properties = schema.get("properties", {})
    problems = []
    if refused := [tool.name for tool in tools if not fits(properties.get(spec.field, {}), tool.name, schema)]:
        problems.append(f"The action's `{spec.field}` does not take the tools {listed(refused)}.")
    if not fits(properties.get(spec.arguments, {}), {}, schema):
        problems.append(f"The action's `{spec.arguments}` takes no object, which the arguments of a call are.")
    legal = opening.fields.get(spec.choices) if spec.choices else None
    for choice in legal if isinstance(legal, list) else ():
        if (problem := _choice_problem(choice, tools)) is not None:
            return [*problems, f"`{spec.choices}` lists {clipped(choice)} as legal: {problem}"]
    return problems


def _choice_problem(choice: Any, tools: Sequence[Tool]) -> str | None:
    if not isinstance(choice, dict) or not isinstance(choice.get("arguments", {}), dict):
        return "a choice is `{name, arguments}`."
    return Call(str(choice.get("name")), choice.get("arguments", {})).problem(tools)


def _script_problems(subject: Subject, state: dict[str, Any], tools: Sequence[Tool]) -> list[str]:
    """Check that the first reply of a good script can be parsed and matches its tool's schema."""
    scripts = state.get("scripts")
    if not isinstance(scripts, dict):
        return []
    problems = []
    for name in [name for name in subject.scripts if name in ABLE and isinstance(scripts.get(name), str)]:
        problem = parse_reply(subject.manifest.proctor.agent.action, scripts[name], tools).problem
        if problem:
            problems.append(f"Proctor would refuse what `{name}` writes first: {problem}")
    return problems


@check(
    "rewards_finite",
    theme="start",
    label="Finite rewards",
    sentence="Every step returns finite numbers in the reward columns that the manifest declares.",
    advice="Return every declared column in each step, and guard divisions and logarithms.",
    needs=(
        "starts_and_resets",
        "agent_fits",
    ),
)
async def rewards_finite(subject: Subject) -> Finding:
    rollouts = await subject.rollouts("random")
    broken = [rollout for rollout in rollouts if (rollout.error_message or "").startswith(_REWARD_ERRORS)]
    if broken:
        return failed(
            f"In {len(broken)} of {len(rollouts)} episodes of random legal play: {broken[0].error_message}.",
            broken,
        )
    rows = [step.rewards for rollout in rollouts for step in rollout.steps if step.action is not None]
    if not rows:
        return skipped("No episode of random legal play came as far as one step.")
    count = sum(len(row) for row in rows)
    return passed(f"{count} values in {len(rows)} steps of {len(rollouts)} episodes: all are finite numbers.")


@check(
    "steps_and_ends",
    theme="start",
    label="Whole episodes",
    sentence="Random legal play completes whole episodes without an error.",
    advice="Fix the quoted error, and set `done` when the task is over.",
    needs=(
        "starts_and_resets",
        "agent_fits",
        "rewards_finite",
    ),
)
async def steps_and_ends(subject: Subject) -> Finding:
    rollouts = await subject.rollouts("random")
    broken = [rollout for rollout in rollouts if not rollout.is_completed]
    if broken:
        errors = Counter(f"{rollout.error_kind}: {rollout.error_message}" for rollout in broken)
        [(error, count)] = errors.most_common(1)
        return failed(
            f"{len(broken)} of {len(rollouts)} episodes of random legal play broke. Most often ({count}×) {error}",
            broken,
            errors=[str(rollout.error_message) for rollout in broken[:5]],
        )
    turns = [len(rollout.steps) for rollout in rollouts]
    ends = Counter(str(rollout.stop_reason) for rollout in rollouts)
    seen = f"{len(rollouts)} episodes of random legal play, {min(turns)} to {max(turns)} turns; ended by {_count(ends)}"
    if not ends[StopReason.DONE]:
        return warned(f"{seen}. None was ended by the environment itself.", rollouts, ends=dict(ends))
    return passed(f"{seen}.", rollouts, ends=dict(ends), mean_turns=sum(turns) / len(turns))


def _count(ends: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}×" for reason, count in ends.most_common())


@check(
    "observation_schema",
    theme="start",
    label="Observation schema",
    sentence="Every observation has the fields and types that its class declares.",
    advice="Declare every field of the observation class with its type.",
    needs=("steps_and_ends",),
)
async def observation_schema(subject: Subject) -> Finding:
    schema = subject.server.observation_schema
    declared = set(schema.get("properties", {}))
    if not declared:
        return warned("The server declares no fields of its observation.")
    samples = (await subject.completed("random"))[: subject.replays(SCHEMA_SAMPLES)]
    episodes = [await subject.alone(rollout) for rollout in samples]
    answers = [answer for episode in episodes for answer in episode]
    for number, answer in ((number, answer) for episode in episodes for number, answer in enumerate(episode)):
        if problem := next(_problems(schema, answer, is_opening=number == 0), None):
            return failed(f"An observation is not what its class declares: {problem}.", samples, schema=schema)
    if extra := sorted({name for answer in answers for name in answer.fields} - declared):
        return warned(f"Sent, but not declared by the observation's class: {listed(extra)}.", samples)
    return passed(
        f"{len(answers)} observations of {len(samples)} episodes have the declared fields and types:"
        f" {listed(sorted(declared - {'metadata', 'done', 'reward'}), 12)}."
    )


def _problems(schema: Mapping[str, Any], answer: Observation, *, is_opening: bool) -> Iterator[str]:
    """A reset may answer with a different class, as MCP-style packages do, without the fields of a step."""
    ours = {"metadata", "done", "reward"}
    fields = {name: value for name, value in schema.get("properties", {}).items() if name not in ours}
    for name in schema.get("required", []):
        if name in fields and name not in answer.fields and not is_opening:
            yield f"`{name}` is missing"
    for name, found in fields.items():
        if name in answer.fields and not fits(found, answer.fields[name], schema):
            yield f"`{name}` is {clipped(answer.fields[name])}, not {_told(found)}"


def fits(schema: Any, value: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Compare by type, choice and enum; anything else fits."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return True
    if isinstance(reference := schema.get("$ref"), str):
        return fits(root.get("$defs", {}).get(reference.rpartition("/")[2]), value, root, depth + 1)
    if isinstance(branches := schema.get("anyOf"), list):
        return any(fits(branch, value, root, depth + 1) for branch in branches)
    if isinstance(options := schema.get("enum"), list):
        return value in options
    if not _is_of(schema.get("type"), value):
        return False
    if isinstance(value, list):
        return all(fits(schema.get("items"), item, root, depth + 1) for item in itertools.islice(value, MAX_ITEMS))
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        return all(fits(inner.get(name), item, root, depth + 1) for name, item in value.items())
    return True


def _is_of(kind: Any, value: Any) -> bool:
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _told(schema: Mapping[str, Any]) -> str:
    if isinstance(branches := schema.get("anyOf"), list):
        return " or ".join(_told(branch) for branch in branches)
    return str(schema.get("type") or schema.get("enum") or "what is declared")
