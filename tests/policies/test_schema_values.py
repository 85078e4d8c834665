"""Arguments made from a schema satisfy it: by chance, and the first."""

import random
from typing import Any

import pytest

from backend.domain.environments.tools import Tool
from tests.rollouts.tools_world import tool_manifest
from workers.policies.base import EpisodeStart, Turn
from workers.policies.scripted import ScriptedPolicy, schema_value

SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 3, "exclusiveMaximum": 6},
    {"type": "number", "minimum": -1.5, "maximum": -0.5},
    {"type": ["null", "integer"], "minimum": 1},
    {"enum": ["a", 2, None]},
    {"const": "fixed"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    {"type": "array", "minItems": 1},
    {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": ["x"]}}, "b": {"type": "string"}},
        "required": ["a"],
    },
    {"type": "object"},
    {},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_values_satisfy_their_schema(schema: dict[str, Any]) -> None:
    tool = Tool(name="t", parameters={"type": "object", "properties": {"value": schema}})
    chance = random.Random(0)
    for value in [schema_value(schema), *(schema_value(schema, chance) for _ in range(50))]:
        assert tool.problem({"value": value}) is None


def test_a_schema_that_asks_for_a_billion_items_gets_few() -> None:
    assert len(schema_value({"type": "array", "minItems": 10**9}, random.Random(0)))  # type: ignore[arg-type] < 20


@pytest.mark.parametrize("script", ["random", "constant"])
async def test_calls_that_are_listed_as_legal_are_chosen_among(script: str) -> None:
    manifest = tool_manifest(choices="legal")
    legal = [{"name": "add", "arguments": {"number": 2}}, {"name": "finish"}]
    task: Any = None
    player = await ScriptedPolicy(script).begin(EpisodeStart(task, manifest, 0, 1))
    turn = Turn(0, [], "", {"legal": legal}, {}, {}, 64, manifest.proctor.agent.action.tools)  # type: ignore[arg-type]
    replies = {(await player.act(turn)).text for _ in range(30)}
    add, finish = (
        '<tool_call>{"name": "add", "arguments": {"number": 2}}</tool_call>',
        '<tool_call>{"name": "finish", "arguments": {}}</tool_call>',
    )
    assert replies == ({add, finish} if script == "random" else {add})
