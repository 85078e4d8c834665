"""Policies without a model: the environment's own scripts (`gold`, `teacher`, …), baselines that a trained policy must
beat, and stored replies, given again for replays on another version and to continue an episode by hand."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply
from backend.domain.errors import PolicyError
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn

Schema = dict[str, Any]
BASELINES = frozenset({"random", "constant", "empty", "echo", "repeat"})
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DEFAULT_RANGE = 100  # range of numbers if the schema sets no maximum
MAX_ITEMS = 8


class NoSuchScript(PolicyError):
    """The environment offers no such script."""

    is_retryable = False


class OutOfReplies(PolicyError):
    """All stored replies were used."""

    is_retryable = False


@dataclass
class ReplayPlayer(Player):
    """Gives the replies in their order, then raises OutOfReplies."""

    replies: Sequence[Reply]

    async def act(self, turn: Turn) -> Reply:
        if turn.index >= len(self.replies):
            raise OutOfReplies
        return replace(self.replies[turn.index])


@dataclass
class ReplayPolicy(Policy):
    replies: Sequence[Sequence[Reply]] | Mapping[int, Sequence[Reply]]  # of each member of a group

    async def begin(self, start: EpisodeStart) -> Player:
        return ReplayPlayer(self.replies[start.member])


@dataclass
class ScriptedPolicy(Policy):
    script: str  # a baseline's name or the name of a script in the environment's state
    constant: str | None = None

    async def begin(self, start: EpisodeStart) -> Player:
        spec, chance = start.manifest.proctor.agent.action, random.Random(start.seed)
        return _ScriptedPlayer(self.script, self.constant, spec, chance, wants_scripts=self.script not in BASELINES)


@dataclass
class _ScriptedPlayer(Player):
    script: str
    constant: str | None
    spec: ActionSpec
    chance: random.Random
    wants_scripts: bool

    async def act(self, turn: Turn) -> Reply:
        match self.script:
            case "random":
                text = write_reply(self.spec, _choose_action(self.spec, turn, self.chance))
            case "constant":
                if self.constant is None:
                    self.constant = write_reply(self.spec, _choose_action(self.spec, turn))
                text = self.constant
            case "empty":
                text = ""
            case "echo":
                text = turn.text
            case "repeat":
                text = "I will win this. " * 20
            case script if isinstance(turn.scripts.get(script), str):
                text = turn.scripts[script]
            case script:
                offered = ", ".join(sorted(turn.scripts)) or "none"
                raise NoSuchScript(f"the environment's state offers no script {script!r}; it offers: {offered}")
        return Reply(text, tokens_out=len(text.split()))  # words, so that the lengths of scripts can be compared


def _choose_action(spec: ActionSpec, turn: Turn, chance: random.Random | None = None) -> dict[str, Any]:
    """Return a random action, or the first one without `chance`: a listed legal one, else one made from the schema."""
    listed = turn.observation.get(spec.choices) if spec.choices else None
    if spec.field and isinstance(listed, list) and listed:
        choice = chance.choice(listed) if chance else listed[0]
        if spec.format == "tool" and isinstance(choice, dict):
            return {spec.field: choice.get("name"), spec.arguments: choice.get("arguments") or {}}
        return {spec.field: choice}
    if spec.format == "tool":
        tool = chance.choice(turn.tools) if chance else turn.tools[0]
        required = tool.parameters.get("required", [])
        parameters = {
            name: resolve_schema(schema, tool.parameters)
            for name, schema in tool.parameters.get("properties", {}).items()
            if isinstance(schema, dict) and (name in required or (chance is not None and chance.random() < 0.5))
        }
        arguments = {name: schema_value(schema, chance) for name, schema in parameters.items()}
        return {spec.field or "": tool.name, spec.arguments: arguments}
    properties: dict[str, Schema] = turn.action_schema.get("properties", {})
    if spec.field:
        own = resolve_schema(properties.get(spec.field, {}), turn.action_schema)
        return {spec.field: schema_value({"type": spec.type} | own, chance)}
    fields = {name: resolve_schema(schema, turn.action_schema) for name, schema in properties.items()}
    return {name: schema_value(schema, chance) for name, schema in fields.items() if name != "metadata"}


def resolve_schema(schema: Schema, root: Schema) -> Schema:
    """Follow `$ref` and the first branch of `anyOf` that is not null."""
    if reference := schema.get("$ref"):
        return dict(root.get("$defs", {}).get(str(reference).rpartition("/")[2], {}))
    for branch in schema.get("anyOf", []):
        if branch.get("type") != "null":
            return resolve_schema(branch, root)
    return schema


def schema_value(schema: Schema, chance: random.Random | None = None) -> object:
    """Return a random value that the schema allows, or the first one without `chance`."""
    if options := list(schema.get("enum") or ([schema["const"]] if "const" in schema else [])):
        return chance.choice(options) if chance else options[0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), None)
    match kind:
        case "integer" | "number":
            step = 1 if kind == "integer" else 0
            low = schema.get("minimum", schema.get("exclusiveMinimum", -step) + step)
            high = schema.get("maximum", schema.get("exclusiveMaximum", low + DEFAULT_RANGE + step) - step)
            if chance is None:
                return low
            return chance.randint(round(low), round(high)) if step else chance.uniform(low, high)
        case "boolean":
            return chance is not None and chance.random() < 0.5
        case "array":
            items = schema.get("items")
            count = min(int(schema.get("minItems", 0)), MAX_ITEMS) + (chance.randint(0, 1) if chance else 0)
            return [schema_value(items if isinstance(items, dict) else {}, chance) for _ in range(count)]
        case "object":
            properties = schema.get("properties", {})
            parts = {name: properties.get(name) for name in schema.get("required", [])}
            return {name: schema_value(part if isinstance(part, dict) else {}, chance) for name, part in parts.items()}
        case _:
            return "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, 16))) if chance else "a"
