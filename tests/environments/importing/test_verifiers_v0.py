"""A `verifiers` 0.3 environment behind the adapter gives, row by row, what the library's own evaluation gives."""

import asyncio
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backend.domain.environments.packages import MANIFEST_PATH
from tests.envhost_fixture import HostProcess, prepared_once
from tests.environments.importing.packages import FOREIGN, python_with, v0_zoo
from workers.environments.client import EnvHost, EnvServer
from workers.environments.packages import resources_of

ROWS = 6
KINDS = ("single", "turns", "tools", "stateful", "rubrics", "group", "broken")
GROUPS = {"group": 3}
"""How many rollouts a task gets, where not one."""
Reply = str | dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _question(row: int) -> str:
    return f"What is {row} + {row}?"


def _said(text: object) -> str:
    return f"<answer>{text}</answer>"


def _replies(kind: str, row: int, member: int) -> list[Reply]:
    """The policy's replies to this row, turn by turn: right, wrong, badly formed and empty."""
    right, wrong = _said(2 * row), _said(2 * row + 1)
    match kind:
        case "turns":
            return [
                [right],
                [wrong, right],
                [wrong, "nothing", wrong, wrong],
                [_said("pass"), right],
                [wrong, wrong, right],
                ["?"] * 4,
            ][row]
        case "tools" | "stateful":
            call: Reply = {"name": "add", "arguments": {"left": row, "right": row}}
            if kind == "stateful":
                call = {"name": "spend", "arguments": {"coins": row}}
            unknown: Reply = {"name": "fly", "arguments": {}}
            return [[right], [call, right], [call, call, right], [unknown, wrong], [call, call, call], [wrong]][row]
        case "group":
            return [[right, wrong, "a longer reply that has no tag at all"][(member + row) % 3]]
        case _:
            return [[right, wrong, "no tag", right * 2, f"So: {right}", wrong][row]]


async def _through_the_adapter(server: EnvServer, kind: str, row: int, member: int, group: int) -> dict[str, Any]:
    """Play a row over the wire; the rows of the evaluation are those of both splits, one after the other."""
    held = max(1, ROWS // 5)
    task = {"split": "train", "index": row} if row < ROWS - held else {"split": "heldout", "index": row - (ROWS - held)}
    siblings = {"group": f"{kind}-{row}", "group_size": group} if group > 1 else {}
    async with server.session() as session:
        observation = await session.reset({"seed": 0, "level": 0, **task, **siblings}, timeout=60)
        said = observation.fields["messages"]
        for reply in _replies(kind, row, member):
            if observation.done:
                break
            action = {"text": reply} if isinstance(reply, str) else _as_call(reply)
            observation = await session.step(action, timeout=60)
            said += observation.fields["messages"]
        assert observation.done
        result = (await session.state(timeout=30))["result"]
    assert observation.reward == result["reward"]
    return {**result, "sent": observation.rewards}


def _as_call(reply: dict[str, Any]) -> dict[str, Any]:
    return {"tool": reply["name"], "arguments": reply["arguments"]}


@cache
def _by_the_library(python: Path, home: Path) -> dict[str, list[dict[str, Any]]]:
    """Its own evaluations, by kind, in the same virtual environment; all at once, because it takes long to import."""
    asked = [
        {
            "kind": kind,
            "group": GROUPS.get(kind, 1),
            "replies": {
                _question(row): [_replies(kind, row, member) for member in range(GROUPS.get(kind, 1))]
                for row in range(ROWS)
            },
        }
        for kind in KINDS
    ]
    done = subprocess.run(
        [str(python), str(FOREIGN / "evaluate_v0.py")],
        input=json.dumps(asked),
        env={
            "PYTHONPATH": str(FOREIGN / "v0_zoo"),
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.rpartition("TOLD")[2])
    return rows


def by_the_library(host: HostProcess, kind: str) -> list[dict[str, Any]]:
    return _by_the_library(python_with(host.data, "verifiers-0.3.1"), host.data)[kind]


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the ids of calls, which endpoints invent, and without what is not set."""
    kept = []
    for message in messages:
        listed = message.get("tool_calls") or []
        made = [json.loads(call) if isinstance(call, str) else call for call in listed]
        calls = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in made]
        kept.append({"role": message["role"], "content": message.get("content"), "calls": calls})
    return kept


@pytest.mark.parametrize("kind", KINDS)
async def test_rewards_metrics_stops_and_messages_are_the_librarys_own(
    kind: str, env_host: EnvHost, host_process: HostProcess
):
    group = GROUPS.get(kind, 1)
    files = v0_zoo(kind)
    digest = await prepared_once(env_host, host_process, files)
    async with env_host.lease(digest, resources_of(files[MANIFEST_PATH])) as server:
        async with server.session() as session:
            adapter = (await session.state(timeout=60))["adapter"]
        ours = {}
        for row in range(ROWS):
            members = [_through_the_adapter(server, kind, row, member, group) for member in range(group)]
            ours[row] = await asyncio.gather(*members)
    theirs = by_the_library(host_process, kind)
    assert len(theirs) == ROWS * group
    for row in range(ROWS):
        expected = sorted((_key(entry) for entry in theirs if entry["example_id"] == row), key=str)
        assert sorted((_key(entry) for entry in ours[row]), key=str) == expected
        for entry in ours[row]:
            weighted = sum(weight * entry["sent"][name] for name, weight in adapter["columns"].items())
            assert weighted == pytest.approx(entry["reward"], abs=1e-9)
    assert len({entry["reward"] for entry in theirs}) > 1  # the replies tell policies apart


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    """All that must be equal of one rollout."""
    metrics = tuple(sorted(entry["metrics"].items()))
    messages = [_plain(entry["prompt"]), _plain(entry["completion"])]
    return entry["reward"], metrics, entry["stop_condition"], entry["is_truncated"], json.dumps(messages)
