"""Processes of the fork server: children of this process that share nothing with it, and outlive the server."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.settings import PROJECT_ROOT
from backend.supervisor import children
from backend.supervisor.children import Child, ChildGaveUp
from backend.supervisor.fork_server import AdoptedProcess, ForkServer

REPORT = """
import json, os, random, sys
from pathlib import Path

def main():
    seen = {
        "arguments": sys.argv,
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "niceness": os.nice(0),
        "random": random.random(),
        "title": Path("/proc/self/cmdline").read_text().rstrip(chr(0)).split(chr(0)),
        "open": [number for number in range(256) if Path(f"/proc/self/fd/{number}").exists()],
        "threads": len(os.listdir("/proc/self/task")),
    }
    print(json.dumps(seen), flush=True)
    return 3
"""
SLEEP = "import time\n\n\ndef main():\n    time.sleep(60)\n"

MakeServer = Callable[..., ForkServer]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    made: list[ForkServer] = []
    (tmp_path / "report_itself.py").write_text(REPORT)
    (tmp_path / "sleep_long.py").write_text(SLEEP)

    def make(*modules: str) -> ForkServer:
        path = os.pathsep.join([str(tmp_path), str(PROJECT_ROOT)])
        made.append(ForkServer(modules, {"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}, tmp_path / "server.log"))
        return made[-1]

    yield make
    for server in made:
        server.stop()


def test_a_process_is_a_child_with_its_own_session_streams_and_title(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("report_itself")
    with (tmp_path / "kept").open("w"):  # neither this nor the server's socket is inherited
        processes = [server.fork(["report_itself", "-x"], tmp_path / f"{number}.log", 7) for number in (0, 1)]
    assert [process.wait(20) for process in processes] == [3, 3]

    seen: list[dict[str, Any]] = [json.loads((tmp_path / f"{number}.log").read_text()) for number in (0, 1)]
    assert seen[0].pop("random") != seen[1].pop("random")
    assert seen[0] == seen[1]
    assert seen[0] == {
        "arguments": ["report_itself", "-x"],
        "parent": os.getpid(),
        "session": True,
        "niceness": min(os.nice(0) + 7, 19),
        "title": ["proctor", "report_itself", "-x"],
        "open": [0, 1, 2],
        "threads": 1,
    }


@pytest.mark.slow
def test_one_that_was_killed_is_forked_again_by_a_new_server_if_need_be(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "SETTLED_SECONDS", 0.0)
    server = make_server()
    log = tmp_path / "child.log"
    child = Child("child", partial(server.fork, ["sleep_long"], log), log, lambda: True)
    assert _until(child.watch) == "child ready"
    assert isinstance(child.process, AdoptedProcess)
    first = child.process
    assert server.process is not None
    server.process.kill()
    assert child.watch() is None
    assert first.poll() is None

    os.kill(first.pid, signal.SIGKILL)

    assert "child ended with status -9; starting it again" in str(_until(child.watch))
    assert _until(child.watch) == "child ready"
    assert child.process.pid != first.pid
    child.ask_to_stop()
    child.wait_until_ended(5)
    assert child.process.poll() == -signal.SIGTERM


@pytest.mark.slow
def test_a_server_that_cannot_import_is_given_up_with_its_last_lines(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("no_such_module")

    with pytest.raises(ChildGaveUp, match="No module named 'no_such_module'"):
        server.fork(["sleep_long"], tmp_path / "child.log")


def _until(ask: Callable[[], object], seconds: float = 20.0) -> object:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return answer
