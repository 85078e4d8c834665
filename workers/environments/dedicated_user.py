"""Start the env host as a dedicated user when root runs `python -m workers.environments.dedicated_user`.

The user owns the env host's folders and nothing else. Its view of the file system hides the rest of the data folder,
the settings file and closed home folders, so code that escapes from a sandbox finds no database, key or token. If the
machine does not allow this, the env host starts as root and shows a warning.
"""

import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from backend.core.embedded import die_with_parent
from backend.settings import PROJECT_ROOT, get_settings
from proctor_sandbox import linux
from workers.environments.listening import HostCannotStart, listen_on_path

UID = 60_990
"""Outside the ranges that distributions and systemd assign to users."""
_OWN = ("environments", "packages", "run/env", "envhost")
"""Writable folders in the data folder; the last one is the home folder."""
_CONFIGURED = (".config/pip/pip.conf", ".pip/pip.conf", ".config/uv/uv.toml")
"""Installer settings in the home folder of the user who starts us, copied because that folder is not readable."""
_NO_NEW_PRIVILEGES = 38


def main() -> NoReturn:
    settings = get_settings()
    data, runtime_python = settings.data.absolute(), settings.runtime_python.absolute()
    if reason := _reason_against(data, runtime_python):
        more = ["--root-because", reason]
    else:
        more = _listen(settings.envhost_address)
        _become(data, runtime_python)
    os.execv(sys.executable, [sys.executable, "-m", "workers.environments.host", *sys.argv[1:], *more])


def _reason_against(data: Path, runtime_python: Path) -> str:
    """Try it in a child process; returns why it is not possible, or an empty string."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(data, runtime_python)
            _try(data, runtime_python)
        except BaseException as error:
            os.write(writable, (str(error) or type(error).__name__).encode()[:500])
        os._exit(0)
    os.close(writable)
    with open(readable, "rb") as said:
        reason = said.read().decode(errors="replace")
    os.waitpid(child, 0)
    return reason


def _try(data: Path, runtime_python: Path) -> None:
    """Check everything that the env host needs, as the dedicated user. Raises OSError."""
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


def _listen(address: str) -> list[str]:
    """Make the socket while we are root; returns the arguments that pass it on."""
    if not address.startswith("unix:"):
        return []
    try:
        listener = listen_on_path(Path(address.removeprefix("unix:")))
    except HostCannotStart as error:
        sys.exit(f"env host: {error}")
    os.set_inheritable(listener.fileno(), True)
    return ["--listener", str(listener.detach())]


def _become(data: Path, runtime_python: Path) -> None:
    """Switch to the user's ids, home folder and view of the file system."""
    os.umask(0o022)
    configured = {name: (Path.home() / name).read_bytes() for name in _CONFIGURED if (Path.home() / name).is_file()}
    for name in _OWN:
        _own(data / name)
    program = [sys.prefix, sys.base_prefix, *_homes(runtime_python), *_homes(Path(sys.executable)), str(PROJECT_ROOT)]
    _restrict_view(
        hidden=[data],
        kept=[*(data / name for name in _OWN), *map(Path, program)],
        emptied=[PROJECT_ROOT / ".env", Path.cwd() / ".env"],
    )
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    linux.libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
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


def _homes(python: Path) -> list[str]:
    """A virtual environment and the installation that its interpreter belongs to."""
    return [str(python.parent.parent.resolve()), str(python.resolve().parent.parent)]


def _own(folder: Path) -> None:
    """Give the folder to the user. Content of another user is removed; it is built again when needed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = folder.resolve()
    if place.stat().st_uid != UID:
        for left in place.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        os.chown(place, UID, UID)
    place.chmod(0o700)


def _restrict_view(hidden: Sequence[Path], kept: Sequence[Path], emptied: Iterable[Path]) -> None:
    """In a new mount namespace: `hidden` folders, and closed ones above `kept` paths, show only `kept` paths."""
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    for path in {path.resolve() for path in emptied if path.exists()}:
        linux.mount("/dev/null", str(path), None, linux.MS_BIND)
    closed = {folder for path in (*kept, *hidden) for folder in _closed_above(path)}
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


def _closed_above(path: Path) -> list[Path]:
    """The outermost folder above it that others may not pass, if there is one."""
    return [folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH][:1]


if __name__ == "__main__":
    main()
