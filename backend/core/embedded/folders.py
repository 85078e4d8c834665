"""The folders of the embedded servers: when to create, use or move one aside. None is deleted on a guess."""

import os
import pwd
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARKER = "initialization-in-progress"
"""Proves that the folder which has it was made by an initialization that did not finish."""
LEAVING_SECONDS = 10.0
"""Processes of a killed Postgres end on their own; on a busy machine that takes a while."""
_NAMED = 6

Report = Callable[[str], None]
"""Takes a sentence for the person who runs Proctor."""


class CannotStart(RuntimeError):
    """Proctor or one of its servers cannot start. The message explains what to do."""


def has_cluster(folder: Path, major: str) -> bool:
    """Whether the folder holds a database of this Postgres; False when one may be initialized there.

    Raises CannotStart, and changes nothing, when the folder holds anything else.
    """
    try:
        entries = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        if not entries:
            return False
        owner, own = folder.stat().st_uid, os.geteuid()
        if owner != own:
            raise CannotStart(
                f"the database folder {folder} belongs to user {_name_of(owner)}, and Proctor runs as {_name_of(own)}. "
                f"Start Proctor as that user, or give it the folder: chown -R {_name_of(own)} {folder.parent}"
            )
        if "PG_VERSION" not in entries:
            more = f" and {len(entries) - _NAMED} more" if len(entries) > _NAMED else ""
            raise CannotStart(
                f"the database folder {folder} has no PG_VERSION file, but it is not empty: it contains "
                f"{', '.join(entries[:_NAMED])}{more}. Proctor does not start on it. Nothing was deleted.\n"
                f"Restore the folder from a backup. If only PG_VERSION is missing, create it with the line {major}. To "
                "start with an empty database instead, move the folder away or choose another --data"
            )
        version = (folder / "PG_VERSION").read_bytes().decode(errors="replace").strip()
    except OSError as error:
        raise CannotStart(
            f"cannot read the database folder {error.filename or folder}: {error.strerror}. Start Proctor as the user "
            "that owns the folder, or choose another --data"
        ) from error
    if not version.isdigit():
        raise CannotStart(
            f"{folder}/PG_VERSION does not contain a version number. Restore it from a backup; for a database of this "
            f"Proctor it contains the line {major}. Nothing was changed"
        )
    if version != major:
        raise CannotStart(
            f"the database in {folder} was created by Postgres {version}, and this Proctor runs Postgres {major}. "
            "Start it with the Proctor that created it, or dump it with pg_dump and restore it into a new --data folder"
        )
    return True


def discard_unfinished(folder: Path) -> Path:
    """Remove what an interrupted initialization left. Returns the folder next to `folder` in which one works.

    Raises CannotStart for files that are not its own.
    """
    begun = folder.with_name(f"{folder.name}.initializing")
    if not begun.exists():
        return begun
    if not (begun / MARKER).exists() and any(begun.iterdir()):
        raise CannotStart(
            f"{begun} is where Proctor initializes its database, but it holds files that Proctor did not write. Move "
            "them away and start again. Nothing was deleted"
        )
    if (begun / "cluster").exists():
        shutil.rmtree(begun / "cluster")
    (begun / MARKER).unlink(missing_ok=True)  # last, so that it proves the rest to be ours until the rest is gone
    begun.rmdir()
    return begun


def drop_stale_locks(folder: Path, locks: tuple[Path, ...], report: Report) -> None:
    """Remove lock files that would make Postgres refuse to start although no process uses the folder.

    Postgres itself removes one whose process is gone. It does not remove one that is empty or garbled, or whose
    process id now belongs to another program. Raises CannotStart when the folder is in use.
    """
    blocking = []
    for lock in locks:
        with suppress(FileNotFoundError):
            first = lock.read_bytes().split(b"\n", 1)[0].strip()
            if not first.isdigit() or int(first) == 0 or Path(f"/proc/{int(first)}").exists():
                blocking.append(lock)
    if not blocking:
        return
    deadline = time.monotonic() + LEAVING_SECONDS
    while users := _postgres_processes_in(folder):
        if time.monotonic() > deadline:
            raise CannotStart(
                f"the database in {folder} is in use by process {', '.join(map(str, users))}. End that Postgres or "
                "choose another --data"
            )
        time.sleep(0.1)
    for lock in blocking:
        lock.unlink(missing_ok=True)
        report(f"removed the stale lock file {lock}: no process uses the database")


def move_aside(folder: Path) -> Path:
    """Rename a damaged folder so that a new one can be made; returns where it is now."""
    aside = folder.with_name(f"{folder.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name.partition('_')[0]}_{number}")
    folder.rename(aside)
    return aside


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _postgres_processes_in(folder: Path) -> list[int]:
    """Processes of a Postgres that works in this folder: each of them has it as its working directory."""
    place, found = folder.resolve(), []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if (process / "comm").read_text().strip() == "postgres" and (process / "cwd").readlink() == place:
                found.append(int(process.name))
        except OSError:
            continue  # it ended, or belongs to another user, who could not write here
    return sorted(found)
