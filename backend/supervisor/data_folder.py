"""The data folder: created, checked to be writable, locked by one Proctor at a time, with its secret key."""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from pathlib import Path

from backend.core.embedded import CannotStart, socket_folder

_LEAVING_SECONDS = 15.0
"""The servers of a killed Proctor hold the lock until they have ended."""


class DataFolder:
    """Locked from `open_data_folder` until this process and the servers that got `lock` have ended."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self.lock = path, lock
        self.sockets = path / "run"
        self.logs = path / "logs"

    def secret_key(self) -> str:
        """Return the installation's own key, created on the first start.

        Raises CannotStart if it is missing later: with another key, stored secrets could not be decrypted.
        """
        file = self.path / "secret-key"
        if file.exists() and (key := file.read_text().strip()):
            return key
        if (self.path / "postgres" / "PG_VERSION").exists():
            raise CannotStart(
                f"{file} is {'empty' if file.exists() else 'missing'}. Without the key in it, API keys stored in the "
                "database cannot be decrypted. Restore the file from a backup, or set PROCTOR_SECRET_KEY to that key. "
                "If it is lost, write a new random text of at least 32 characters to the file and enter the API keys "
                "of endpoints again. Nothing was changed"
            )
        write_secret(file, secrets.token_urlsafe(32))
        return file.read_text().strip()

    def note_holder(self, url: str) -> None:
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()} {url}\n".encode(), 0)


def open_data_folder(path: Path) -> DataFolder:
    """Create, check and lock the data folder. Raises CannotStart."""
    path = path.expanduser().absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sockets = socket_folder(path)
        (path / "logs").mkdir(exist_ok=True)
        lock = os.open(sockets / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(path, error) from error
    deadline = time.monotonic() + _LEAVING_SECONDS
    while not _try_lock(lock):
        holder = os.pread(lock, 500, 0).decode(errors="replace").split()
        is_leaving = bool(holder) and holder[0].isdigit() and not Path(f"/proc/{holder[0]}").exists()
        if not is_leaving or time.monotonic() > deadline:
            where = f" as process {holder[0]} at {holder[-1]}" if holder else ""
            raise CannotStart(f"another Proctor runs on the data folder {path}{where}; end it or choose another --data")
        time.sleep(0.1)
    return DataFolder(path, lock)


def unusable(path: Path, error: OSError) -> CannotStart:
    """Explain an error of the file system in the data folder."""
    where = f" ({error.filename})" if error.filename and Path(str(error.filename)) != path else ""
    advice = "free some disk space" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "make it writable"
    return CannotStart(
        f"cannot write in the data folder {path}{where}: {error.strerror}; {advice} or choose another --data"
    )


def running_at(path: Path) -> str | None:
    """Return the address of the Proctor that runs on this data folder, if any."""
    try:
        with (path.expanduser() / "run" / "lock").open() as lock:
            if _try_lock(lock.fileno()):
                return None
            return lock.read().partition(" ")[2].strip() or None
    except OSError:
        return None


def write_secret(file: Path, text: str) -> None:
    """Write a file that only this user can ever read."""
    partial = file.with_name(file.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text + "\n")
    partial.rename(file)


def _try_lock(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
