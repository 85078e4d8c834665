"""A misbehaving model endpoint in a whole evaluation: the run's page shows what failed and where."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from backend.core.session import transaction
from backend.domain.vocabulary import PolicyKind, RunStatus
from backend.policies.tables import Policy
from tests.policies.endpoint import Answer, FakeEndpoint, break_off, completion, error, hang, raw, serving
from tests.proof.conftest import add_policy, asked, counted, evaluate, run_of, seen, work

pytestmark = pytest.mark.slow

Publish = Callable[..., str]
MOODS: dict[str, tuple[Answer, str]] = {
    "slow": (hang, "the endpoint did not answer within 0.2 s (2 tries)"),
    "429": (error(429, "slow down"), "the endpoint answered HTTP 429 (application/json, 33 bytes)"),
    "500": (error(500, "boom"), "the endpoint answered HTTP 500 (application/json, 28 bytes)"),
    "HTML": (raw(b"<title>Sign in</title>", content_type="text/html"), "that is not JSON (22 bytes)"),
    "truncated JSON": (raw(b'{"choices": [{"mess'), "that is not JSON (19 bytes) (2 tries)"),
    "broken off": (break_off, "the endpoint broke off in the middle of its answer (2 tries)"),
    "wrong key": (error(401, "who are you"), "the endpoint answered HTTP 401 (application/json, 35 bytes)"),
}


@contextmanager
def endpoint(*answers: Answer) -> Iterator[FakeEndpoint]:
    """Served from a thread: the run's own loop is busy with the run."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    served = serving(*answers)
    try:
        yield asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def add_model(ada: TestClient, url: str, **patience: Any) -> str:
    """A policy at this endpoint that loses patience soon."""
    policy_id = add_policy(ada, "model", kind="openai_api", base_url=url, model="small")
    _set(base_url=url, **patience)
    return policy_id


def _set(base_url: str, **patience: Any) -> None:
    soon = {"attempts": 2, "timeout_seconds": 0.2, "first_wait_seconds": 0.01}
    impatient = {"base_url": base_url, "model": "small", **soon, **patience}
    with transaction() as session:
        session.execute(update(Policy).where(Policy.kind == PolicyKind.OPENAI_API).values(configuration=impatient))


@pytest.mark.parametrize("mood", MOODS)
def test_an_endpoint_in_a_bad_mood(ada: TestClient, publish: Publish, mood: str) -> None:
    answer, told = MOODS[mood]
    version_id = publish()
    with endpoint(answer) as model:
        run_id = evaluate(ada, version_id, add_model(ada, model.url))

    run = run_of(run_id)
    assert (run.status, run.summary["reward"]) == (RunStatus.FAILED, None)
    assert counted(ada, run_id) == {"failed": 2}
    for address in (f"/runs/{run_id}", f"/runs/{run_id}/rollouts"):
        assert told in seen(ada, address)


def test_an_endpoint_that_was_down_and_is_up_again(ada: TestClient, publish: Publish) -> None:
    version_id = publish()
    with endpoint(completion("3")) as model:
        url = model.url
    policy_id = add_model(ada, url)
    run_id = evaluate(ada, version_id, policy_id)
    assert counted(ada, run_id) == {"failed": 2}
    assert "the endpoint cannot be reached" in seen(ada, f"/runs/{run_id}")

    with endpoint(completion("3")) as model:
        _set(base_url=model.url)
        asked(ada.post(f"/api/v1/runs/{run_id}/resume"))
        work()

    assert counted(ada, run_id) == {"completed": 2}
    assert run_of(run_id).status is RunStatus.COMPLETED


def test_empty_replies_are_a_bad_policy_not_a_failure(ada: TestClient, publish: Publish) -> None:
    version_id = publish()
    with endpoint(completion("")) as model:
        run_id = evaluate(ada, version_id, add_model(ada, model.url))
    assert counted(ada, run_id) == {"completed": 2}
    rollout = asked(ada.get(f"/api/v1/rollouts?run_id={run_id}"))["items"][0]
    assert rollout["stop_reason"] == "max_turns"
    assert rollout["reward"] == 0.0
