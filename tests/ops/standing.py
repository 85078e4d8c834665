"""A whole Proctor for the tests that end parts of it, which come back: one for all of them in a test process."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.proctor_process import ProctorProcess, proctor_up

AS_ORDINARY_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Root becomes a user without any right, who still reads the files of this tree wherever it lies."""


@pytest.fixture(scope="session")
def served() -> Iterator[ProctorProcess]:
    """It runs as an ordinary user. A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pu-"))
    with proctor_up(folder / "data", prefix=AS_ORDINARY_USER if os.getuid() == 0 else ()) as proctor:
        proctor.wait_until_serving()
        yield proctor
    shutil.rmtree(folder, ignore_errors=True)
