"""A model's endpoint that breaks in the middle of a run, is still broken at its resume, and heals: every count exact,
and an outage is never a reward of zero."""

import asyncio
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient

from backend.domain.vocabulary import RunStatus
from tests.policies.endpoint import Answer, FakeEndpoint, break_off, completion, error, go_down, hang, json, raw
from tests.proof.conftest import asked, counted, evaluate, run_of, work
from tests.proof.test_bad_endpoints import Publish, add_model, endpoint

pytestmark = pytest.mark.slow

GOOD = completion("3")
"""One such reply ends the counter's episode."""
TASKS, BEFORE = 12, 5
MOODS: dict[str, Answer] = {
    "down": go_down,
    "slow": hang,
    "429": error(429, "slow down"),
    "500": error(500, "boom"),
    "garbage": raw(b"\x00\xff\x12 not HTTP's business"),
    "HTML": raw(b"<title>Sign in</title>", content_type="text/html"),
    "empty body": raw(b""),
    "no choices": json({"id": "c", "choices": []}),
    "truncated JSON": raw(b'{"choices": [{"mess'),
    "wrong schema": json({"result": {"text": "3"}}),
    "broken off": break_off,
}


@pytest.mark.parametrize("mood", MOODS)
def test_it_breaks_in_the_middle_stays_broken_and_heals(ada: TestClient, publish: Publish, mood: str) -> None:
    version_id = publish()
    with endpoint(*[GOOD] * BEFORE, MOODS[mood]) as model:
        run_id = evaluate(ada, version_id, add_model(ada, model.url), tasks=TASKS, concurrency=4)
        kept = rewards(ada, run_id)
        assert counted(ada, run_id) == {"completed": BEFORE, "failed": TASKS - BEFORE}
        assert_honest(run_id, completed=BEFORE)

        resume(ada, run_id)
        assert rewards(ada, run_id) == kept, "what was finished is neither lost nor played again"
        assert_honest(run_id, completed=BEFORE)

        heal(model)
        resume(ada, run_id)
    after = rewards(ada, run_id)
    assert counted(ada, run_id) == {"completed": TASKS}
    assert {key: after[key] for key in kept} == kept
    assert_honest(run_id, completed=TASKS)


@pytest.mark.parametrize("mood", MOODS)
def test_it_is_broken_from_the_start_and_heals(ada: TestClient, publish: Publish, mood: str) -> None:
    version_id = publish()
    with endpoint(MOODS[mood]) as model:
        run_id = evaluate(ada, version_id, add_model(ada, model.url), tasks=3)
        assert counted(ada, run_id) == {"failed": 3}
        run = run_of(run_id)
        assert (run.status, run.summary["reward"]) == (RunStatus.FAILED, None)

        heal(model)
        resume(ada, run_id)
    assert counted(ada, run_id) == {"completed": 3}
    assert_honest(run_id, completed=3)


@pytest.mark.parametrize("moment", ["at the start", "in the middle"])
def test_a_moment_of_429_costs_nothing(ada: TestClient, publish: Publish, moment: str) -> None:
    busy = error(429, "slow down", Retry_After="0.05")
    before = [GOOD] * (BEFORE if moment == "in the middle" else 0)
    version_id = publish()
    with endpoint(*before, busy, busy, GOOD) as model:
        run_id = evaluate(ada, version_id, add_model(ada, model.url, attempts=4), tasks=TASKS, concurrency=1)
    assert counted(ada, run_id) == {"completed": TASKS}
    assert_honest(run_id, completed=TASKS)


def test_most_rollouts_failing_pauses_the_run_with_the_reason(ada: TestClient, publish: Publish) -> None:
    version_id = publish()
    with endpoint(*[GOOD] * BEFORE, error(500, "boom")) as model:
        run_id = evaluate(ada, version_id, add_model(ada, model.url), tasks=200, concurrency=4)
        run = run_of(run_id)
        assert run.status is RunStatus.PAUSED
        assert run.reason is not None
        assert "the endpoint answered HTTP 500" in run.reason
        counts = counted(ada, run_id)
        assert counts["completed"] == BEFORE
        assert counts["failed"] < 100, "it does not burn through the run"

        heal(model)
        resume(ada, run_id)
    assert counted(ada, run_id) == {"completed": 200}
    assert_honest(run_id, completed=200)


def heal(model: FakeEndpoint) -> None:
    model.answers = (GOOD,)
    if model.site is None:
        assert model.loop is not None
        asyncio.run_coroutine_threadsafe(model.listen(), model.loop).result(10)


def resume(ada: TestClient, run_id: uuid.UUID) -> None:
    asked(ada.post(f"/api/v1/runs/{run_id}/resume"))
    work()


def rewards(ada: TestClient, run_id: uuid.UUID) -> dict[str, Any]:
    """Reward of each completed rollout by its id."""
    items = asked(ada.get(f"/api/v1/rollouts?run_id={run_id}&limit=500"))["items"]
    assert len({(item["group_id"], item["member"]) for item in items}) == len(items), "nothing is doubled"
    assert all(item["reward"] is None for item in items if item["status"] != "completed"), "an outage has no reward"
    return {item["id"]: item["reward"] for item in items if item["status"] == "completed"}


def assert_honest(run_id: uuid.UUID, *, completed: int) -> None:
    """The average covers completed rollouts: each of them is a won game."""
    summary = run_of(run_id).summary
    assert summary["completed"] == completed
    assert summary["reward"]["count"] == completed
    assert summary["reward"]["low"] == summary["reward"]["mean"] == summary["reward"]["high"] > 0
