"""Scripts and baselines reply in the agent's format, legally where they can."""

from typing import Any

import pytest

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import parse_reply
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import PolicyKind, Split
from tests.rollouts.world import make_manifest
from workers.policies import make_policy
from workers.policies.base import EpisodeStart, Turn
from workers.policies.scripted import NoSuchScript, ScriptedPolicy


async def _replies(
    policy: ScriptedPolicy,
    manifest: Manifest,
    *,
    observation: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    scripts: dict[str, str] | None = None,
    turns: int = 1,
    seed: int = 1,
) -> list[str]:
    player = await policy.begin(EpisodeStart(task_of(manifest, Split.TRAIN, 0), manifest, 0, seed))
    schema = {"properties": properties or {}, "$defs": {"Side": {"enum": ["left", "right"], "type": "string"}}}
    turn = Turn(0, [], "0 of 3", observation or {}, scripts or {}, schema, 64)
    return [(await player.act(turn)).text for _ in range(turns)]


async def test_random_chooses_among_the_legal_values() -> None:
    replies = await _replies(ScriptedPolicy("random"), make_manifest(), observation={"legal": [4, 7]}, turns=50)
    assert set(replies) == {"<move>4</move>", "<move>7</move>"}


async def test_random_keeps_to_the_schema_where_nothing_is_listed() -> None:
    properties = {"add": {"type": "integer", "minimum": 3, "exclusiveMaximum": 6}}
    replies = await _replies(ScriptedPolicy("random"), make_manifest(), properties=properties, turns=100)
    assert set(replies) == {f"<move>{number}</move>" for number in (3, 4, 5)}


async def test_random_and_constant_fill_every_field_of_a_json_action() -> None:
    manifest = make_manifest(agent={"action": {"format": "json"}})
    properties = {
        "side": {"$ref": "#/$defs/Side"},
        "speed": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 1}]},
        "loud": {"type": "boolean"},
        "name": {"type": "string"},
        "tags": {"type": "array"},
        "metadata": {"type": "object"},
    }
    for script in ("random", "constant"):
        [reply] = await _replies(ScriptedPolicy(script), manifest, properties=properties)
        action = parse_reply(manifest.proctor.agent.action, reply).action
        assert action is not None
        assert set(action) == {"side", "speed", "loud", "name", "tags"}
        assert action["side"] in {"left", "right"}
        assert 0 <= action["speed"] <= 1


async def test_random_is_the_same_for_the_same_seed() -> None:
    options = {"observation": {"legal": list(range(1000))}, "turns": 5}
    first = await _replies(ScriptedPolicy("random"), make_manifest(), **options, seed=3)
    assert first == await _replies(ScriptedPolicy("random"), make_manifest(), **options, seed=3)
    assert first != await _replies(ScriptedPolicy("random"), make_manifest(), **options, seed=4)


async def test_constant_repeats_the_first_legal_value_or_its_text() -> None:
    policy = ScriptedPolicy("constant")
    assert await _replies(policy, make_manifest(), observation={"legal": [4, 7]}, turns=3) == ["<move>4</move>"] * 3
    assert await _replies(ScriptedPolicy("constant", "hm"), make_manifest(), turns=2) == ["hm", "hm"]


@pytest.mark.parametrize(("script", "reply"), [("empty", ""), ("echo", "0 of 3"), ("repeat", "I will win this. " * 20)])
async def test_the_others_read_nothing(script: str, reply: str) -> None:
    assert await _replies(ScriptedPolicy(script), make_manifest()) == [reply]


async def test_a_script_replies_what_the_state_states() -> None:
    scripts = {"gold": "<move>2</move>", "teacher": "<move>1</move>"}
    assert await _replies(ScriptedPolicy("teacher"), make_manifest(), scripts=scripts) == ["<move>1</move>"]
    with pytest.raises(NoSuchScript, match="no script 'best'; it offers: gold, teacher"):
        await _replies(ScriptedPolicy("best"), make_manifest(), scripts=scripts)


def test_policies_are_made_from_rows() -> None:
    assert isinstance(make_policy(PolicyKind.SCRIPTED, {"script": "gold"}), ScriptedPolicy)
    with pytest.raises(ValueError, match="kind human cannot be made here"):
        make_policy(PolicyKind.HUMAN, {})
