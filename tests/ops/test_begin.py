"""Variables of a worker's separate processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.settings import PROJECT_ROOT


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_its_threads_sleep_while_they_wait_unless_told_otherwise(
    given: dict[str, str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "waiting.py").write_text("import os\n\n\ndef main():\n    print(os.environ['OMP_WAIT_POLICY'])\n")
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT_ROOT)]), **given}
    command = [sys.executable, "-m", "workers.begin", "waiting"]
    printed = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == expected
