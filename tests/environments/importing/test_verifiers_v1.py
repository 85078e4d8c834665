"""A `verifiers` 0.4 taskset behind the adapter gives, row by row, what the library's own run of it gives."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backend.domain.environments.packages import MANIFEST_PATH
from tests.envhost_fixture import HostProcess, prepared_once
from tests.environments.importing.packages import FOREIGN, python_with, v1_zoo
from workers.environments.client import EnvHost, EnvServer
from workers.environments.packages import resources_of

ROWS = 6
KINDS = ("single", "turns", "tools")
Reply = str | dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _question(row: int) -> str:
    return f"What is {row} + {row}?"


def _replies(kind: str, row: int) -> list[Reply]:
    right, wrong = f"<answer>{2 * row}</answer>", f"<answer>{2 * row + 1}</answer>"
    call: Reply = {"name": "purse_spend", "arguments": {"coins": row}}
    unknown: Reply = {"name": "fly", "arguments": {}}
    match kind:
        case "turns":
            return [[right], [wrong, right], [wrong, wrong, wrong], ["?", right], ["?", "?", right], ["?"] * 3][row]
        case "tools":
            return [[right], [call, right], [call, call, right], [unknown, wrong], [call, call, call], [wrong]][row]
        case _:
            return [[right, wrong, "no tag", right * 2, f"So: {right}", wrong][row]]


async def _through_the_adapter(server: EnvServer, kind: str, row: int) -> dict[str, Any]:
    held = max(1, ROWS // 5)
    task = {"split": "train", "index": row} if row < ROWS - held else {"split": "heldout", "index": row - (ROWS - held)}
    async with server.session() as session:
        observation = await session.reset({"seed": 0, "level": 0, **task}, timeout=60)
        for reply in _replies(kind, row):
            if observation.done:
                break
            calls = isinstance(reply, dict)
            action = {"tool": reply["name"], "arguments": reply["arguments"]} if calls else {"text": reply}
            observation = await session.step(action, timeout=60)
        assert observation.done
        return {**(await session.state(timeout=30))["result"], "sent": observation.rewards}


@cache
def _by_the_library(python: Path, home: Path) -> dict[str, list[dict[str, Any]]]:
    """Its own runs, by kind, in the same virtual environment; all in one process, because it takes long to import."""
    asked = [{"kind": kind, "replies": {_question(row): _replies(kind, row) for row in range(ROWS)}} for kind in KINDS]
    done = subprocess.run(
        [str(python), str(FOREIGN / "evaluate_v1.py")],
        input=json.dumps(asked),
        env={"PYTHONPATH": str(FOREIGN / "v1_zoo"), "HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.strip().splitlines()[-1])
    assert [row["errors"] for kind in KINDS for row in rows[kind]] == [[]] * ROWS * len(KINDS)
    return rows


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the ids of calls, which endpoints invent."""
    kept = []
    for message in messages:
        made = message.get("tool_calls") or []
        calls = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in made]
        kept.append({"role": message["role"], "content": message.get("content"), "calls": calls})
    return kept


@pytest.mark.parametrize("kind", KINDS)
async def test_rewards_metrics_stops_and_messages_are_the_librarys_own(
    kind: str, env_host: EnvHost, host_process: HostProcess
):
    files = v1_zoo(kind)
    digest = await prepared_once(env_host, host_process, files)
    async with env_host.lease(digest, resources_of(files[MANIFEST_PATH])) as server:
        ours = [await _through_the_adapter(server, kind, row) for row in range(ROWS)]
        async with server.session() as session:
            adapter = (await session.state(timeout=60))["adapter"]
    theirs_by_kind = _by_the_library(python_with(host_process.data, "verifiers-0.4.0"), host_process.data)
    for row, theirs in enumerate(theirs_by_kind[kind]):
        scores = {name: reward["score"] for name, reward in theirs["rewards"].items()}
        assert ours[row]["reward"] == pytest.approx(theirs["reward"], abs=1e-12), row
        assert ours[row]["metrics"] == theirs["metrics"] | scores, row
        assert ours[row]["stop_condition"] == theirs["stop_condition"], row
        assert ours[row]["is_truncated"] == theirs["is_truncated"], row
        assert _plain(ours[row]["completion"]) == _plain(theirs["completion"]), row
        weighted = sum(weight * ours[row]["sent"].get(name, 0.0) for name, weight in adapter["columns"].items())
        assert weighted == pytest.approx(theirs["reward"], abs=1e-9)
    assert len({entry["reward"] for entry in ours}) > 1  # the replies tell policies apart
