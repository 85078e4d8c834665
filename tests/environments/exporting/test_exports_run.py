"""An exported folder runs alone: on OpenEnv's own server, with any endpoint, and through OpenEnv's validation."""

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

from tests.environments.exporting.conftest import RUNTIME, Endpoint, export, run

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
    """A legal move: the first cell that the conversation shows as free."""
    told = " ".join(str(message["content"]) for message in messages[1:])
    taken = {int(cell) for cell in re.findall(r"O plays (\d)|<move>(\d)", told) for cell in cell if cell}
    return f"<move>{min(set(range(1, 10)) - taken)}</move>"


def test_it_passes_openenvs_validation_is_served_and_played_by_a_model(tmp_path: Path, endpoint: Endpoint) -> None:
    folder = export("tictactoe", tmp_path)
    checked = run(folder, "openenv", "validate", ".", "--json")
    report = json.loads(checked.stdout[checked.stdout.index("{") :])
    failed = [check for check in report["results"] if check["status"].lower() == "fail"]
    assert (checked.returncode, failed) == (0, [])
    with serving(folder) as url:
        live = run(folder, "openenv", "validate", "--url", url)
        assert live.returncode == 0, live.stdout
        endpoint.answer = first_free
        told = {"API_BASE_URL": endpoint.url, "API_KEY": "sk-secret", "MODEL_NAME": "some-model", "ENV_URL": url}
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


def test_it_says_how_it_went_and_a_policy_reads_the_last_turns_where_the_manifest_says_so(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    folder = export("number_guess", tmp_path)
    manifest = folder / "openenv.yaml"
    manifest.write_text(
        manifest.read_text().replace("  agent:\n", "  agent:\n    context: {kind: last, turns: 1}\n", 1)
    )
    endpoint.answer = lambda messages: "no idea"
    told = {"API_BASE_URL": endpoint.url, "MODEL_NAME": "m"}
    played = run(folder, "python", "inference.py", "--tasks", "1", "--split", "train", **told)
    assert played.returncode == 0, played.stderr
    assert "train 0 level 0: reward" in played.stdout
    assert "mean reward" in played.stdout
    first, *later = [body["messages"] for body in endpoint.asked]
    assert max(len(messages) for messages in later) == len(first) + 2
    assert later[-1][: len(first)] == first


def test_without_a_model_it_shows_what_to_set(tmp_path: Path) -> None:
    answer = run(export("tictactoe", tmp_path), "python", "inference.py")
    assert answer.returncode == 1
    assert "MODEL_NAME" in answer.stderr


def test_tools_are_called_by_the_endpoints_own_means_several_of_a_reply_in_their_order(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    """Two tasks: the first is closed at once, the second after several calls in each reply."""
    look = {"name": "get_booking", "arguments": {"reference": "AAAAAA"}}
    unknown = {"name": "jump", "arguments": {}}
    close = {"name": "close_case", "arguments": {"outcome": "refused", "message": "No."}}

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
        match len(endpoint.asked):
            case 1:
                return {"name": "close_case", "arguments": {"summary": "done", "result": "done"}}
            case 2:
                return close
            case 3:
                return [look, unknown]
            case _:
                return [look, close, look]

    endpoint.answer = answer
    folder = export("flight_desk", tmp_path)
    told = {"API_BASE_URL": endpoint.url, "MODEL_NAME": "m"}
    played = run(folder, "python", "inference.py", "--tasks", "2", "--json", **told)
    assert played.returncode == 0, played.stderr
    first, second = [json.loads(line) for line in played.stdout.splitlines()]
    offered = {tool["function"]["name"] for tool in endpoint.asked[0]["tools"]}
    assert "close_case" in offered
    assert "{{ tools }}" not in endpoint.asked[0]["messages"][0]["content"]
    assert first["messages"][-1]["content"].startswith('<tool_call>{"name": "close_case"')
    assert (second["turns"], second["ended"], second["columns"].get("format", 0.0)) == (2, "done", 0.0)
    asked, *answers = endpoint.asked[3]["messages"][2:]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["get_booking", "jump"]
    assert [answer["tool_call_id"] for answer in answers] == [call["id"] for call in asked["tool_calls"]]
    assert "There is no tool 'jump'" in answers[1]["content"]
