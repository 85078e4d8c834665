"""Policies without a model: the environment's own scripts (`gold`, `teacher`, …) and baselines that read nothing.

A trained policy is only worth something beside these.
"""

import random
from collections.abc import Callable
from typing import Any

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply
from backend.domain.environments.tools import Tool
from backend.domain.errors import PolicyError
from workers.policies.base import EpisodeStart, Player, Reply, TokenTrace, Turn
from workers.policies.schema_values import first_value, followed, random_value

REPEATED = "I will win this. "


class NoSuchScript(PolicyError):
    """The environment offers no such script."""

    is_retryable = False


class ScriptedPolicy:
    """`script` is a baseline's name or the name of a script in the environment's state."""

    def __init__(self, script: str, constant: str | None = None) -> None:
        self.script = script
        self.constant = constant

    async def begin(self, start: EpisodeStart) -> Player:
        spec = start.manifest.proctor.agent.action
        match self.script:
            case "random":
                chance = random.Random(start.seed)
                return _Baseline(lambda turn: write_reply(spec, _random_action(spec, turn, chance)))
            case "constant":
                return _Baseline(_constant(spec, self.constant))
            case "empty":
                return _Baseline(lambda turn: "")
            case "echo":
                return _Baseline(lambda turn: turn.text)
            case "repeat":
                return _Baseline(lambda turn: REPEATED * 20)
            case script:
                return _Scripted(script)

    async def aclose(self) -> None:
        """Nothing to close."""


class _Baseline:
    wants_scripts = False

    def __init__(self, reply: Callable[[Turn], str]) -> None:
        self._reply = reply

    async def act(self, turn: Turn) -> Reply:
        return _counted(self._reply(turn))

    def trace(self) -> TokenTrace | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


class _Scripted(_Baseline):
    """Replies what the environment's state says."""

    wants_scripts = True

    def __init__(self, script: str) -> None:
        self._script = script
        super().__init__(self._look_up)

    def _look_up(self, turn: Turn) -> str:
        reply = turn.scripts.get(self._script)
        if not isinstance(reply, str):
            offered = ", ".join(sorted(turn.scripts)) or "none"
            raise NoSuchScript(f"the environment's state offers no script {self._script!r}; it offers: {offered}")
        return reply


def _counted(text: str) -> Reply:
    """Words stand in for tokens, so that lengths can be compared among scripts."""
    return Reply(text, tokens_out=len(text.split()))


def _constant(spec: ActionSpec, constant: str | None) -> Callable[[Turn], str]:
    """The given text, or the first action that was legal at the start, again and again."""
    first: list[str] = [] if constant is None else [constant]

    def reply(turn: Turn) -> str:
        if not first:
            first.append(write_reply(spec, _first_action(spec, turn)))
        return first[0]

    return reply


def _choices(spec: ActionSpec, turn: Turn) -> list[Any]:
    found = turn.observation.get(spec.choices) if spec.choices else None
    return found if isinstance(found, list) else []


def _random_action(spec: ActionSpec, turn: Turn, chance: random.Random) -> dict[str, Any]:
    if spec.field and (choices := _choices(spec, turn)):
        return _chosen(spec, chance.choice(choices))
    if spec.format == "tool":
        tool = chance.choice(turn.tools)
        return _call(spec, tool, {name: random_value(s, chance) for name, s in _parameters(tool, chance)})
    return {name: random_value(schema, chance) for name, schema in _fields(spec, turn)}


def _first_action(spec: ActionSpec, turn: Turn) -> dict[str, Any]:
    if spec.field and (choices := _choices(spec, turn)):
        return _chosen(spec, choices[0])
    if spec.format == "tool":
        tool = turn.tools[0]
        return _call(spec, tool, {name: first_value(s) for name, s in _parameters(tool)})
    return {name: first_value(schema) for name, schema in _fields(spec, turn)}


def _chosen(spec: ActionSpec, choice: Any) -> dict[str, Any]:
    """With tools, what may be done now is listed as calls."""
    if spec.format == "tool" and isinstance(choice, dict):
        return {spec.field or "": choice.get("name"), spec.arguments: choice.get("arguments") or {}}
    return {spec.field or "": choice}


def _call(spec: ActionSpec, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    return {spec.field or "": tool.name, spec.arguments: arguments}


def _parameters(tool: Tool, chance: random.Random | None = None) -> list[tuple[str, dict[str, Any]]]:
    """The arguments that a call must have; by chance those that it may have, too."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    return [
        (name, followed(schema, tool.parameters))
        for name, schema in properties.items()
        if isinstance(schema, dict) and (name in required or (chance is not None and chance.random() < 0.5))
    ]


def _fields(spec: ActionSpec, turn: Turn) -> list[tuple[str, dict[str, Any]]]:
    """The action's fields that a reply fills, with their schemas; references are followed."""
    properties: dict[str, Any] = turn.action_schema.get("properties", {})
    if spec.field:
        schema = {"type": spec.type} | followed(properties.get(spec.field, {}), turn.action_schema)
        return [(spec.field, schema)]
    return [(name, followed(s, turn.action_schema)) for name, s in properties.items() if name != "metadata"]
