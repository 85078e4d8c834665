"""The env host keeps the virtual environments that are wanted, within a bound."""

import os
from pathlib import Path

from workers.environments.virtual_environments import evict

HOUR = 3600.0
SIZE = 1 << 20


def built(folder: Path, name: str, *, hours_ago: float) -> Path:
    """An environment of a megabyte that was wanted that long ago, and its log."""
    home = folder / name
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "big").write_bytes(os.urandom(SIZE))
    home.with_suffix(".log").write_text("pip said")
    when = home.stat().st_mtime - hours_ago * HOUR
    os.utime(home, (when, when))
    return home


def test_what_was_wanted_longest_ago_goes_first_with_its_log(tmp_path: Path):
    homes = [built(tmp_path, f"e{hours}", hours_ago=hours) for hours in (1, 2, 3)]
    assert evict(tmp_path, int(1.5 * SIZE), ()) == ["e3", "e2"]
    assert [home.exists() for home in homes] == [True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e1", "e1.log"]


def test_what_is_wanted_again_stays(tmp_path: Path):
    wanted, forgotten = built(tmp_path, "wanted", hours_ago=3), built(tmp_path, "forgotten", hours_ago=1)
    os.utime(wanted)
    assert evict(tmp_path, 1, ()) == ["forgotten"]
    assert (wanted.exists(), forgotten.exists()) == (True, False)


def test_what_is_in_use_stays(tmp_path: Path):
    built(tmp_path, "used", hours_ago=9)
    assert evict(tmp_path, 1, {"used"}) == []
    assert evict(tmp_path, 1, ()) == ["used"]


def test_what_is_being_built_is_no_environment_yet(tmp_path: Path):
    built(tmp_path, "half.new", hours_ago=9)
    built(tmp_path, "gone.gone", hours_ago=9)
    assert evict(tmp_path, 1, ()) == []
    assert (tmp_path / "half.new").exists()
    assert not (tmp_path / "gone.gone").exists()


def test_nothing_goes_while_all_fits_or_nothing_is_there(tmp_path: Path):
    built(tmp_path, "small", hours_ago=1000)
    assert evict(tmp_path, 1 << 30, ()) == []
    assert evict(tmp_path / "nowhere", 1, ()) == []
