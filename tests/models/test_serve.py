"""A local model behind the OpenAI API: the same words as the local policy, to the real client and to ours."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError

from backend.domain.runs.plans import Sampling
from backend.domain.training.configuration import ModelChoice
from tests.models.conftest import SYSTEM
from tests.models.endpoint import served
from tests.models.test_policy import converse, start
from workers.models.build import build_model
from workers.models.chat import ChatTokens
from workers.models.policy import LocalPolicy
from workers.models.serving_batches import BatchSampler
from workers.policies.openai_api import Endpoint, OpenAiPolicy

NEXT = {"role": "user", "content": "O plays 1."}
ASKED = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "You start."}]


@pytest.fixture(scope="module")
def fluent(tokenizer: Any) -> Any:
    """A model that has learned to write moves: what it says survives being text."""
    torch.set_num_threads(1)
    model = build_model(tokenizer, ModelChoice(architecture="llama", context=128), seed=1)
    chat = ChatTokens(tokenizer)
    opening = chat.opening(ASKED)
    told = [[*opening, *chat.reply(f"<move>{n}</move>"), *chat.continuation([NEXT])] for n in range(1, 10)]
    whole = torch.tensor([ids + chat.reply("<move>5</move>") for ids in told])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        model(input_ids=whole, labels=whole).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture
async def address(model: Any, tokenizer: Any) -> AsyncIterator[tuple[str, BatchSampler]]:
    async with served(model, tokenizer) as found:
        yield found


@pytest.fixture
async def client(address: tuple[str, BatchSampler]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=address[0], api_key="any", max_retries=0) as client:
        yield client


async def ask(client: AsyncOpenAI, **wishes: Any) -> Any:
    return await client.chat.completions.create(model="tiny", **{"messages": ASKED, "max_tokens": 8, **wishes})


@pytest.mark.slow
async def test_a_conversation_over_the_wire_is_that_of_the_local_policy(fluent: Any, tokenizer: Any) -> None:
    local = LocalPolicy(fluent, tokenizer, temperature=0)
    here = await converse(await local.begin(start(1)), 4, max_tokens=12)
    await local.aclose()
    async with served(fluent, tokenizer) as (address, _):
        remote = OpenAiPolicy(Endpoint(address, "tiny"), Sampling(temperature=0))
        there = await converse(await remote.begin(start(1)), 4, max_tokens=12)  # type: ignore[arg-type]
        await remote.aclose()
    assert there == here
    assert here[2]["content"].startswith("<move>")


@pytest.mark.slow
async def test_the_openai_client_hears_what_the_local_policy_states(fluent: Any, tokenizer: Any) -> None:
    local = LocalPolicy(fluent, tokenizer, temperature=0)
    here = await converse(await local.begin(start(1)), 3, max_tokens=12)
    await local.aclose()
    async with served(fluent, tokenizer) as (address, _), AsyncOpenAI(base_url=address, api_key="any") as client:
        for turn in (2, 4, 6):
            answer = await ask(client, messages=here[:turn], temperature=0, max_tokens=12)
            assert answer.choices[0].message.content == here[turn]["content"]


async def test_requests_that_come_together_are_one_batch(
    client: AsyncOpenAI, address: tuple[str, BatchSampler]
) -> None:
    answers = await asyncio.gather(*(ask(client, seed=number) for number in range(12)))
    assert address[1].batches <= 3
    assert len({answer.id for answer in answers}) == 12


async def test_the_same_seed_gives_the_same_words_whatever_comes_with_it(client: AsyncOpenAI) -> None:
    alone = await ask(client, seed=7)
    _, beside, _ = await asyncio.gather(ask(client, seed=1), ask(client, seed=7), ask(client, seed=2))
    assert beside.choices[0].message.content == alone.choices[0].message.content
    other = await ask(client, seed=8)
    assert other.choices[0].message.content != alone.choices[0].message.content


async def test_several_choices_and_what_they_cost(client: AsyncOpenAI) -> None:
    answer = await ask(client, n=3, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in answer.choices} <= {"stop", "length"}
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_log_probabilities_are_those_of_the_tokens(client: AsyncOpenAI) -> None:
    answer = await ask(client, logprobs=True, temperature=0)
    told = answer.choices[0].logprobs.content
    assert len(told) in {answer.usage.completion_tokens, answer.usage.completion_tokens - 1}
    assert all(token.logprob <= 0 for token in told)


async def test_a_stream_states_the_same_in_pieces(client: AsyncOpenAI) -> None:
    whole = await ask(client, seed=5)
    stream = await ask(client, seed=5, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_a_stop_sequence_cuts_before_itself_also_in_a_stream(client: AsyncOpenAI) -> None:
    whole = (await ask(client, seed=4, max_tokens=20)).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    cut = await ask(client, seed=4, max_tokens=20, stop=[stop])
    assert cut.choices[0].message.content == whole[: whole.find(stop)]
    assert cut.choices[0].finish_reason == "stop"
    chunks = [chunk async for chunk in await ask(client, seed=4, max_tokens=20, stop=stop, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole[: whole.find(stop)]


async def test_a_conversation_that_fills_the_context_is_refused_with_a_message(client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        await ask(client, messages=[{"role": "user", "content": "O plays 1. " * 200}])
    assert refused.value.code == "context_length_exceeded"
    assert "maximum context length is 128" in refused.value.message


async def test_a_limit_beyond_the_context_is_lowered_to_it(client: AsyncOpenAI) -> None:
    answer = await ask(client, max_tokens=5000, temperature=0)
    assert answer.usage.total_tokens <= 128


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"logprobs": True, "top_logprobs": 5}, "top_logprobs"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ],
)
async def test_what_would_change_the_answer_and_is_not_offered_is_refused(
    client: AsyncOpenAI, wishes: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await ask(client, **wishes)
    assert refused.value.param == param


async def test_models_are_listed_and_others_are_not_found(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(NotFoundError, match="serves 'tiny'"):
        await client.chat.completions.create(model="huge", messages=ASKED)  # type: ignore[arg-type]


async def test_a_token_is_requested_where_one_was_set(model: Any, tokenizer: Any) -> None:
    async with served(model, tokenizer, token="s3cret") as (address, _):
        async with AsyncOpenAI(base_url=address, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(AuthenticationError):
                await ask(stranger)
        async with AsyncOpenAI(base_url=address, api_key="s3cret") as friend:
            assert (await ask(friend)).choices


async def test_a_body_that_is_no_json_is_refused_in_the_same_form(address: tuple[str, BatchSampler]) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        async with session.post(f"{address[0]}/chat/completions", data=b"{") as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
        async with session.get(f"{address[0]}/nowhere") as answer:
            assert answer.status == 404
            assert "error" in await answer.json()
