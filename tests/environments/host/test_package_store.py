"""The env host keeps the packages that are wanted, within a bound."""

import os
from pathlib import Path

from backend.domain.environments.packages import content_hash, pack
from tests.envhost_fixture import package_files
from workers.environments.packages import PackageStore, StoredPackage

HOUR = 3600.0


def put(store: PackageStore, name: str, *, hours_ago: float) -> StoredPackage:
    """A package that was wanted that long ago."""
    files = package_files(name)
    package = store.put(content_hash(files), pack(files))
    when = package.path.stat().st_mtime - hours_ago * HOUR
    os.utime(package.path, (when, when))
    return package


def test_what_was_wanted_longest_ago_goes_first(tmp_path: Path):
    store = PackageStore(tmp_path, max_bytes=1)
    old, older, oldest = (put(store, f"p{hours}", hours_ago=hours) for hours in (1, 2, 3))
    store = PackageStore(tmp_path, max_bytes=old.path.stat().st_size + 100)
    store.evict(())
    assert [package.path.exists() for package in (old, older, oldest)] == [True, False, False]
    assert store.find(oldest.hash) is None


def test_what_is_wanted_again_stays(tmp_path: Path):
    store = PackageStore(tmp_path, max_bytes=1)
    wanted, forgotten = put(store, "wanted", hours_ago=3), put(store, "forgotten", hours_ago=1)
    assert store.find(wanted.hash)
    store.evict(())
    assert (wanted.path.exists(), forgotten.path.exists()) == (True, False)


def test_what_is_in_use_stays(tmp_path: Path):
    store = PackageStore(tmp_path, max_bytes=1)
    package = put(store, "used", hours_ago=9)
    store.evict({package.hash})
    assert package.path.exists()
    store.evict(())
    assert not package.path.exists()


def test_nothing_goes_while_all_fits(tmp_path: Path):
    store = PackageStore(tmp_path)
    package = put(store, "small", hours_ago=1000)
    store.evict(())
    assert package.path.exists()


def test_what_an_end_left_unfinished_is_removed_at_the_start(tmp_path: Path):
    (tmp_path / "x.new").write_bytes(b"half")
    PackageStore(tmp_path)
    assert list(tmp_path.iterdir()) == []
