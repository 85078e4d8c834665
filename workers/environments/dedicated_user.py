"""Start the env host as a dedicated user when root runs `python -m workers.environments.dedicated_user`.

The user owns the env host's folders and nothing else. Its view of the file system hides the rest of the data folder,
the settings file and closed home folders, so code that escapes from a sandbox finds no database, key or token. If the
machine does not allow this, the env host starts as root and shows a warning.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from backend.core.embedded import die_with_parent
from backend.settings import PROJECT_ROOT, get_settings
from proctor_sandbox import linux

UID = 60_990
"""Outside the ranges that distributions and systemd assign to users."""
_OWN = ("environments", "packages", "run/env", "envhost")
"""Writable folders in the data folder; the last one is the home folder."""
_CONFIGURED = (".config/pip/pip.conf", ".pip/pip.conf", ".config/uv/uv.toml")
"""Installer settings in the home folder of the user who starts us, copied because that folder is not readable."""


class HostCannotStart(RuntimeError):
    """The env host cannot start."""


def main() -> NoReturn:
    settings = get_settings()
    data, runtime_python = settings.data.absolute(), settings.runtime_python.absolute()
    address, more = settings.envhost_address, list[str]()
    if reason := _unavailable_reason(data, runtime_python):
        more = ["--root-because", reason]
    else:
        if address.startswith("unix:"):  # make the socket while we are root
            try:
                listener = listen_on_path(Path(address.removeprefix("unix:")))
            except HostCannotStart as error:
                sys.exit(f"env host: {error}")
            os.set_inheritable(listener.fileno(), True)
            more = ["--listener", str(listener.detach())]
        _become_user(data, runtime_python)
    module = ("workers.begin", "workers.environments.host")
    os.execv(sys.executable, [sys.executable, "-m", *module, *sys.argv[1:], *more])


def listen_on_path(path: Path) -> socket.socket:
    """Listen on the env host's own socket. Raises HostCannotStart, also if another env host serves it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        raise HostCannotStart(f"another env host serves {path}")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise HostCannotStart(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(before)
    listener.listen(256)
    return listener


def _unavailable_reason(data: Path, runtime_python: Path) -> str:
    """Try it in a child process, with everything that the env host needs; empty if it works."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_user(data, runtime_python)
            for path in (Path(sys.executable), runtime_python):
                if not os.access(path, os.X_OK):
                    raise PermissionError(f"user {UID} cannot run {path}")
            for name in ("json", "aiohttp", "workers.environments.host"):
                spec = find_spec(name)
                if spec is None or not os.access(str(spec.origin), os.R_OK):
                    raise PermissionError(f"user {UID} cannot read the module {name}")
            for name in _OWN:
                probe = data / name / ".probe"
                probe.touch()
                probe.unlink()
            linux.set_dumpable(True)  # changing ids cleared it, and our own uid_map must be ours to write
            linux.unshare(linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_NETWORK)
            linux.map_to_nobody(UID, UID)
            linux.mount("tmpfs", "/tmp", "tmpfs", 0)
        except BaseException as error:
            os.write(writable, (str(error) or type(error).__name__).encode()[:500])
        os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        reason = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return reason


def _become_user(data: Path, runtime_python: Path) -> None:
    """Switch to the user's ids, home folder and view of the file system."""
    os.umask(0o022)
    configured = {name: (Path.home() / name).read_bytes() for name in _CONFIGURED if (Path.home() / name).is_file()}
    for name in _OWN:  # content of another user is removed; it is built again when needed
        (data / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = (data / name).resolve()
        if folder.stat().st_uid != UID:
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            os.chown(folder, UID, UID)
        folder.chmod(0o700)
    program = [Path(sys.prefix), Path(sys.base_prefix), PROJECT_ROOT]
    for python in (runtime_python, Path(sys.executable)):  # a virtual environment, and the installation behind it
        program += [python.parent.parent.resolve(), python.resolve().parent.parent]
    _restrict_view(
        hidden=[data],
        kept=[*(data / name for name in _OWN), *program],
        emptied=[PROJECT_ROOT / ".env", Path.cwd() / ".env"],
    )
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    linux.libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    die_with_parent(signal.SIGTERM)  # changing ids cleared it
    home = data / _OWN[-1]
    os.chdir(home)
    os.umask(0o077)
    os.environ.update({"HOME": str(home), "USER": "proctor-envhost", "LOGNAME": "proctor-envhost"})  # noqa: TID251
    for name, content in configured.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        os.environ.pop(name, None)  # noqa: TID251


def _restrict_view(hidden: Sequence[Path], kept: Sequence[Path], emptied: Iterable[Path]) -> None:
    """In a new mount namespace: `hidden` folders, and closed ones above `kept` paths, show only `kept` paths."""
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    for path in {path.resolve() for path in emptied if path.exists()}:
        linux.mount("/dev/null", str(path), None, linux.MS_BIND)
    closed = set()
    for path in (*kept, *hidden):  # the outermost folder above it that others may not pass, if there is one
        closed |= set([each for each in reversed(path.parents) if not each.stat().st_mode & stat.S_IXOTH][:1])
    masked = [path for path in {*hidden, *closed} if not any(other in path.parents for other in closed)]
    masked += [path for path in hidden if path not in masked]
    handles = {path: os.open(path, os.O_PATH) for path in dict.fromkeys(kept) if path.exists()}
    for path in sorted({*masked, *handles}, key=lambda path: len(path.parts)):
        if path in masked:
            path.mkdir(parents=True, exist_ok=True)
            linux.mount("tmpfs", str(path), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
        elif any(other in path.parents for other in masked):
            path.mkdir(parents=True, exist_ok=True)
            linux.mount(f"/proc/self/fd/{handles[path]}", str(path), None, linux.MS_BIND | linux.MS_REC)
    for handle in handles.values():
        os.close(handle)


if __name__ == "__main__":
    main()
