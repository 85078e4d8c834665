"""Weights, exports and other large files: in a local folder by default, S3-compatible in production (fsspec)."""

import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from backend.settings import get_settings

if TYPE_CHECKING:
    import fsspec

logger = logging.getLogger(__name__)
_MARKER = "store-id"
"""Key of a small object that identifies the store for all processes that share it."""


def read_store_id() -> str:
    """Return the id of the store, which the first process writes. Raises OSError or an error of the store's driver."""
    filesystem, path = _filesystem(_MARKER)
    try:
        content = filesystem.cat_file(path)
    except FileNotFoundError:
        new = uuid.uuid4().hex.encode()
        if not _is_local(filesystem):
            filesystem.pipe_file(path, new)
        else:  # a link to a complete file fails if another process was first
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            complete = Path(f"{path}.{uuid.uuid4().hex}")
            complete.write_bytes(new)
            try:
                os.link(complete, path)
            except FileExistsError:
                pass
            finally:
                complete.unlink()
        content = filesystem.cat_file(path)
    text: str = content.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise OSError(f"the artifact store's {_MARKER} is damaged")
    return text


@lru_cache(maxsize=4)
def _known_id(address: str) -> str:
    return read_store_id()


def store_id() -> str | None:
    """Return the store's id, read once per process; None while the store cannot be read."""
    try:
        return _known_id(get_settings().artifacts_address)
    except Exception as error:  # each driver has its own errors
        logger.warning("the artifact store cannot be read: %s: %s", type(error).__name__, error)
        return None


def _is_local(filesystem: "fsspec.AbstractFileSystem") -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(filesystem, LocalFileSystem)


def _filesystem(key: str | None = None) -> "tuple[fsspec.AbstractFileSystem, str]":
    """Return the file system of the settings and the path of the key in it; without a key, the store's root."""
    import fsspec  # here: most processes that import this module use no artifact

    filesystem, root = fsspec.core.url_to_fs(get_settings().artifacts_address)
    if key is None:
        return filesystem, root
    if any(part in {"", ".", ".."} for part in key.split("/")):
        raise ValueError(f"{key!r} is not an artifact key")
    return filesystem, f"{root.rstrip('/')}/{key}"


def put_folder(folder: Path, key: str) -> int:
    """Store a folder's files under the key and return the number of bytes. A reader sees all of it or none.

    On a local disk, earlier files under the key stay until the new ones are complete.
    """
    filesystem, target = _filesystem(key)
    if _is_local(filesystem):
        path, staging, former = Path(target), Path(f"{target}.partial"), Path(f"{target}.former")
        shutil.rmtree(staging, ignore_errors=True)
        try:
            shutil.copytree(folder, staging)
            sync_folder(staging)
        except OSError:  # such as a full disk
            shutil.rmtree(staging, ignore_errors=True)
            raise
        if path.exists():
            shutil.rmtree(former, ignore_errors=True)
            path.rename(former)
        staging.rename(path)
        shutil.rmtree(former, ignore_errors=True)
    else:
        if filesystem.exists(target):
            filesystem.rm(target, recursive=True)
        filesystem.put(str(folder).rstrip("/") + "/", target.rstrip("/") + "/", recursive=True)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sync_folder(folder: Path) -> None:
    """Wait until all files of a folder are on the disk, so that a crash later leaves them whole."""
    for path in (*folder.rglob("*"), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
    """Open an artifact for reading. Raises FileNotFoundError."""
    filesystem, source = _filesystem(key)
    return cast(BinaryIO, filesystem.open(source, "rb"))


def read_parts(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of an open artifact, and close it."""
    with file:
        while part := file.read(1 << 20):
            yield part


def free_space() -> tuple[int, int] | None:
    """Return free and total bytes of the artifacts' disk; None for a store without such limits."""
    filesystem, root = _filesystem()
    if not _is_local(filesystem):
        return None
    usage = shutil.disk_usage(next(path for path in (Path(root), *Path(root).parents) if path.exists()))
    return usage.free, usage.total


def delete(key: str) -> None:
    filesystem, target = _filesystem(key)
    if filesystem.exists(target):
        filesystem.rm(target, recursive=True)
