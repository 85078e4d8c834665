"""A local model where replies are tool calls: canonical text in its chat template, token by token."""

from typing import Any

import pytest

from backend.domain.environments.prompts import render_system
from backend.domain.environments.tools import write_call
from backend.domain.training.configuration import ModelChoice
from tests.rollouts.tools_world import ToolWorld, tool_manifest
from tests.rollouts.world import plans, play
from workers.models.build import build_model, build_tokenizer
from workers.models.chat import ChatTokens
from workers.models.policy import LocalPolicy
from workers.policies.scripted import ScriptedPolicy
from workers.training.example_sources import Teacher

CONTEXT = 1024
MANIFEST = tool_manifest()
ACTION = MANIFEST.proctor.agent.action


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    assert isinstance(ACTION.tools, list)
    calls = [write_call("add", {"number": number}) for number in (1, 2, 3)] + [write_call("finish", {})]
    system = render_system(MANIFEST.proctor.agent, ACTION.tools)
    return build_tokenizer([system] * 20 + calls * 20 + [f"{n} on the shelf" for n in range(6)] * 20, context=CONTEXT)


@pytest.mark.slow
async def test_the_model_reads_the_tools_and_is_reported_that_its_babble_is_no_call(tokenizer: Any) -> None:
    model = build_model(tokenizer, ModelChoice(context=CONTEXT), seed=1)
    policy = LocalPolicy(model, tokenizer)
    [rollout] = await play(ToolWorld(), policy, plans(1, manifest=MANIFEST), MANIFEST)  # type: ignore[arg-type]
    await policy.aclose()
    prompt = tokenizer.decode(rollout.prompt_token_ids)
    assert "Put a number on the shelf" in prompt
    assert "<tool_call>" in prompt
    assert sum(rollout.completion_mask or []) == rollout.tokens_out
    assert "write exactly one" in str(rollout.steps[0].note)


async def test_a_scripts_calls_become_training_examples_exactly_as_they_are_written(tokenizer: Any) -> None:
    chat = ChatTokens(tokenizer)
    [rollout] = await play(ToolWorld(), Teacher("gold", chat), plans(1, manifest=MANIFEST), MANIFEST)  # type: ignore[arg-type]
    assert rollout.columns == {"win": 1.0, "format": 1.0}
    learned = [token for token, own in zip(rollout.completion_token_ids, rollout.completion_mask, strict=True) if own]  # type: ignore[arg-type]
    replies = tokenizer.decode(learned).split(tokenizer.eos_token)
    assert replies[:-1] == [step.reply for step in rollout.steps]


async def test_gold_is_looked_up_in_the_state() -> None:
    [rollout] = await play(ToolWorld(), ScriptedPolicy("gold"), plans(1, manifest=MANIFEST), MANIFEST)  # type: ignore[arg-type]
    assert rollout.columns["win"] == 1.0
