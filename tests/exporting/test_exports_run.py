"""An exported folder runs by itself: on OpenEnv's own server, against any endpoint, and before OpenEnv's validation."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.exporting.conftest import RUNTIME, Endpoint, export, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`uvicorn server.app:app` in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(RUNTIME / "uvicorn"), "server.app:app", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2).read()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def first_free(messages: list[dict[str, Any]]) -> str:
    """A move that is legal: the first cell that nobody took, as far as the conversation tells."""
    told = " ".join(str(message["content"]) for message in messages[1:])
    taken = {int(cell) for cell in re.findall(r"O plays (\d)|<move>(\d)", told) for cell in cell if cell}
    return f"<move>{min(set(range(1, 10)) - taken)}</move>"


def test_it_is_served_and_passes_openenvs_validation(tmp_path: Path) -> None:
    folder = export("tictactoe", tmp_path)
    checked = run(folder, "openenv", "validate", ".", "--json")
    report = json.loads(checked.stdout[checked.stdout.index("{") :])
    failed = [check for check in report["results"] if check["status"].lower() == "fail"]
    assert (checked.returncode, failed) == (0, [])
    with serving(folder) as url:
        live = run(folder, "openenv", "validate", "--url", url)
    assert live.returncode == 0, live.stdout


def test_a_model_plays_it_through_the_openai_client(tmp_path: Path, endpoint: Endpoint) -> None:
    folder = export("tictactoe", tmp_path)
    endpoint.answer = first_free
    told = {"API_BASE_URL": endpoint.url, "API_KEY": "sk-secret", "MODEL_NAME": "some-model"}
    played = run(folder, "python", "inference.py", "--tasks", "3", "--json", **told)
    assert played.returncode == 0, played.stderr
    results = [json.loads(line) for line in played.stdout.splitlines()]
    assert [result["task"]["seed"] for result in results] == [10_000_000, 10_000_001, 10_000_002]
    for result in results:
        assert result["ended"] == "done"
        assert result["columns"].keys() == {"win", "format", "invalid_move"}
        assert result["columns"]["format"] == 1.0
        assert result["reward"] == pytest.approx(
            result["columns"]["win"] + 0.2 + 0.1 * result["columns"]["invalid_move"]
        )
    assert endpoint.keys == {"Bearer sk-secret"}
    assert endpoint.asked[0]["model"] == "some-model"
    assert "sk-secret" not in played.stdout + played.stderr


def test_it_plays_on_a_server_that_is_there_and_says_how_it_went(tmp_path: Path, endpoint: Endpoint) -> None:
    folder = export("number_guess", tmp_path)
    endpoint.answer = lambda messages: "no idea"
    with serving(folder) as url:
        told = {"API_BASE_URL": endpoint.url, "MODEL_NAME": "m", "ENV_URL": url}
        played = run(folder, "python", "inference.py", "--tasks", "1", "--split", "train", **told)
    assert played.returncode == 0, played.stderr
    assert "train 0 level 0: reward" in played.stdout
    assert "mean reward" in played.stdout


def test_without_a_model_it_says_what_to_set(tmp_path: Path) -> None:
    answer = run(export("tictactoe", tmp_path), "python", "inference.py")
    assert answer.returncode == 1
    assert "MODEL_NAME" in answer.stderr


def test_tools_are_called_by_the_endpoints_own_means(tmp_path: Path, endpoint: Endpoint) -> None:
    folder = export("flight_desk", tmp_path)
    endpoint.answer = lambda messages: {"name": "close_case", "arguments": {"summary": "done", "result": "done"}}
    told = {"API_BASE_URL": endpoint.url, "MODEL_NAME": "m"}
    played = run(folder, "python", "inference.py", "--tasks", "1", "--json", **told)
    assert played.returncode == 0, played.stderr
    [result] = [json.loads(line) for line in played.stdout.splitlines()]
    offered = {tool["function"]["name"] for tool in endpoint.asked[0]["tools"]}
    assert "close_case" in offered
    assert "{{ tools }}" not in endpoint.asked[0]["messages"][0]["content"]
    assert result["messages"][-1]["content"].startswith('<tool_call>{"name": "close_case"')


def test_several_calls_of_a_reply_are_made_in_their_order(tmp_path: Path, endpoint: Endpoint) -> None:
    look = {"name": "get_booking", "arguments": {"reference": "AAAAAA"}}
    unknown = {"name": "jump", "arguments": {}}
    close = {"name": "close_case", "arguments": {"outcome": "refused", "message": "No."}}
    endpoint.answer = lambda messages: [look, unknown] if len(messages) < 3 else [look, close, look]
    folder = export("flight_desk", tmp_path)
    told = {"API_BASE_URL": endpoint.url, "MODEL_NAME": "m"}
    played = run(folder, "python", "inference.py", "--tasks", "1", "--json", **told)
    assert played.returncode == 0, played.stderr
    [result] = [json.loads(line) for line in played.stdout.splitlines()]
    assert (result["turns"], result["ended"], result["columns"].get("format", 0.0)) == (2, "done", 0.0)
    asked, *answers = endpoint.asked[1]["messages"][2:]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["get_booking", "jump"]
    assert [answer["tool_call_id"] for answer in answers] == [call["id"] for call in asked["tool_calls"]]
    assert "There is no tool 'jump'" in answers[1]["content"]


def test_a_policy_reads_the_last_turns_where_the_manifest_says_so(tmp_path: Path, endpoint: Endpoint) -> None:
    folder = export("number_guess", tmp_path)
    manifest = folder / "openenv.yaml"
    manifest.write_text(
        manifest.read_text().replace("  agent:\n", "  agent:\n    context: {kind: last, turns: 1}\n", 1)
    )
    endpoint.answer = lambda messages: "no idea"
    played = run(folder, "python", "inference.py", "--tasks", "1", API_BASE_URL=endpoint.url, MODEL_NAME="m")
    assert played.returncode == 0, played.stderr
    first, *later = [body["messages"] for body in endpoint.asked]
    assert max(len(messages) for messages in later) == len(first) + 2
    assert later[-1][: len(first)] == first
