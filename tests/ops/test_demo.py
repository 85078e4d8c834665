"""`proctor demo`: the showcase from empty data to a verified export, and again with the existing data."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.proctor_process import EMBEDDED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = (
    "check tictactoe",
    "evaluate random",
    "evaluate constant",
    "train a small model",
    "evaluate untrained",
    "evaluate after SFT",
    "evaluate after GRPO",
    "export the best checkpoint",
)


@pytest.fixture
def data() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pw-"))
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


def test_the_showcase_runs_to_its_end_and_continues_when_it_was_cut(data: Path) -> None:
    cut = _demo(data, until=r"train a small model")
    assert "Reward on the same" not in cut

    shown = _demo(data, until=r"keeps serving|The showcase stopped.*")

    assert "The showcase stopped" not in shown
    for step in STEPS:
        assert f"▸ {step}" in shown
    for policy in ("random", "constant", "untrained", "after SFT", "after GRPO"):
        assert re.search(rf"^{policy} +-?\d\.\d+ \[", shown, re.MULTILINE), policy
    assert re.search(r"export: http://\S+/exports/\S+", shown)


def _demo(data: Path, until: str, seconds: float = 900.0) -> str:
    """Read its output until a line fits; then Ctrl-C, which must end it cleanly."""
    command = [sys.executable, "-m", "backend.cli", "demo", "--preset", "quick", "--data", str(data), "--port", "0"]
    shown = ""
    deadline = time.monotonic() + seconds
    environment = {**os.environ, **EMBEDDED, "OMP_NUM_THREADS": "1"}  # noqa: TID251 - a child's environment
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown += line
            assert time.monotonic() < deadline, shown
            if re.search(until, line):
                process.send_signal(signal.SIGINT)
                break
        shown += process.stdout.read()
        assert process.wait(60) == 0, shown
    return shown
