"""Reasoning, log-probabilities, token ids, caches and limits: what endpoints return in addition to the answer."""

from typing import Any

import orjson
import pytest

from backend.domain.policies.prices import Limits, Price
from backend.domain.rollouts.rollout import Rollout
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import PolicyKind
from tests.policies.endpoint import KEY, Answer, FakeEndpoint, ask, completion, error, raw, serving
from tests.rollouts.world import World, make_manifest, plans, play
from workers.policies import make_policy
from workers.policies.chat_format import read_completion
from workers.policies.openai_api import Endpoint, OpenAiPolicy


def told(content: str | None = "<move>2</move>", choice: dict[str, Any] | None = None, **body: Any) -> Answer:
    """An answer with further fields of the message, the choice and the whole."""
    message = {"role": "assistant", "content": content, **body.pop("message", {})}
    whole = {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **(choice or {})}], **body}
    return raw(orjson.dumps(whole), 200)


def tokens(*texts: str) -> dict[str, Any]:
    return {"logprobs": {"content": [{"token": text, "logprob": -0.5, "bytes": None} for text in texts]}}


async def episode(*answers: Answer, manifest: Any = None, price: Price | None = None, **options: Any) -> Rollout:
    rollout, _ = await episode_at(*answers, manifest=manifest, price=price, **options)
    return rollout


async def episode_at(
    *answers: Answer, manifest: Any = None, price: Price | None = None, **options: Any
) -> tuple[Rollout, FakeEndpoint]:
    async with serving(*answers) as endpoint:
        where = Endpoint(endpoint.url, "small", KEY, attempts=2, first_wait_seconds=0.001, timeout_seconds=2, **options)
        policy = OpenAiPolicy(where, Sampling())
        [rollout] = await play(World(), policy, plans(1), manifest, max_attempts=1, price=price)
        await policy.aclose()
    return rollout, endpoint


@pytest.mark.parametrize("spelling", ["reasoning_content", "reasoning"])
async def test_reasoning_in_its_own_field_is_kept_apart(spelling: str) -> None:
    rollout, endpoint = await episode_at(told(message={spelling: "Two, <move>1</move>?"}), told("<move>1</move>"))
    assert rollout.messages[2] == {
        "role": "assistant",
        "content": "<move>2</move>",
        "reasoning": "Two, <move>1</move>?",
    }
    assert rollout.steps[0].reply == "<move>2</move>"
    assert endpoint.bodies[1]["messages"][2] == {"role": "assistant", "content": "<move>2</move>"}


async def test_an_endpoint_that_wants_its_reasoning_back_gets_it() -> None:
    _, endpoint = await episode_at(told(message={"reasoning": "Two."}), told("<move>1</move>"), sends_reasoning=True)
    assert endpoint.bodies[1]["messages"][2]["reasoning_content"] == "Two."


async def test_log_probabilities_are_requested_and_kept_by_turn() -> None:
    rollout, endpoint = await episode_at(
        told(choice=tokens("<move>", "2", "</move>")), told("<move>1</move>", tokens("<move>1</move>")), logprobs=True
    )
    assert endpoint.bodies[0]["logprobs"] is True
    assert rollout.token_texts == ["<move>", "2", "</move>", "<move>1</move>"]
    assert (rollout.token_turns, rollout.logprobs) == ([0, 3], [-0.5] * 4)
    assert rollout.completion_token_ids is None


async def test_nothing_is_requested_that_was_not_chosen() -> None:
    rollout, endpoint = await episode_at(told(), told("<move>1</move>"))
    assert "logprobs" not in endpoint.bodies[0]
    assert rollout.token_texts is None


async def test_token_ids_of_turns_that_continue_from_each_other_are_one_sequence() -> None:
    first = told(choice={**tokens("a", "b"), "token_ids": [7, 8]}, prompt_token_ids=[1, 2])
    second = told("<move>1</move>", {**tokens("c"), "token_ids": [9]}, prompt_token_ids=[1, 2, 7, 8, 3, 4])
    rollout, endpoint = await episode_at(first, second, token_ids=True)
    assert endpoint.bodies[0]["return_token_ids"] is True
    assert (rollout.prompt_token_ids, rollout.completion_token_ids) == ([1, 2], [7, 8, 3, 4, 9])
    assert rollout.completion_mask == [1, 1, 0, 0, 1]
    assert rollout.logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5]


async def test_token_ids_of_a_template_that_rewrites_turns_are_kept_as_text() -> None:
    first = told(choice={**tokens("a", "b"), "token_ids": [7, 8]}, prompt_token_ids=[1, 2])
    second = told("<move>1</move>", {**tokens("c"), "token_ids": [9]}, prompt_token_ids=[1, 2, 5, 3, 4])
    rollout = await episode(first, second, token_ids=True)
    assert (rollout.completion_token_ids, rollout.token_texts) == (None, ["a", "b", "c"])


async def test_what_it_costs_counts_the_cache_and_every_attempt() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 600}}
    price = Price(input=1.0, output=10.0, cached_input=0.1)
    rollout = await episode(told(usage=usage), told("<move>1</move>", usage=usage), price=price)
    assert rollout.tokens_cached == 1200
    assert rollout.cost == pytest.approx(2 * (400 * 1.0 + 600 * 0.1 + 100 * 10.0) / 1e6)


async def test_without_a_price_there_is_no_cost() -> None:
    assert (await episode(told(), told("<move>1</move>"))).cost is None


@pytest.mark.slow
async def test_waiting_between_tries_is_no_time_of_the_policy() -> None:
    manifest = make_manifest(episode={"episode_timeout_seconds": 0.6, "step_timeout_seconds": 0.5})
    busy = error(429, **{"Retry-After": "1"})
    rollout = await episode(busy, told(), told("<move>1</move>"), manifest=manifest)
    assert rollout.is_completed, rollout.error_message
    assert rollout.queue_seconds >= 1.0
    assert rollout.policy_seconds < 0.5
    assert rollout.steps[0].queue_seconds >= 1.0


async def test_a_refusal_is_felt_by_all_players_of_the_policy() -> None:
    async with serving(error(429), completion()) as endpoint:
        policy = OpenAiPolicy(Endpoint(endpoint.url, "small", first_wait_seconds=0.001), Sampling())
        before = policy.adaptive_limit.limit
        await play(World(), policy, plans(1))
        assert policy.adaptive_limit.limit < before
        await policy.aclose()


async def test_no_more_calls_at_a_time_than_the_policys_limits() -> None:
    limits: list[int] = []
    async with serving(completion()) as endpoint:
        policy = OpenAiPolicy(Endpoint(endpoint.url, "small", limits=Limits(concurrency=3)), Sampling())
        world = World()
        await play(world, policy, plans(20), concurrency=16, on_limit=limits.append)
        await policy.aclose()
    assert world.most_playing == 3
    assert set(limits) == {3}


def test_a_policys_row_states_all_of_it() -> None:
    configuration = {
        "base_url": "http://x/v1",
        "model": "m",
        "logprobs": True,
        "sends_reasoning": True,
        "limits": {"concurrency": 7, "requests_per_minute": None},
        "price": {"input": 1, "output": 2},
    }
    policy = make_policy(PolicyKind.OPENAI_API, configuration)
    assert isinstance(policy, OpenAiPolicy)
    assert policy.adaptive_limit.ceiling == 7


async def test_parts_of_a_content_and_a_refusal_are_text() -> None:
    parts = orjson.dumps({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"text": "b"}]}}]})
    assert read_completion(parts).reply.text == "ab"
    assert read_completion(orjson.dumps({"choices": [{"message": {"refusal": "No."}}]})).reply.text == "No."


async def test_a_reply_shows_what_it_waited() -> None:
    async with serving(error(503), completion()) as endpoint:
        reply = await ask(endpoint.url)
    assert 0 < reply.queue_seconds < 1
