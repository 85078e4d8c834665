"""Commands around a real evaluation: their output, as text and as JSON, and their exit codes."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backend.cli.connection import connect
from tests.ops.commands import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

MODEL = "instant"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Plays a move and gives a verdict in one reply."""
    said = {"role": "assistant", "content": '{"score": 1, "reason": "<move>5</move>"}'}
    told = {
        "choices": [{"index": 0, "finish_reason": "stop", "message": said}],
        "model": MODEL,
        "object": "chat.completion",
    }
    told |= {"id": "1", "created": 0, "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._answer(told)

        def _answer(self, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """A destination without a reader."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def policy(command: Command, endpoint: str) -> str:
    """The name of an endpoint policy, added once."""
    known = {each["name"] for each in command("policy", "list", "--json").json}
    if MODEL not in known:
        assert command("policy", "add", MODEL, "--base-url", endpoint, "--model", MODEL).status == 0
    return MODEL


@pytest.fixture
def run_id(command: Command) -> str:
    """Of an evaluation in groups of two, played once for all tests."""
    known = [run["id"] for run in command("runs", "--kind", "evaluation", "--json").json if run["name"] == "played"]
    if known:
        return str(known[0])
    asked = ("--tasks", "6", "--group-size", "2", "--workers", "2", "--retries", "1", "--context", "last:2")
    played = command("eval", "tictactoe", "random", "--split", "train", *asked, "--name", "played", "--json")
    assert played.status == 0, played.err
    chosen = played.json["configuration"]
    assert (chosen["workers"], chosen["retries"], chosen["context"]) == (2, 1, {"kind": "last", "turns": 2})
    assert played.json["figures"]["coverage"]["completed"] == 12
    return str(played.json["id"])


@pytest.mark.parametrize("written", ["some", "last:few", "last:0"])
def test_a_context_that_is_none_ends_with_2(command: Command, written: str) -> None:
    refused = command("eval", "tictactoe", "random", "--context", written, "--no-wait")
    assert refused.status == 2
    assert "context" in refused.err


def test_rollouts_are_found_ordered_counted_and_shown_by_column(command: Command, run_id: str) -> None:
    whole = command("rollouts", run_id, "--json").json
    found = command(
        "rollouts", run_id, "--where", "turns > 0 and status = completed", "--sort", "-reward", "--json"
    ).json
    assert len(found) == len(whole) == 12
    rewards = [each["reward"] for each in found]
    assert rewards == sorted(rewards, reverse=True)
    counted = command("rollouts", run_id, "--where", "level = 0", "--count", "--json").json
    assert counted == {"matching": sum(each["level"] == 0 for each in whole), "total": 12}
    assert f"{counted['matching']} of 12 match" in command("rollouts", run_id, "--where", "level = 0", "--count").out
    assert "invalid_move" in command("rollouts", run_id, "--columns", "task,invalid_move", "-n", "1").out
    assert {"reward", "turns", "win"} <= {
        each["name"] for each in command("rollouts", run_id, "--fields", "--json").json["fields"]
    }
    assert "operators" in command("rollouts", run_id, "--fields").out


def test_a_saved_view_is_a_filter_with_an_order(command: Command, run_id: str) -> None:
    connect().post("/views", {"name": "longest", "filter": "level = 0", "sort": "-turns"})
    shown = command("rollouts", run_id, "--view", "longest", "--json").json
    assert {each["level"] for each in shown} == {0}
    turns = [each["turns"] for each in shown]
    assert turns == sorted(turns, reverse=True)
    refused = command("rollouts", run_id, "--view", "nobodys")
    assert (refused.status, "choose from: longest" in refused.err) == (2, True)


@pytest.mark.parametrize("where", ["turns >", "colour = red"])
def test_a_filter_with_a_fault_ends_with_2_and_shows_where(command: Command, run_id: str, where: str) -> None:
    refused = command("rollouts", run_id, "--where", where)
    assert refused.status == 2
    assert refused.err.strip()


def test_rollouts_leave_as_a_file_and_come_back_as_a_run(command: Command, run_id: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    left = command("rollouts", "export", run_id, "-o", str(file), "--json")
    assert (left.status, left.json["bytes"]) == (0, file.stat().st_size)
    assert command("rollouts", "export", run_id, "--format", "csv").status == 2
    came = command("rollouts", "import", str(file), "--name", "brought", "--json")
    assert (came.status, came.json["status"]) == (0, "completed"), came.err
    assert command("rollouts", came.json["id"], "--count", "--json").json["total"] == 12
    assert command("run", "delete", came.json["id"], "--json").json == {"deleted": came.json["id"]}
    assert command("run", "show", came.json["id"]).status == 2
    assert command("run", "delete", run_id).status == 2
    file.write_text("{")
    assert command("rollouts", "import", str(file)).status in {1, 2}


def test_training_data_is_reported_written_or_empty(command: Command, run_id: str, tmp_path: Path) -> None:
    told = command("data", "sft", run_id, "--best-of-group", "--json")
    assert (told.status, told.json["conversations"] > 0) == (0, True)
    file = tmp_path / "sft.jsonl"
    assert command("data", "sft", run_id, "--best-of-group", "--format", "jsonl", "-o", str(file)).status == 0
    assert len(file.read_text().splitlines()) == told.json["conversations"]
    assert command("data", "sft", run_id, "--min-reward", "1000", "--json").status == 1


def test_runs_are_compared_ranked_scored_again_and_replayed(command: Command, run_id: str) -> None:
    again = [command("run", "again", run_id, "--seed", str(seed), "--json") for seed in (1, 2)]
    assert [each.status for each in again] == [0, 0], again[0].err
    compared = command("compare", run_id, *(each.json["id"] for each in again), "--json")
    assert (compared.status, len(compared.json["runs"])) == (0, 3)
    ranked = command("leaderboard", "tictactoe", "--json")
    assert (ranked.status, ranked.json["version"]) == (0, 1)
    scored = command("rescore", run_id, "--weights", "win=2", "--json")
    assert (scored.status, scored.json[0]["run"]["weights"][0]) == (0, 2.0), scored.err
    replayed = command("replay", run_id, "--version", "1", "--json")
    assert replayed.status == 0, replayed.err
    assert replayed.json


def test_an_endpoint_is_tested_and_changed(command: Command, policy: str) -> None:
    assert command("policy", "test", policy, "--json").json["status"] != "failed"
    assert command("policy", "models", policy, "--json").json == [MODEL]
    changed = command("policy", "edit", policy, "--requests-per-minute", "6000", "--json")
    assert changed.json["configuration"]["limits"]["requests_per_minute"] == 6000
    command("policy", "add", "away", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert command("policy", "test", "away", "--json").status == 1
    assert command("policy", "test", "nobody").status == 2


def test_a_judge_is_added_tried_and_scans_a_run(command: Command, policy: str, run_id: str) -> None:
    assert command("judge", "add", "kind", "--policy", policy, "--instruction", "Is it good?", "--json").status == 0
    assert "kind" in {each["name"] for each in command("judge", "list", "--json").json}
    (rollout,) = command("rollouts", run_id, "-n", "1", "--json").json
    tried = command("judge", "test", "kind", rollout["id"], "--json")
    assert (tried.status, tried.json["rollouts"][0]["score"]) == (0, 1.0), tried.out
    looked = command("judge", "run", "kind", run_id, "--json")
    assert (looked.status, looked.json["graded"]) == (0, 12), looked.err
    (work,) = command("judge", "results", run_id, "--json").json
    assert (work["grader"], work["failed"]) == ("kind", 0)
    assert command("judge", "run", "nobody", run_id).status == 2


@pytest.mark.parametrize(
    "words",
    [
        *("eval", "serve", "compare", "leaderboard", "rescore", "replay", "rollouts list", "rollouts export"),
        *("rollouts import", "data sft", "policy add", "policy edit", "policy test", "policy models"),
        *("judge add", "judge test", "judge run", "judge results", "run again", "run show"),
    ],
)
def test_every_option_shows_what_it_is(command: Command, words: str) -> None:
    told = command(*words.split(), "--help")
    assert told.status == 0
    lines = told.out.splitlines()
    options = [place for place, line in enumerate(lines) if line.lstrip().startswith("-")]
    assert len(options) >= 2
    for place in options:
        assert len(lines[place].split("  ")) > 2 or lines[place + 1].startswith(" " * 10), lines[place]
