"""A whole Proctor for the tests that end parts of it, which come back: one for all of them in a test process."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.proctor_process import ProctorProcess, proctor_up


@pytest.fixture(scope="session")
def served() -> Iterator[ProctorProcess]:
    """A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pu-"))
    with proctor_up(folder / "data", environment={"PROCTOR_HUNG_SECONDS": "10"}) as proctor:
        proctor.wait_until_serving()
        yield proctor
    shutil.rmtree(folder, ignore_errors=True)
