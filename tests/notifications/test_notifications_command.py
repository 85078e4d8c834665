"""`proctor notifications …` with a real web server and a worker for its jobs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from backend.core.session import transaction
from tests.notifications.receivers import Answer, WebServer
from tests.notifications.sending import carry_out, tell
from tests.ops.commands import Command, Result, proctor, repeated, server
from tests.tasks.conftest import wait_for

__all__ = ["proctor", "server"]
pytestmark = pytest.mark.slow


@pytest.fixture
def worker(proctor: Command) -> Iterator[None]:
    with repeated(carry_out):
        yield


def answer_in(result: Result) -> Any:
    """The worker's log goes to the same standard output."""
    start = min(place for mark in ("{\n", "[\n", "[]") if (place := result.out.find(mark)) >= 0)
    return json.loads(result.out[start:])


def rows_of(proctor: Command) -> list[dict[str, Any]]:
    return list(answer_in(proctor("notifications", "deliveries", "--json")))


def test_a_destination_from_the_first_setting_to_the_second_try(
    proctor: Command, worker: None, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_NOTIFICATION_SECRET", "s3cret")
    saved = answer_in(proctor("notifications", "webhook", "chat", web.url, "--kind", "alarm", "--json"))
    assert (saved["has_secret"], saved["kinds"], saved["is_enabled"]) == (True, ["alarm"], True)
    assert "s3cret" not in proctor("notifications", "destinations").out

    tested = proctor("notifications", "test", "chat", "--json")
    assert (tested.status, answer_in(tested)["status"]) == (0, "delivered")
    assert web.received[0].headers["webhook-signature"].startswith("v1,")

    web.answers = [Answer(404, "gone"), Answer(200)]
    with transaction() as session:
        tell(session, "game is paused")
    wait_for(lambda: any(each["status"] == "failed" for each in rows_of(proctor)))
    lost = next(each for each in rows_of(proctor) if each["status"] == "failed")
    assert "404" in lost["error"]
    again = proctor("notifications", "resend", lost["id"], "--json")
    assert (again.status, answer_in(again)["status"]) == (0, "delivered")

    assert [each["title"] for each in answer_in(proctor("notifications", "list", "--unread", "--json"))] == [
        "game is paused"
    ]
    assert answer_in(proctor("notifications", "read", "--json")) == {"unread": 0}
    assert answer_in(proctor("notifications", "list", "--unread", "--json")) == []

    assert proctor("notifications", "test", "nobody").status == 2
    assert proctor("notifications", "webhook", "chat", "ftp://x").status == 2
    assert proctor("notifications", "delete", "chat").status == 0
    assert "Nothing is sent anywhere" in proctor("notifications", "destinations").out
