"""One child of the supervisor: ready, restarted with a back-off, given up, ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from backend.supervisor import children
from backend.supervisor.children import Child, ChildGaveUp, LivenessProbe, spawn

MakeChild = Callable[..., Child]


@pytest.fixture
def make_child(tmp_path: Path) -> Iterator[MakeChild]:
    made: list[Child] = []

    def make(program: str, is_answering: Callable[[], bool] = lambda: True) -> Child:
        log = tmp_path / "child.log"
        command = [sys.executable, "-c", program]
        child = Child("child", partial(spawn, command, {"PATH": "/usr/bin:/bin"}, log), log, is_answering)
        made.append(child)
        return child

    yield make
    for child in made:
        child.wait_until_ended(0)


def test_it_is_ready_once_it_answers(make_child: MakeChild, tmp_path: Path) -> None:
    child = make_child("import time; time.sleep(60)", (tmp_path / "answers").exists)
    child.launch()
    assert child.watch() is None
    assert not child.is_ready

    (tmp_path / "answers").touch()

    assert child.watch() == "child ready"
    assert child.is_ready
    assert child.watch() is None


def test_one_that_died_is_started_again_after_a_pause(make_child: MakeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "SETTLED_SECONDS", 0.0)
    child = make_child("import time; time.sleep(60)")
    child.launch()
    child.watch()
    first = _pid(child)
    os.kill(first, 9)

    news = _until(child.watch)

    assert news == f"child ended with status -9; starting it again in 0.5 s (log: {child.log})"
    assert not child.is_ready
    assert _until(child.watch) == "child ready"
    assert _pid(child) != first


@pytest.mark.slow
def test_one_that_hangs_is_killed_with_its_stacks_in_the_log_and_started_again(
    make_child: MakeChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long operation of the interpreter: no signal handler in Python would run."""
    monkeypatch.setattr(children, "SETTLED_SECONDS", 0.0)
    child = make_child("def freeze(): return 9 ** 9 ** 9\nfreeze()")
    is_working = True
    child.probe = LivenessProbe(lambda: is_working, hung_seconds=0.4)
    child.launch()
    assert _until(child.watch) == "child ready"
    first = _pid(child)
    time.sleep(1.0)
    assert child.watch() is None
    assert _pid(child) == first

    is_working = False

    assert str(_until(child.watch)).startswith("child has not answered for 0.4 s; ending it")
    assert "starting it again" in str(_until(child.watch))
    assert "in freeze" in child.log.read_text()
    is_working = True
    assert _until(child.watch) == "child ready"
    assert _pid(child) != first


def test_one_that_is_stopped_is_killed_with_all_it_started(make_child: MakeChild, tmp_path: Path) -> None:
    """It cannot write stacks."""
    started = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))"
    child = make_child(f"import subprocess, time; p = subprocess.Popen(['sleep', '60']); {started}; time.sleep(60)")
    child.probe = LivenessProbe(lambda: False, hung_seconds=0.2)
    child.launch()
    _until(child.watch)
    grandchild = _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    os.kill(_pid(child), signal.SIGSTOP)

    _until(child.watch)
    assert "ended with status -9" in str(_until(child.watch))

    assert _until(lambda: not Path(f"/proc/{grandchild}").exists() or " Z " in _stat(grandchild))


def test_a_late_answer_is_no_reason_to_kill(make_child: MakeChild) -> None:
    """Two misses in a row, each followed by an answer."""
    child = make_child("import time; time.sleep(60)")
    answers = cycle([False, False, True])
    child.probe = LivenessProbe(lambda: next(answers), hung_seconds=0.2)
    child.launch()
    _until(child.watch)
    first, deadline = _pid(child), time.monotonic() + 2

    while time.monotonic() < deadline:
        assert child.watch() is None
        time.sleep(0.01)

    assert _pid(child) == first


def test_one_that_never_came_up_is_given_up_with_its_last_words(make_child: MakeChild) -> None:
    child = make_child("raise RuntimeError('no such module')", lambda: False)
    child.launch()

    with pytest.raises(ChildGaveUp, match=r"child ended with status 1, 2 times(?s:.*)RuntimeError: no such module"):
        _until(lambda: child.watch() and None)


@pytest.mark.slow
def test_one_that_keeps_dying_is_given_up(make_child: MakeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(children, "MAX_DEATHS", 3)
    child = make_child("import time; time.sleep(0.1)")
    child.launch()

    with pytest.raises(ChildGaveUp, match="child ended with status 0, 3 times"):
        _until(lambda: child.watch() and None)


def test_a_log_shows_of_one_start_and_the_one_before_is_kept(make_child: MakeChild) -> None:
    child = make_child("print('hello')")
    for _ in range(3):
        child.launch()
        assert child.process is not None
        child.process.wait()

    assert child.log.read_text() == "hello\n"
    assert child.log.with_name("child.log.1").read_text() == "hello\n"


def test_one_that_ignores_the_request_to_end_is_killed_with_all_it_started(
    make_child: MakeChild, tmp_path: Path
) -> None:
    program = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"p = subprocess.Popen(['sleep', '60']); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    child = make_child(program)
    child.launch()
    _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())

    child.ask_to_stop()
    child.wait_until_ended(0.2)

    assert child.process is not None
    assert child.process.returncode == -9
    grandchild = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    _until(lambda: not grandchild.exists() or " Z " in grandchild.read_text())


def test_children_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from backend.supervisor.children import spawn;"
        f"p = spawn(['sleep', '60'], {{}}, Path({str(tmp_path / 'log')!r})); print(p.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        stat = Path(f"/proc/{parent.stdout.readline().decode().strip()}/stat")
        assert stat.exists()
        parent.kill()

    _until(lambda: not stat.exists() or " Z " in stat.read_text())


def _stat(pid: object) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return " Z "


def _pid(child: Child) -> int:
    assert child.process is not None
    return child.process.pid


def _until(ask: Callable[[], object], seconds: float = 20.0) -> object:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return answer
