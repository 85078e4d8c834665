"""Work in a child process: its status, its log, and that it never outlives the job."""

import json
import os
import signal
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backend.core.session import transaction
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT, get_settings
from backend.supervisor.fork_server import ForkServer
from tests.factories import make_run
from tests.tasks.conftest import check_that_it_only_imported, is_alive, wait_for
from workers.tasks import children
from workers.tasks.children import ChildFailed, log_file, must_run_child, run_child
from workers.tasks.execute import INTERRUPT, Interrupted, _interruptible

MODULE = "tests.tasks.child"
TORCH_THAT_USED_A_GPU = """
import sys, types
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(_is_in_bad_fork=lambda: True))
"""


def test_it_returns_the_status_and_keeps_the_log(installation: None) -> None:
    run_id = uuid.uuid4()

    assert run_child(MODULE, ["say", "hello"], run_id=run_id) == 0
    assert run_child(MODULE, ["end", "3"], run_id=run_id) == 3

    assert (get_settings().data / "logs" / f"{run_id}.log").read_text() == "hello\n"


def test_a_bad_end_is_an_error_with_the_last_line(installation: None) -> None:
    with pytest.raises(ChildFailed, match=r"ended with status 1: RuntimeError: no weights"):
        must_run_child(MODULE, ["raise", "no weights"], run_id=uuid.uuid4())


def test_a_killed_child_is_reported_by_its_signal(installation: None) -> None:
    with pytest.raises(ChildFailed, match="SIGKILL"):
        must_run_child(MODULE, ["kill"], run_id=uuid.uuid4())


def test_an_interrupted_job_takes_its_child_and_grandchild_along(installation: None, tmp_path: Path) -> None:
    threading.Thread(target=_interrupt_when, args=(tmp_path / "pids",)).start()

    with pytest.raises(Interrupted), _interruptible():
        run_child(MODULE, ["sleep", str(tmp_path / "pids")], run_id=None)

    for pid in (tmp_path / "pids").read_text().split():
        wait_for(lambda pid=pid: not is_alive(int(pid)))


def test_a_child_that_does_not_stop_when_asked_is_ended(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "STOP_GRACE_SECONDS", 0.3)
    monkeypatch.setattr(children, "STOP_CHECK_SECONDS", 0.1)
    with transaction() as session:
        run = make_run(session)
        session.get_one(Run, run.id).stop_requested_at = datetime.now(UTC)

    assert run_child(MODULE, ["sleep", str(tmp_path / "pids")], run_id=run.id) == -signal.SIGTERM


@pytest.mark.slow
def test_a_forked_child_is_like_one_that_imports_for_itself(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "LINES"):  # readline sets them behind Python's back
        monkeypatch.setenv(name, "80")
    run_child(MODULE, ["say", "ready"], run_id=None)
    monkeypatch.setenv("PROCTOR_PUBLIC_URL", "http://after.the.server.began")
    files = [tmp_path / "forked", tmp_path / "fresh"]

    for file in files:
        assert run_child(MODULE, ["report", str(file)], run_id=None, is_fresh=file.name == "fresh") == 0

    forked, fresh = (json.loads(file.read_text().replace(str(file), "FILE")) for file in files)
    assert forked == fresh
    assert forked["death"] == signal.SIGKILL
    assert forked["variables"]["PROCTOR_PUBLIC_URL"] == "http://after.the.server.began"


def test_it_ends_in_order(installation: None) -> None:
    run_id = uuid.uuid4()

    assert run_child(MODULE, ["end in order"], run_id=run_id) == 3

    assert log_file(MODULE, run_id).read_text().split("\n")[:3] == ["main", "thread", "exit function"]


def test_a_child_can_fork_its_own(installation: None, tmp_path: Path) -> None:
    family = tmp_path / "family"

    assert run_child(MODULE, ["family", str(family)], run_id=None, has_children=True) == 0

    report = json.loads((tmp_path / "family-child").read_text())
    assert report["parent"] == int(family.read_text())
    assert report["death"] == signal.SIGKILL
    assert not is_alive(report["parent"])


@pytest.mark.slow
def test_variables_that_are_read_when_modules_are_imported_start_another_server(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for number, name in enumerate(("OMP_NUM_THREADS", "PROCTOR_PUBLIC_URL", "HF_HOME")):
        monkeypatch.setenv(name, "7")
        file = tmp_path / str(number)
        assert run_child(MODULE, ["report", str(file)], run_id=None) == 0
        assert json.loads(file.read_text())["variables"][name] == "7"
        seen.append(server_of_children())
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.slow
def test_without_a_server_a_child_imports_for_itself(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_unforkable", set())
    monkeypatch.setattr(children, "fork_server", ForkServer(["no_such_module"], {}, Path(), folder=PROJECT_ROOT))

    assert run_child(MODULE, ["report", str(tmp_path / "report")], run_id=None) == 0

    assert children._unforkable == {MODULE}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoiled",
    ["import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", TORCH_THAT_USED_A_GPU],
)
def test_a_module_whose_import_does_what_survives_no_fork_is_imported_by_each_child(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    monkeypatch.setattr(children, "_unforkable", set())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(PROJECT_ROOT)]))
    (tmp_path / "spoiled_module.py").write_text(f"{spoiled}\ndef main(): return 7\n")

    assert run_child("spoiled_module", [], run_id=None) == 7

    assert children._unforkable == {"spoiled_module"}


@pytest.mark.slow
def test_an_interrupted_fork_leaves_no_child(installation: None, tmp_path: Path) -> None:
    """The next request is not answered with the process of the last one."""
    run_child(MODULE, ["say", "ready"], run_id=None)
    server = server_of_children()
    os.kill(server, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (os.getpid(), INTERRUPT)).start()

    with pytest.raises(Interrupted), _interruptible():
        run_child(MODULE, ["report", str(tmp_path / "report")], run_id=None)

    assert run_child(MODULE, ["end", "5"], run_id=None) == 5
    assert not is_alive(server)
    assert not (tmp_path / "report").exists()


def test_the_server_only_imports(installation: None) -> None:
    run_child(MODULE, ["say", "ready"], run_id=None)

    check_that_it_only_imported(server_of_children())


def server_of_children() -> int:
    server = children.fork_server.process
    assert server is not None
    return server.pid


def _interrupt_when(file: Path) -> None:
    while not file.exists() or len(file.read_text().split()) < 2:
        time.sleep(0.01)
    os.kill(os.getpid(), INTERRUPT)
