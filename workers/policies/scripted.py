"""Policies without a model: the environment's own scripts (`gold`, `teacher`, …) and baselines that read nothing.

A trained policy is only worth something beside these.
"""

import random
from collections.abc import Callable
from typing import Any

from backend.domain.errors import PolicyError
from backend.domain.manifest import ActionSpec
from backend.domain.prompts import write_reply
from workers.policies.base import EpisodeStart, Player, Reply, TokenTrace, Turn

REPEATED = "I will win this. "
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WIDE = 100
"""Highest number tried where the schema names none."""


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
        return {spec.field: chance.choice(choices)}
    return {name: _random_value(schema, chance) for name, schema in _fields(spec, turn)}


def _first_action(spec: ActionSpec, turn: Turn) -> dict[str, Any]:
    if spec.field and (choices := _choices(spec, turn)):
        return {spec.field: choices[0]}
    return {name: _first_value(schema) for name, schema in _fields(spec, turn)}


def _fields(spec: ActionSpec, turn: Turn) -> list[tuple[str, dict[str, Any]]]:
    """The action's fields that a reply fills, with their schemas; references are followed."""
    properties: dict[str, Any] = turn.action_schema.get("properties", {})
    if spec.field:
        schema = {"type": spec.type} | _followed(properties.get(spec.field, {}), turn.action_schema)
        return [(spec.field, schema)]
    return [(name, _followed(s, turn.action_schema)) for name, s in properties.items() if name != "metadata"]


def _followed(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Through `$ref` and the first real branch of `anyOf`."""
    if reference := schema.get("$ref"):
        return dict(root.get("$defs", {}).get(str(reference).rpartition("/")[2], {}))
    for branch in schema.get("anyOf", []):
        if branch.get("type") != "null":
            return _followed(branch, root)
    return schema


def _random_value(schema: dict[str, Any], chance: random.Random) -> Any:
    if options := schema.get("enum"):
        return chance.choice(options)
    match schema.get("type"):
        case "integer":
            low, high = _bounds(schema)
            return chance.randint(round(low), round(high))
        case "number":
            return chance.uniform(*_bounds(schema))
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return []
        case "object":
            return {}
        case _:
            return "".join(chance.choice(_LETTERS) for _ in range(chance.randint(1, 16)))


def _first_value(schema: dict[str, Any]) -> Any:
    if options := schema.get("enum"):
        return options[0]
    empty: dict[str, Any] = {"boolean": False, "array": [], "object": {}}
    kind = schema.get("type", "string")
    return _bounds(schema)[0] if kind in {"integer", "number"} else empty.get(kind, "a")


def _bounds(schema: dict[str, Any]) -> tuple[float, float]:
    step = 1 if schema.get("type") == "integer" else 0
    low = schema.get("minimum", schema.get("exclusiveMinimum", -step) + step)
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + _WIDE + step) - step)
    return low, high
