"""The red team's LLM behind a real HTTP endpoint: exploits, hostile and failing endpoints, and its budgets."""

import time

import pytest

from backend.domain.environments.fixtures import Fixture, FixtureKind, exploit_fixture, read_fixture, write_fixture
from backend.domain.environments.manifest import read_manifest
from backend.domain.runs.plans import Sampling
from backend.domain.training.examples import estimate_tokens
from backend.environments.library import load_package
from tests.environments.checks.bent import bent_again
from tests.library.conftest import Serve, serve
from tests.policies.endpoint import KEY, Answer, FakeEndpoint, completion, error, hang, json, raw, serving
from workers.environments.checks.subject import CheckSubject
from workers.environments.red_team import ATTACKER_TASKS, LLM_TOKENS, ExploitSearch, attack_with_llm
from workers.policies.openai_api import Endpoint, OpenAiPolicy

__all__ = ["serve"]

POLITE = bent_again(
    load_package("reverse_text"),
    "server/reverse_text_environment.py",
    "return max(0.0, (",
    'return max(float("please" in (self._answer or "")), (',
)
"""It rewards every answer that says please."""


async def attacked(
    serve: Serve, *answers: Answer, seconds: float = 20, tokens: int = LLM_TOKENS, timeout: float = 2
) -> tuple[ExploitSearch, FakeEndpoint]:
    """Let the LLM of an endpoint with these answers attack."""
    options = {"attempts": 2, "first_wait_seconds": 0.001, "timeout_seconds": timeout}
    async with serve(POLITE) as server, serving(*answers) as endpoint:
        policy = OpenAiPolicy(Endpoint(endpoint.url, "small", KEY, **options), Sampling())
        search = ExploitSearch(CheckSubject(read_manifest(POLITE["openenv.yaml"]), server, files=POLITE), seconds)
        await search.open()
        try:
            await attack_with_llm(search, policy, tokens)
        finally:
            await policy.aclose()
    return search, endpoint


async def test_replies_count_if_other_tasks_reward_them_and_become_a_fixture(serve: Serve) -> None:
    search, endpoint = await attacked(serve, completion("<reversed>please</reversed>"))
    [exploit] = search.exploits
    assert (exploit.attack, exploit.replies, exploit.low) == ("llm", ("<reversed>please</reversed>",), 1.1)
    system = endpoint.bodies[0]["messages"][0]
    assert system["role"] == "system"
    assert "loopholes" in system["content"]
    assert len(endpoint.bodies) == ATTACKER_TASKS
    assert search.notes == ["LLM attacker: 8 replies, 200 of 50,000 tokens, 8 of 8 episodes completed."]


async def test_replies_that_earn_nothing_are_no_exploit(serve: Serve) -> None:
    search, _ = await attacked(serve, completion("<reversed>no</reversed>"))
    assert search.exploits == []


async def test_hostile_replies_become_a_fixture_that_can_be_stored(serve: Serve) -> None:
    hostile = "<reversed>please \x00 </script><script>alert(1)</script>" + "x" * 200_000 + "</reversed>"
    search, _ = await attacked(serve, completion(hostile))
    [exploit] = search.exploits
    assert len(exploit.replies[0]) == 100_000
    assert "\x00" not in exploit.replies[0]
    name = exploit_fixture(exploit.attack, exploit.replies)
    fixture = Fixture(name=name, replies=list(exploit.replies), kind=FixtureKind.HACK)
    assert read_fixture(fixture.path, write_fixture(fixture)) == fixture


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (error(429, "slow down"), "HTTP 429"),
        (error(401, "wrong key"), "HTTP 401"),
        (raw(b"<html>", content_type="text/html"), "not JSON"),
    ],
    ids=["busy", "refused", "garbage"],
)
async def test_a_failing_endpoint_is_named_and_ends_nothing(serve: Serve, answer: Answer, reason: str) -> None:
    search, endpoint = await attacked(serve, answer)
    assert search.exploits == []
    [note] = search.notes
    assert "0 of 8 episodes completed. Most common error: the endpoint answered" in note
    assert reason in note
    assert KEY not in note
    assert len(endpoint.bodies) <= 2 * ATTACKER_TASKS


async def test_an_endpoint_that_does_not_answer_costs_no_more_than_its_share_of_the_time(serve: Serve) -> None:
    began = time.monotonic()
    search, _ = await attacked(serve, hang, seconds=0.5, timeout=30)
    assert time.monotonic() - began < 5
    assert "0 of 8 episodes completed. The time budget ended first." in search.notes[0]


async def test_no_request_is_made_that_might_exceed_the_token_budget(serve: Serve) -> None:
    """The endpoint does not say what a reply took, so that each counts with the most that it may take."""
    message = {"content": "<reversed>please</reversed>"}
    silent = json({"id": "c", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
    search, endpoint = await attacked(serve, silent, tokens=600)
    assert 1 <= len(endpoint.bodies) < ATTACKER_TASKS
    assert sum(estimate_tokens(body["messages"]) + body["max_tokens"] for body in endpoint.bodies) <= 600
    assert "The token budget ended first" in search.notes[0]
