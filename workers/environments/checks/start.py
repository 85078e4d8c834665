"""Does the server start, does the manifest fit it, and do episodes reach their end?"""

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.environments.tools import Call, Tool, ToolsUnusable, read_tools
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split, StopReason
from workers.environments.checks.base import Check, CheckFinding, Cost, clipped, failed, listed, passed, skipped, warned
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import Observation

JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
Schema = Mapping[str, Any]


@Check(
    label="Starts and resets",
    sentence="The server starts, and every level of both splits can be reset.",
    advice="Read the server log in the evidence. `reset` must accept every task of both splits and return an open "
    "episode.",
    example="""
    def reset(self, seed=None, episode_id=None, split="train", level=0, **kwargs):
        if not 0 <= level < LEVELS:
            raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
        self._begin(split, level, seed)
        return self._observe(done=False)  # open for the first action
    """,
    cost=Cost.RESETS,
    needs=(),
)
async def starts_and_resets(subject: CheckSubject) -> CheckFinding:
    """Reset each level of both splits once, up to 20 levels. None may end immediately."""
    seconds = []
    async with subject.server.session() as session:
        for split, level in itertools.product(Split, range(min(subject.levels, 20))):
            began = time.perf_counter()
            task = task_of(subject.manifest, split, level)
            opening, _ = await subject.open(session, task)
            seconds.append(time.perf_counter() - began)
            if opening.done:
                return failed(f"Reset of {task.key} (level {task.level}) returned an episode that is already over.")
    return passed(
        f"{len(seconds)} resets, of every level in both splits; the slowest took {max(seconds) * 1000:.0f} ms.",
        slowest_seconds=max(seconds),
        sessions=subject.server.sessions,
    )


@Check(
    label="Agent block fits",
    sentence="The manifest's `agent` block fits the package: template, action fields, tools and scripted replies.",
    advice="Compare `agent` in the manifest with the fields of the action and observation classes.",
    example="""
    # models.py
    class GuessAction(Action):
        number: int

    # openenv.yaml, under proctor.agent
    action: {format: tag, tag: guess, field: number, type: integer}
    """,
    cost=Cost.RESETS,
    needs=("starts_and_resets",),
)
async def agent_fits(subject: CheckSubject) -> CheckFinding:
    """Render the template on a real observation, and compare the fields that replies fill with the action class.

    With tools: they can be listed, the action accepts their names and an arguments object, and every choice listed as
    legal can be called. The first replies of `gold` and `teacher` must parse.
    """
    agent, schema = subject.manifest.proctor.agent, subject.server.action_schema
    async with subject.server.session() as session:
        opening, offered = await subject.open(session, subject.tasks(2)[0])
        state = await session.state(timeout=subject.timeout) if subject.scripts else {}
    fields = listed(opening.fields, 20)
    text, problems, spec = "", list[str](), agent.action
    if (filled := spec.filled_fields) is not None:
        known = [name for name in schema.get("properties", {}) if name != "metadata"]
        others = [name for name in schema.get("required", []) if name not in {*filled, "metadata"}]
        if missing := sorted(filled - set(known)):
            field = f"`agent.action.field` is `{spec.field}`"
            field = field if spec.field in missing else f"Replies fill {listed(missing)}"
            problems.append(f"{field}, but the action class has no such field; it has: {listed(known)}.")
        elif others:
            problems.append(
                f"The action class also requires {listed(others)}, which a `{spec.format}` reply never fills."
            )
    try:
        text = render_observation(agent.observation, opening.fields)
    except ValueError as error:
        problems.append(f"{error}. The observation has: {fields}.")
    if agent.action.choices and not isinstance(opening.fields.get(agent.action.choices), list):
        problems.append(
            f"`agent.action.choices` is `{agent.action.choices}`, but the observation has no list of that name;"
            f" it has: {fields}."
        )
    tools: Sequence[Tool] = ()
    try:
        if isinstance(agent.action.tools, str):
            found = offered if agent.action.discover else opening.fields.get(agent.action.tools)
            if not found:
                raise ToolsUnusable(f"the observation lists none under `{agent.action.tools}`")
            tools = read_tools(found)
        else:
            tools = agent.action.tools or ()
    except ToolsUnusable as error:
        problems.append(f"The tools cannot be used: {error}.")
    else:
        problems += _tool_problems(subject, opening, tools)
        scripts = state.get("scripts")
        for name in [name for name in subject.scripts if name in {"gold", "teacher"}]:  # they play well
            first = scripts.get(name) if isinstance(scripts, dict) else None
            if isinstance(first, str) and (problem := parse_reply(agent.action, first, tools).problem):
                problems.append(f"Proctor would refuse the first reply of `{name}`: {problem}")
    if problems:
        return failed(" ".join(problems), problems=problems)
    if not text.strip():
        return warned("The template renders, but the first observation is an empty text.")
    callable_tools = f"; {len(tools)} tools can be called: {listed([tool.name for tool in tools])}" if tools else ""
    evidence = f"The template renders ({len(text)} characters) and the action's fields exist{callable_tools}."
    return passed(evidence, text=text[:500])


def _tool_problems(subject: CheckSubject, opening: Observation, tools: Sequence[Tool]) -> list[str]:
    spec, schema = subject.manifest.proctor.agent.action, subject.server.action_schema
    if spec.format != "tool":
        return []
    properties = schema.get("properties", {})
    problems = []
    if refused := [tool.name for tool in tools if not fits(properties.get(spec.field, {}), tool.name, schema)]:
        problems.append(f"The action's `{spec.field}` does not accept the tools {listed(refused)}.")
    if not fits(properties.get(spec.arguments, {}), {}, schema):
        problems.append(f"The action's `{spec.arguments}` does not accept an object with the arguments of a call.")
    legal = opening.fields.get(spec.choices) if spec.choices else None
    for choice in legal if isinstance(legal, list) else ():
        if isinstance(choice, dict) and isinstance(choice.get("arguments", {}), dict):
            problem = Call(str(choice.get("name")), choice.get("arguments", {})).problem(tools)
        else:
            problem = "a choice is `{name, arguments}`."
        if problem is not None:
            return [*problems, f"`{spec.choices}` lists {clipped(choice)} as legal: {problem}"]
    return problems


@Check(
    label="Finite rewards",
    sentence="Every step returns finite numbers in the reward columns that the manifest declares.",
    advice="Return every declared column in each step, and guard divisions and logarithms.",
    example="""
    @column
    def accuracy(self) -> float:
        return self._right / self._asked if self._asked else 0.0
    """,
    cost=Cost.EPISODES,
    needs=("starts_and_resets", "agent_fits"),
)
async def rewards_finite(subject: CheckSubject) -> CheckFinding:
    """Play random legal actions on 24 tasks per level. No value may be NaN, infinite or missing."""
    rollouts = await subject.rollouts("random")
    rejected = ("reward ", "metadata.rewards ", "the manifest declares ")  # by the wire and the engine
    broken = [rollout for rollout in rollouts if (rollout.error_message or "").startswith(rejected)]
    if broken:
        evidence = f"In {len(broken)} of {len(rollouts)} episodes of random legal play: {broken[0].error_message}."
        return failed(evidence, broken)
    rows = [step.rewards for rollout in rollouts for step in rollout.steps if step.action is not None]
    if not rows:
        return skipped("No episode of random legal play completed a step.")
    count = sum(len(row) for row in rows)
    return passed(f"{count} values in {len(rows)} steps of {len(rollouts)} episodes: all are finite numbers.")


@Check(
    label="Whole episodes",
    sentence="Random legal play completes whole episodes without an error.",
    advice="Fix the quoted error, and set `done` when the task is over.",
    example="""
    def step(self, action, timeout_s=None, **kwargs):
        self._turns += 1
        done = self._is_solved(action) or self._turns >= MAX_TURNS
        return self.rewarded(self._observe(done=done))
    """,
    cost=Cost.STORED,
    needs=("starts_and_resets", "agent_fits", "rewards_finite"),
)
async def steps_and_ends(subject: CheckSubject) -> CheckFinding:
    """Read the episodes of random legal play. None may fail; warns if the environment ends none."""
    rollouts = await subject.rollouts("random")
    broken = [rollout for rollout in rollouts if not rollout.is_completed]
    if broken:
        [(error, count)] = Counter(f"{each.error_kind}: {each.error_message}" for each in broken).most_common(1)
        return failed(
            f"{len(broken)} of {len(rollouts)} episodes of random legal play broke. Most often ({count}×) {error}",
            broken,
            errors=[str(rollout.error_message) for rollout in broken[:5]],
        )
    turns = [len(rollout.steps) for rollout in rollouts]
    ends = Counter(str(rollout.stop_reason) for rollout in rollouts)
    counts = ", ".join(f"{reason} {count}×" for reason, count in ends.most_common())
    summary = f"{len(rollouts)} episodes of random legal play, {min(turns)} to {max(turns)} turns; ended by {counts}"
    if not ends[StopReason.DONE]:
        return warned(f"{summary}. The environment ended none of them.", rollouts, ends=dict(ends))
    return passed(f"{summary}.", rollouts, ends=dict(ends), mean_turns=sum(turns) / len(turns))


@Check(
    label="Observation schema",
    sentence="Every observation has the fields and types that its class declares.",
    advice="Declare every field of the observation class with its type.",
    example="""
    class GuessObservation(Observation):
        message: str
        guesses_left: int
        hint: str | None = None  # not in every observation
    """,
    cost=Cost.REPLAYS,
)
async def observation_schema(subject: CheckSubject) -> CheckFinding:
    """Compare all fields and types of 8 episodes with the server's schema, exactly. Undeclared fields warn."""
    schema: Schema = subject.server.observation_schema
    properties = schema.get("properties", {})
    if not properties:
        return warned("The server declares no observation fields.")
    fields = {name: inner for name, inner in properties.items() if name not in {"metadata", "done", "reward"}}
    samples = (await subject.completed("random"))[: subject.replay_limit(8)]
    episodes = [await subject.stored_replay(rollout) for rollout in samples]
    for number, response in itertools.chain.from_iterable(enumerate(episode) for episode in episodes):
        for name, inner in fields.items():
            problem = ""
            # a reset may answer with another class, without the fields of a step, as MCP packages do
            if number and name in schema.get("required", []) and name not in response.fields:
                problem = f"`{name}` is missing"
            elif name in response.fields and not fits(inner, response.fields[name], schema):
                problem = f"`{name}` is {clipped(response.fields[name])}, not {_type_name(inner)}"
            if problem:
                return failed(f"An observation does not match its class: {problem}.", samples, schema=schema)
    sent = {name for episode in episodes for response in episode for name in response.fields}
    if extra := sorted(sent - set(properties)):
        return warned(f"Sent, but not declared by the observation class: {listed(extra)}.", samples)
    return passed(
        f"{sum(map(len, episodes))} observations of {len(samples)} episodes have the declared fields and types:"
        f" {listed(sorted(fields), 12)}."
    )


def fits(schema: object, value: object, root: Schema, depth: int = 0) -> bool:
    """Compare a value with a JSON schema by type, choice and enum; everything else fits."""
    if not isinstance(schema, dict) or depth > 6:
        return True
    if isinstance(reference := schema.get("$ref"), str):
        return fits(root.get("$defs", {}).get(reference.rpartition("/")[2]), value, root, depth + 1)
    if isinstance(branches := schema.get("anyOf"), list):
        return any(fits(branch, value, root, depth + 1) for branch in branches)
    if isinstance(options := schema.get("enum"), list):
        return value in options
    kind = schema.get("type")
    is_other_bool = isinstance(value, bool) and kind != "boolean"
    if isinstance(kind, str) and kind in JSON_TYPES and (is_other_bool or not isinstance(value, JSON_TYPES[kind])):
        return False
    if isinstance(value, list):
        return all(fits(schema.get("items"), item, root, depth + 1) for item in value[:50])
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return all(fits(properties.get(name), item, root, depth + 1) for name, item in value.items())
    return True


def _type_name(schema: Schema) -> str:
    if isinstance(branches := schema.get("anyOf"), list):
        return " or ".join(_type_name(branch) for branch in branches)
    return str(schema.get("type") or schema.get("enum") or "the declared type")
