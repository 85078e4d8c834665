"""An endpoint that speaks OpenAI's API, in good and in every bad mood."""

import re
import time

import pytest

from backend.domain.errors import PolicyError
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import ErrorKind, StopReason
from backend.settings import get_settings
from tests.policies.endpoint import KEY, Answer, ask, break_off, completion, error, hang, json, raw, serving
from tests.rollouts.world import World, plans, play
from workers.policies.openai_api import Endpoint, EndpointGaveUp, EndpointRefused, OpenAiPolicy


async def test_it_asks_with_everything_that_was_chosen() -> None:
    async with serving(completion()) as endpoint:
        sampling = Sampling(temperature=0.7, top_p=0.9)
        reply = await ask(endpoint.url, sampling=sampling, extra={"chat_template_kwargs": {"thinking": False}})
    assert (reply.text, reply.tokens_in, reply.tokens_out, reply.is_truncated) == ("<move>1</move>", 20, 5, False)
    assert endpoint.bodies == [
        {
            "model": "small",
            "messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "0 of 3"}],
            "temperature": 0.7,
            "top_p": 0.9,
            "max_tokens": 64,
            "seed": 5,
            "chat_template_kwargs": {"thinking": False},
        }
    ]
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 4200 tokens.",
        "the request exceeds the available context size (4096 tokens), try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ],
)
async def test_a_conversation_that_the_model_cannot_hold_ends_the_episode_and_a_first_prompt_is_a_limit(
    message: str,
) -> None:
    async with serving(completion(), error(400, message)) as endpoint:
        policy = OpenAiPolicy(Endpoint(endpoint.url, "small", KEY), Sampling())
        [rollout] = await play(World(), policy, plans(1))
        [refused] = await play(World(), policy, plans(1))
        await policy.aclose()
    assert (rollout.stop_reason, len(rollout.steps)) == (StopReason.CONTEXT_FULL, 1)
    assert (refused.error_kind, len(endpoint.bodies)) == (ErrorKind.LIMIT, 3)
    assert "the first prompt is too long" in str(refused.error_message)


async def test_text_that_utf8_cannot_say_is_asked_all_the_same() -> None:
    async with serving(completion()) as endpoint:
        await ask(endpoint.url, text="half a pair: \ud800")
    assert endpoint.bodies[0]["messages"][1]["content"] == "half a pair: \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (completion(""), ""),
        (completion(None), ""),
        (completion(None, refusal="I will not."), "I will not."),
        (completion([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]), "one two"),
    ],
    ids=["empty", "null", "refusal", "parts"],
)
async def test_an_empty_or_unusual_text_is_an_answer(answer: Answer, text: str) -> None:
    async with serving(answer) as endpoint:
        assert (await ask(endpoint.url)).text == text


async def test_a_reply_that_hit_the_limit_is_marked() -> None:
    async with serving(completion("<mo", finish="length")) as endpoint:
        assert (await ask(endpoint.url)).is_truncated


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_endpoint_is_asked_again(status: int) -> None:
    async with serving(error(status), error(status), completion()) as endpoint:
        assert (await ask(endpoint.url)).text == "<move>1</move>"
    assert len(endpoint.bodies) == 3


async def test_it_waits_as_long_as_the_endpoint_says() -> None:
    async with serving(error(429, Retry_After="0.3"), completion()) as endpoint:
        began = time.monotonic()
        await ask(endpoint.url)
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            error(429, "slow down"),
            "the endpoint answered HTTP 429 (application/json, 33 bytes). Lower the request limit or try again later."
            " (3 tries)",
        ),
        (
            error(500, "boom"),
            "the endpoint answered HTTP 500 (application/json, 28 bytes). The server failed; its own log has the"
            " reason. (3 tries)",
        ),
        (raw(b"", 502), "the endpoint answered HTTP 502 (application/json, 0 bytes)."),
        (
            raw(b"<html>\n<title>Sign in</title>", content_type="text/html"),
            "the endpoint answered 200 with something that is not JSON (29 bytes) (3 tries)",
        ),
        (
            raw(b'{"choices": [{"mess'),
            "the endpoint answered 200 with something that is not JSON (19 bytes) (3 tries)",
        ),
        (
            json({"choices": []}),
            "the endpoint answered JSON that is no chat completion: it has no choices (3 tries)",
        ),
        (json([1]), "the endpoint answered JSON that is no chat completion: it is not an object (3 tries)"),
        (completion(42), "the endpoint answered JSON that is no chat completion"),
        (hang, "the endpoint did not answer within 0.05 s (3 tries)"),
        (break_off, "the endpoint broke off in the middle of its answer (3 tries)"),
        (raw(b"x" * 9_000_000), "the endpoint answered more than 8,000,000 bytes (3 tries)"),
    ],
    ids=["429", "500", "nothing", "html", "truncated", "no-choice", "list", "number", "slow", "broken-off", "flood"],
)
async def test_an_endpoint_that_does_not_recover_fails_the_rollout(answer: Answer, message: str) -> None:
    async with serving(answer) as endpoint:
        with pytest.raises(EndpointGaveUp, match=re.escape(message)):
            await ask(endpoint.url, timeout_seconds=0.05 if answer is hang else 2)
    assert len(endpoint.bodies) == 3


async def test_an_endpoint_that_is_down_fails_the_rollout() -> None:
    async with serving(completion()) as endpoint:
        url = endpoint.url
    with pytest.raises(EndpointGaveUp, match=r"cannot be reached.*\(3 tries\)"):
        await ask(url)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 302])
async def test_a_refusal_is_final(status: int) -> None:
    async with serving(error(status, "no such model")) as endpoint:
        with pytest.raises(EndpointRefused, match=f"the endpoint answered HTTP {status}"):
            await ask(endpoint.url)
    assert len(endpoint.bodies) == 1
    assert not EndpointRefused.is_retryable


async def test_the_key_is_in_no_message() -> None:
    async with serving(error(401, f"Incorrect API key provided: {KEY}.")) as endpoint:
        with pytest.raises(PolicyError, match="The key was not accepted") as caught:
            await ask(endpoint.url)
    assert KEY not in str(caught.value)


async def test_newer_models_get_the_limit_by_its_newer_name() -> None:
    refusal = error(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
    async with serving(refusal, completion()) as endpoint:
        await ask(endpoint.url)
    assert endpoint.bodies[1]["max_completion_tokens"] == 64
    assert "max_tokens" not in endpoint.bodies[1]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"]
)
async def test_private_addresses_are_refused_where_the_installation_says_so(
    host: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    get_settings.cache_clear()
    request.addfinalizer(get_settings.cache_clear)
    async with serving(completion()) as endpoint:
        with pytest.raises(EndpointRefused, match="does not connect to it"):
            await ask(endpoint.url.replace("127.0.0.1", host))
    assert endpoint.bodies == []
