"""Weights, exports and other big files: a local folder by default, S3-compatible in production (fsspec)."""

import shutil
from pathlib import Path
from typing import BinaryIO, cast

import fsspec

from backend.settings import get_settings


def _filesystem(key: str) -> tuple[fsspec.AbstractFileSystem, str]:
    filesystem, root = fsspec.core.url_to_fs(get_settings().artifacts_address)
    parts = key.split("/")
    if not key or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{key!r} is not an artifact key")
    return filesystem, f"{root.rstrip('/')}/{key}"


def put_folder(folder: Path, key: str) -> int:
    """Store a folder's files under the key and return the number of bytes. A reader sees all of it or none.

    On a local disk, what was stored under the key before stays until the new files are complete.
    """
    filesystem, target = _filesystem(key)
    if isinstance(filesystem, fsspec.implementations.local.LocalFileSystem):
        _replace_folder(folder, Path(target))
    else:
        if filesystem.exists(target):
            filesystem.rm(target, recursive=True)
        filesystem.put(str(folder).rstrip("/") + "/", target.rstrip("/") + "/", recursive=True)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _replace_folder(folder: Path, target: Path) -> None:
    staging, former = Path(f"{target}.partial"), Path(f"{target}.former")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(folder, staging)
    if target.exists():
        shutil.rmtree(former, ignore_errors=True)
        target.rename(former)
    staging.rename(target)
    shutil.rmtree(former, ignore_errors=True)


def get_folder(key: str, target: Path) -> Path:
    """Copy the folder under the key to `target`. Raises FileNotFoundError."""
    filesystem, source = _filesystem(key)
    if not filesystem.exists(source):
        raise FileNotFoundError(f"no artifact {key}")
    target.mkdir(parents=True, exist_ok=True)
    filesystem.get(source.rstrip("/") + "/", str(target) + "/", recursive=True)
    return target


def put_file(path: Path, key: str) -> int:
    filesystem, target = _filesystem(key)
    filesystem.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
    filesystem.put_file(str(path), target)
    return path.stat().st_size


def open_file(key: str) -> BinaryIO:
    """A readable stream. Raises FileNotFoundError."""
    filesystem, source = _filesystem(key)
    return cast(BinaryIO, filesystem.open(source, "rb"))


def free_space() -> tuple[int, int] | None:
    """Bytes that are left and bytes in all where artifacts are kept; None of a store that has no such bounds."""
    filesystem, root = fsspec.core.url_to_fs(get_settings().artifacts_address)
    if not isinstance(filesystem, fsspec.implementations.local.LocalFileSystem):
        return None
    place = next((path for path in (Path(root), *Path(root).parents) if path.exists()), None)
    if place is None:
        return None
    usage = shutil.disk_usage(place)
    return usage.free, usage.total


def delete(key: str) -> None:
    filesystem, target = _filesystem(key)
    if filesystem.exists(target):
        filesystem.rm(target, recursive=True)
