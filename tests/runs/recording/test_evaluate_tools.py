"""An endpoint that calls tools is evaluated on flight_desk: row, job, env host, HTTP, tool calls, stored transcript."""

import asyncio
import re
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.vocabulary import PolicyKind, RolloutStatus, RunStatus
from backend.environments.library import load_package
from backend.rollouts.tables import Group, Rollout, Task
from tests.envhost_fixture import HostProcess
from tests.factories import make_package_version, make_policy, make_queued_evaluation
from tests.policies.endpoint import serving
from tests.runs.recording.conftest import run_of
from workers.tasks.evaluations import run
from workers.tasks.registry import JobContext

pytestmark = pytest.mark.slow


def clerk(messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Books the cheapest flight of a search, and nothing else: enough for level 0."""
    request = next(message["content"] for message in messages if message["role"] == "user")
    made = [message["tool_calls"][0]["function"] for message in messages if message.get("tool_calls")]
    route = re.search(r"from (\w+) to (\w+) on (\w+)", request)
    if route is None or len(made) > 2:
        return "close_case", {"outcome": "refused", "message": "Not here."}
    if not made:
        return "search_flights", dict(zip(("origin", "destination", "day"), route.groups(), strict=True))
    if made[-1]["name"] == "search_flights":
        assert messages[-1]["role"] == "tool"
        flights = re.findall(r"(NL\d+) .*?, (\d+) euros", messages[-1]["content"])
        code, _ = min(flights, key=lambda flight: int(flight[1]))
        return "book_flight", {"flight": code, "passenger": request.rpartition("Signed: ")[2]}
    booked = re.search(r"(NL\d+) for .*?, (\d+ euros)", messages[-1]["content"])
    told = f"{booked[1]}, {booked[2]}" if booked else "Nothing was booked."
    return "close_case", {"outcome": "done", "message": told}


async def answer(request: web.Request) -> web.Response:
    body = orjson.loads(await request.read())
    name, arguments = clerk(body["messages"])
    assert name in {tool["function"]["name"] for tool in body["tools"]}
    call = {"id": "x", "type": "function", "function": {"name": name, "arguments": orjson.dumps(arguments).decode()}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return web.json_response({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})


@pytest.fixture
def clerk_url() -> Iterator[str]:
    """The clerk in a thread, because an evaluation has its own event loop."""
    ready, stop, found = threading.Event(), asyncio.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(answer) as endpoint:  # type: ignore[arg-type]
            found.append(endpoint.url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def queued(url: str) -> uuid.UUID:
    with transaction() as session:
        version = make_package_version(session, load_package("flight_desk"))
        policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"base_url": url, "model": "clerk"})
        return make_queued_evaluation(session, version, policy, tasks=16, concurrency=8).id


def test_an_honest_clerk_earns_everything_on_the_level_that_it_masters(found_host: HostProcess, clerk_url: str) -> None:
    run_id = queued(clerk_url)
    run(JobContext(uuid.uuid4(), run_id, {}, 1))
    assert run_of(run_id).status is RunStatus.COMPLETED
    with transaction() as session:
        query = select(Rollout, Task.level).join(Group, Group.id == Rollout.group_id).join(Task)
        rows = session.execute(query.where(Rollout.run_id == run_id).options(undefer(Rollout.messages))).all()
        goals = {level: [row.columns[0] for row, found in rows if found == level] for level in range(4)}
        assert {row.status for row, _ in rows} == {RolloutStatus.COMPLETED}
        assert goals[0] == [1.0] * 4
        assert sum(sum(values) for values in goals.values()) < 16
        first = next(row for row, level in rows if level == 0)
        assert first.messages[2]["content"].startswith('<tool_call>{"name": "search_flights"')
