"""`proctor serve` by a policy's name and by a checkpoint's id: what Proctor stores is served, and plays through it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.settings import PROJECT_ROOT
from tests.ops.commands import Command
from tests.ops.living import Living

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]

NAME = "tiny"


@pytest.fixture(scope="module")
def checkpoint(living: Living) -> str:
    return living.add_checkpoint(NAME)


@contextmanager
def serving(living: Living, what: str, cwd: Path = PROJECT_ROOT) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`proctor serve`, and its folder for downloads. It ignores Ctrl-C like background processes of a shell."""
    folder = living.data / "temporary"
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "backend.cli", "serve", what, "--port", "0", "--token", "s3cret", "--json"],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, **living.variables, "TMPDIR": str(folder)},  # noqa: TID251 - a child's environment
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield process, folder
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(living: Living, what: str, cwd: Path = PROJECT_ROOT) -> Iterator[dict[str, Any]]:
    """Its model description. It ends cleanly and deletes all downloaded weights."""
    with serving(living, what, cwd) as (process, folder):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        assert list(folder.iterdir())
        end(process, folder, signal.SIGINT)


def end(process: subprocess.Popen[str], folder: Path, number: int) -> None:
    process.send_signal(number)
    assert process.wait(30) == 0
    assert list(folder.iterdir()) == []


def test_it_plays_as_the_checkpoint_itself_does(living: Living, command: Command, checkpoint: str) -> None:
    asked = ("--tasks", "8", "--temperature", "0", "--max-tokens", "12", "--json")
    by_itself = command("eval", "tictactoe", NAME, *asked)
    with served(living, checkpoint) as news:
        assert (news["model"], news["context"]) == (f"{NAME}@grpo-7", 256)
        added = command(
            "policy", "add", "outside", "--base-url", news["url"], "--model", news["model"], "--key", "s3cret"
        )
        assert added.status == 0, added.err
        assert command("policy", "models", "outside", "--json").json == [news["model"]]
        through_it = command("eval", "tictactoe", "outside", *asked)
    assert (by_itself.status, through_it.status) == (0, 0), through_it.err
    paired = command("compare", by_itself.json["id"], through_it.json["id"], "--json").json
    shown = [
        command("rollouts", run.json["id"], "--sort", "seq", "--transcript", "--json").json
        for run in (by_itself, through_it)
    ]
    ours, theirs = ({each["index"]: each["messages"] for each in rollouts} for rollouts in shown)
    assert len(paired["runs"]) == 2
    assert theirs == ours


def test_a_policys_name_means_its_checkpoint_and_it_ends_in_order_while_it_loads(
    living: Living, checkpoint: str
) -> None:
    with serving(living, NAME) as (process, folder):
        while not list(folder.glob("*/weights/*.safetensors")) or not _has_begun_to_load(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        end(process, folder, signal.SIGTERM)


def _has_begun_to_load(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any("workers.models.serve" in Path(f"/proc/{child}/cmdline").read_text() for child in children)


def test_a_policys_name_is_the_models_name_for_clients(
    living: Living, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of that name is, which holds something else."""
    (tmp_path / NAME).mkdir()
    with served(living, NAME, cwd=tmp_path) as news:
        assert news["model"] == NAME
        with httpx.Client(base_url=news["url"] + "/", headers={"Authorization": "Bearer s3cret"}, timeout=60) as client:
            assert [model["id"] for model in client.get("models").json()["data"]] == [NAME]
            asked = {"messages": [{"role": "user", "content": "You start."}], "max_tokens": 4}
            assert client.post("chat/completions", json={"model": NAME, **asked}).status_code == 200
            other = client.post("chat/completions", json={"model": "another", **asked})
    assert other.status_code == 404
    assert "another" in other.json()["error"]["message"]


def test_a_mistyped_name_is_answered_with_the_nearest(command: Command, checkpoint: str) -> None:
    told = command("serve", "tinny")
    assert (told.status, f"did you mean {NAME}?" in told.err) == (2, True), told.err
    scripted = command("serve", "random")
    assert (scripted.status, "is of kind scripted and has no weights" in scripted.err) == (2, True), scripted.err


def test_what_is_not_there_is_reported(command: Command) -> None:
    by_name, by_id = command("serve", "nothing"), command("serve", "01a20047-953a-75f8-9de4-9b9eed534290")
    assert (by_name.status, "no checkpoint or trained policy has this name" in by_name.err) == (2, True)
    assert (by_id.status, "there is no checkpoint 01a20047" in by_id.err) == (2, True)
