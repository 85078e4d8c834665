"""A model's endpoint is a foreign peer: what it replies is checked once, and a lying counter loses no good rollout."""

import json as plain_json
import math
from typing import Any

import pytest

from backend.domain.policies.prices import Limits, Price
from backend.domain.rollouts.rollout import Rollout
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import ErrorKind
from tests.policies.endpoint import Answer, ask, completion, error, raw, serving
from tests.rollouts.world import World, plans, play
from workers.policies.chat_format import MAX_REPLY_CHARACTERS, MAX_TOKENS, NoCompletion, read_completion
from workers.policies.openai_api import Endpoint, EndpointGaveUp, OpenAiPolicy
from workers.policies.throttle import MAX_PAUSE_SECONDS, EndpointThrottle

MOVE = "<move>1</move>"
IMPLAUSIBLE: tuple[Any, ...] = (2**63 - 1, 2**64, 10**30, 2**31, -1, -(2**63), 1.5, "20", [20], {"a": 1}, True)


def _body(*, message: Any = None, usage: Any = None, choice: Any = None, **more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": MOVE} if message is None else message
    return {"choices": [{"index": 0, "message": said, **(choice or {})}], "usage": usage, **more}


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _dump(body: Any) -> bytes:
    return plain_json.dumps(body).encode()


@pytest.mark.parametrize("value", IMPLAUSIBLE, ids=repr)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_an_implausible_count_of_tokens_is_unknown_and_the_reply_counts(name: str, value: Any) -> None:
    honest = {"prompt_tokens": 20, "completion_tokens": 5}
    reply = read_completion(_dump(_body(usage={**honest, name: value}))).reply
    assert reply.text == MOVE
    counts = {"prompt_tokens": reply.tokens_in, "completion_tokens": reply.tokens_out}
    assert counts == {**honest, name: 0}


@pytest.mark.parametrize("usage", [[], "many", 7, {"prompt_tokens": None}, {"prompt_tokens_details": [1]}], ids=repr)
def test_a_malformed_usage_is_unknown(usage: Any) -> None:
    reply = read_completion(_dump(_body(usage=usage))).reply
    assert (reply.text, reply.tokens_in, reply.tokens_out, reply.cached_in) == (MOVE, 0, 0, 0)


def test_more_tokens_from_the_cache_than_were_read_are_unknown() -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 21}}
    reply = read_completion(_dump(_body(usage=usage))).reply
    assert (reply.tokens_in, reply.cached_in) == (20, 0)
    usage["prompt_tokens_details"]["cached_tokens"] = 15  # type: ignore[index]
    assert read_completion(_dump(_body(usage=usage))).reply.cached_in == 15


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        "x",
        {"content": 5},
        {"content": [5]},
        {"content": [{"token": "a"}]},
        {"content": [{"token": 5, "logprob": -1}]},
        {"content": [{"token": "a", "logprob": "low"}]},
        {"content": [{"token": "a", "logprob": math.nan}]},
        {"content": [{"token": "a", "logprob": -math.inf}]},
        {"content": [{"token": "a", "logprob": True}]},
        {"content": [{"token": "a", "logprob": -(10**400)}]},
        {"content": [{"token": "a", "logprob": _deep(500)}]},
    ],
    ids=lambda value: str(value)[:60],
)
def test_malformed_log_probabilities_are_unknown(logprobs: Any) -> None:
    read = read_completion(_dump(_body(choice={"logprobs": logprobs})))
    assert (read.reply.text, read.texts, read.logprobs) == (MOVE, [], [])


@pytest.mark.parametrize("ids", [["7"], [7.0], [-1], [2**31], [True], {"a": 1}, "12", [None]], ids=repr)
def test_malformed_token_ids_are_unknown(ids: Any) -> None:
    read = read_completion(_dump(_body(choice={"token_ids": ids}, prompt_token_ids=[1, 2])))
    assert (read.reply.text, read.ids, read.prompt_ids) == (MOVE, [], [])
    read = read_completion(_dump(_body(choice={"token_ids": [7, 8]}, prompt_token_ids=ids)))
    assert (read.ids, read.prompt_ids) == ([7, 8], [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        b"\xff\xfe",
        b"9" * 5000,
        _dump({}),
        _dump({"choices": None}),
        _dump({"choices": {}}),
        _dump({"choices": []}),
        _dump({"choices": [5]}),
        _dump({"choices": [{}]}),
        _dump({"choices": [{"message": []}]}),
        _dump({"choices": [{"message": "text"}]}),
        _dump(_body(message={"content": 5})),
        _dump(_body(message={"content": {"text": "a"}})),
        _dump(_body(message={"content": [5]})),
        _dump(_body(message={"content": [{"text": 5}]})),
        _dump(_body(message={"content": "x" * (MAX_REPLY_CHARACTERS + 1)})),
        _dump(_body(message={"tool_calls": 5})),
        _dump(_body(message={"tool_calls": [5]})),
        _dump(_body(message={"tool_calls": [{"function": []}]})),
        _dump(_body(message={"tool_calls": [{"function": {"name": 5}}]})),
        _dump(_body(message={"tool_calls": [{"function": {"name": "a", "arguments": {"a": "?"}}}]})).replace(
            b'"?"', b"[" * 1000 + b"]" * 1000
        ),
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
def test_what_is_no_completion_is_a_failure_of_the_endpoint(body: bytes) -> None:
    with pytest.raises(NoCompletion, match="the endpoint"):
        read_completion(body)


@pytest.mark.parametrize("reason", [["length"], {"a": 1}, 5, None, "\x00"], ids=repr)
def test_an_odd_finish_reason_is_no_cut(reason: Any) -> None:
    reply = read_completion(_dump(_body(choice={"finish_reason": reason}))).reply
    assert (reply.text, reply.is_truncated) == (MOVE, False)


def test_text_that_cannot_be_stored_is_replaced_and_the_reply_counts() -> None:
    body = _body(message={"content": f"a\x00b\ud800{MOVE}", "reasoning": "\udfff\x00"})
    reply = read_completion(_dump(body)).reply
    assert reply.text.endswith(MOVE)
    for text in (reply.text, reply.reasoning):
        assert "\x00" not in text
        text.encode()


async def _played(*answers: Answer, tasks: int = 3, **options: Any) -> list[Rollout]:
    async with serving(*answers) as endpoint:
        where = Endpoint(endpoint.url, "m", attempts=2, first_wait_seconds=0.001, timeout_seconds=5, **options)
        policy = OpenAiPolicy(where, Sampling())
        rollouts = await play(
            World(), policy, plans(tasks), concurrency=1, max_attempts=1, price=Price(input=1, output=1)
        )
        await policy.aclose()
    return rollouts


async def test_a_lying_counter_loses_no_rollout_and_fits_the_database() -> None:
    usage = {"prompt_tokens": 2**63 - 1, "completion_tokens": MAX_TOKENS}
    rollouts = await _played(raw(_dump(_body(usage=usage))))
    assert all(rollout.is_completed for rollout in rollouts)
    assert all(rollout.tokens_in == 0 and rollout.tokens_out <= 2**31 - 1 for rollout in rollouts)


@pytest.mark.slow
async def test_a_hostile_reply_fails_its_own_rollout_and_no_other() -> None:
    first, *others = await _played(raw(_deep_call()), raw(_deep_call()), completion(MOVE))
    assert first.error_kind is ErrorKind.POLICY
    assert all(rollout.is_completed for rollout in others)


async def test_a_judge_meets_a_failure_that_it_knows() -> None:
    """Judges ask without an episode around them that would catch anything."""
    async with serving(raw(_deep_call())) as endpoint:
        with pytest.raises(EndpointGaveUp, match="tool_calls"):
            await ask(endpoint.url, attempts=2)


def _deep_call() -> bytes:
    call = {"function": {"name": "a", "arguments": {"a": "?"}}}
    return _dump(_body(message={"tool_calls": [call]})).replace(b'"?"', b"[" * 1000 + b"]" * 1000)


@pytest.mark.parametrize("header", ["²", "9" * 5000, "-1", "nan", ""])
async def test_hostile_limits_in_headers_are_ignored(header: str) -> None:
    limited = raw(_dump(_body()), X_RateLimit_Remaining_Requests=header, X_RateLimit_Reset_Requests=header)
    rollouts = await _played(limited, tasks=1)
    assert rollouts[0].is_completed, rollouts[0].error_message


@pytest.mark.parametrize("header", ["nan", "-inf", "Mon, 01 Jan 0001 00:00:00 -2359", "1e-9", "\x7f"])
async def test_a_hostile_retry_after_is_ignored(header: str) -> None:
    async with serving(error(503, **{"Retry-After": header}), completion(MOVE)) as endpoint:
        assert (await ask(endpoint.url)).text == MOVE


async def test_a_claimed_count_never_stops_the_next_calls_for_longer_than_the_longest_pause() -> None:
    pace = EndpointThrottle(Limits(tokens_per_minute=60))
    await pace.enter()
    pace.completed(0.1, MAX_TOKENS)
    pace.leave()
    assert pace._tokens.reserve(0) <= MAX_PAUSE_SECONDS
