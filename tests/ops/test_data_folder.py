"""The data folder: held by one, proven writable, with its secrets readable by their owner only."""

import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.core.embedded import CannotStart
from backend.supervisor.data_folder import open_data_folder, running_at


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pd-") as name:
        yield Path(name)


def test_it_is_made_and_its_key_is_kept(short_path: Path) -> None:
    folder = open_data_folder(short_path / "new" / "data")

    key = folder.secret_key()

    assert len(key) > 30
    assert folder.secret_key() == key
    assert stat.S_IMODE((folder.path / "secret-key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_it_is_held_by_one_at_a_time(short_path: Path) -> None:
    open_data_folder(short_path).note_holder("http://127.0.0.1:8000")

    assert running_at(short_path) == "http://127.0.0.1:8000"
    with pytest.raises(CannotStart, match=r"another Proctor runs on the data folder .* at http://127.0.0.1:8000"):
        open_data_folder(short_path)


def test_it_is_free_once_its_holder_is_gone(short_path: Path) -> None:
    program = (
        "from pathlib import Path; from backend.supervisor.data_folder import open_data_folder;"
        f"open_data_folder(Path({str(short_path)!r})).note_holder('http://gone')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

    assert running_at(short_path) is None
    open_data_folder(short_path)


def test_no_one_runs_on_a_folder_that_is_not_there(short_path: Path) -> None:
    assert running_at(short_path / "nothing") is None


def test_a_folder_that_cannot_be_written_is_reported(short_path: Path) -> None:
    (short_path / "file").write_text("not a folder")

    with pytest.raises(CannotStart, match=r"cannot write in the data folder .*file/data: Not a directory"):
        open_data_folder(short_path / "file" / "data")


def test_a_path_too_long_for_sockets_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="too long for a Unix socket"):
        open_data_folder(tmp_path / ("long" * 30))
