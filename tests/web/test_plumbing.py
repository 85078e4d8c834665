"""Headers, health, errors and the way to sign-in, seen from a browser."""

import asyncio
import threading
from functools import partial

import anyio
import pytest
from anyio import to_thread
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend import app
from backend.web.templating import static_url
from tests.statements import statements_of


def test_the_health_check_answers_anyone(stranger: TestClient) -> None:
    assert stranger.get("/healthz").json()["status"] == "ok"


def test_the_liveness_check_answers_anyone_and_needs_no_database(stranger: TestClient, session: Session) -> None:
    with statements_of(session) as sent:
        assert stranger.get("/livez").json() == {"status": "ok"}
    assert sent == []


async def test_a_process_whose_threads_are_stuck_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop still answers."""
    monkeypatch.setattr(app, "THREADS_STUCK_SECONDS", 0.2)
    state, release = app.Liveness(), threading.Event()
    assert await state.is_alive()

    async with anyio.create_task_group() as group:
        for _ in range(int(to_thread.current_default_thread_limiter().total_tokens)):
            group.start_soon(partial(to_thread.run_sync, release.wait))
        await asyncio.sleep(0.1)
        assert await state.is_alive()  # it waits, but not for long
        await asyncio.sleep(0.3)
        assert not await state.is_alive()
        release.set()

    await asyncio.sleep(0.1)
    assert await state.is_alive()


def test_every_answer_carries_a_strict_content_security_policy(stranger: TestClient) -> None:
    for path in ("/healthz", "/nowhere", static_url("css/base.css")):
        policy = stranger.get(path).headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy


def test_a_file_named_with_its_hash_is_kept_for_ever(stranger: TestClient) -> None:
    assert "immutable" in stranger.get(static_url("css/base.css")).headers["cache-control"]
    assert stranger.get("/static/css/base.css").headers["cache-control"] == "no-cache"


def test_an_unknown_page_is_a_page_that_says_so(viewer: TestClient) -> None:
    answer = viewer.get("/nowhere")
    assert answer.status_code == 404
    assert "Not found" in answer.text


def test_an_unknown_api_path_is_json(viewer: TestClient) -> None:
    answer = viewer.get("/api/v1/nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"] == "NotFound"


def test_a_change_sent_by_another_site_is_refused(stranger: TestClient) -> None:
    answer = stranger.post("/sign-in", data={}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    answer = stranger.post("/sign-in", data={}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
