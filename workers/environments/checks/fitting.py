"""Does the manifest's agent block fit the package: its template, the action's fields, its tools, its scripts?"""

from collections.abc import Sequence
from typing import Any

from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.environments.tools import Call, Tool, ToolsUnusable, read_tools
from workers.environments.checks.base import Check, Finding, clipped, failed, listed, passed, warned
from workers.environments.checks.schemas import fits
from workers.environments.checks.subject import Subject
from workers.environments.client import Observation

ABLE = ("gold", "teacher")
"""Scripts that play well, so that their replies must be readable."""


async def _fits(subject: Subject) -> Finding:
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
    """Those of the manifest, or those that the environment lists. Raises ToolsUnusable."""
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
    """What a good script writes first can be read, and is a call that its tool's schema takes."""
    scripts = state.get("scripts")
    if not isinstance(scripts, dict):
        return []
    problems = []
    for name in [name for name in subject.scripts if name in ABLE and isinstance(scripts.get(name), str)]:
        problem = parse_reply(subject.manifest.proctor.agent.action, scripts[name], tools).problem
        if problem:
            problems.append(f"Proctor would refuse what `{name}` writes first: {problem}")
    return problems


FITS = Check(
    "agent_fits",
    "The manifest's agent block fits: its template, the action's fields, its tools, and what its scripts write.",
    _fits,
    needs=("starts_and_resets",),
)
