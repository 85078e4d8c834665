"""Rings around processes: a separate root with an interpreter and little else, and few rights inside."""

import errno
import os
import resource
import stat
import sys
from collections.abc import Mapping, Sequence

from proctor_sandbox import linux, seccomp
from proctor_sandbox.syscalls import NAMESPACE_CALLS

_SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
_RESOLVER = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl/certs")
"""Files for looking up host names and certificates; visible only with a network."""
PRIVATE = linux.MS_NOSUID | linux.MS_NODEV
_MOST_PROCESSES = 16_384
"""Maximum for all servers of one warm interpreter together."""


def enclose(
    new_root: str,
    mounted: Mapping[str, str],
    uid: int,
    folders: Sequence[str] = (),
    *,
    files: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    has_network: bool = False,
) -> None:
    """Make the outer ring: own read-only files, an unprivileged uid, no capabilities, no network. Returns in a child.

    `new_root` is an empty folder to build on. `mounted` are folders of the host by their path inside; a link in place
    of one of them is refused. `folders` are made empty; `files` are texts and `links` are targets, by path. As root we
    become `uid`. System calls are limited too, except the calls that make rings for others.
    """
    own_uid, own_gid = os.getuid(), os.getgid()
    namespaces = linux.NEW_MOUNTS | linux.NEW_UTS | linux.NEW_IPC | linux.NEW_PIDS
    namespaces |= (0 if has_network else linux.NEW_NETWORK) | (linux.NEW_USER if own_uid else 0)
    linux.unshare(namespaces)
    if own_uid:
        linux.map_to_nobody(own_uid, own_gid)
    linux.die_with_parent()
    continue_as_first_process()
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    _build_root(new_root, mounted, folders, files or {}, links or {}, _RESOLVER if has_network else ())
    os.setsid()
    linux.sethostname("sandbox")
    linux.drop_bounding_set()
    if own_uid == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # the kernel's own root escapes RLIMIT_NPROC
    linux.drop_capabilities()
    linux.die_with_parent()  # changing ids cleared it
    linux.set_dumpable(False)
    linux.limit_resources(  # for all processes in this ring; each ring inside sets lower ones
        {
            resource.RLIMIT_NPROC: _MOST_PROCESSES,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
    )
    seccomp.install(linux.libc, NAMESPACE_CALLS)


def continue_as_first_process(first_closed: int = 3) -> None:
    """Fork into the new process namespace. The parent only waits, and exits as the child did."""
    child = os.fork()
    if child:
        os.closerange(first_closed, 4096)  # the child's sockets must close when it ends
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(128 - status if status < 0 else status)
    linux.die_with_parent()


def _build_root(
    root: str,
    mounted: Mapping[str, str],
    folders: Sequence[str],
    files: Mapping[str, str],
    links: Mapping[str, str],
    resolver: Sequence[str],
) -> None:
    linux.mount("tmpfs", root, "tmpfs", PRIVATE, "mode=755,size=4m")
    os.chdir(root)
    os.umask(0o022)
    for path in _SYSTEM_LIBRARIES:
        if os.path.islink(path):
            _link(root, os.readlink(path), path)
        elif os.path.isdir(path):
            _bind(root, path)
    for path in (*_FILES, *resolver, *_interpreter_paths()):
        if os.path.exists(path) and not os.path.exists(root + path):
            _bind(root, os.path.realpath(path), path)
    for inside, path in mounted.items():
        if not os.path.exists(root + inside):
            _bind(root, path, inside)
    for path, target in links.items():
        _link(root, target, path)
    for path, text in files.items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w", encoding="utf-8") as file:
            file.write(text)
    for path in _DEVICES:
        _bind(root, path, read_only=False)
    for path in ("/tmp", "/proc", *folders):
        os.makedirs(root + path, exist_ok=True)
    # while the old /proc can still be seen: without root the kernel refuses a new one after that
    linux.mount("proc", root + "/proc", "proc", PRIVATE | linux.MS_NOEXEC)
    linux.mount("tmpfs", root + "/tmp", "tmpfs", PRIVATE, "mode=1777,size=4m")
    linux.pivot_into_working_directory()
    linux.make_read_only("/", recursive=False)


def links_to(path: str, own: str) -> dict[str, str]:
    """The links from a virtual environment's interpreter that are outside of `own`: targets by path."""
    found = {}
    while os.path.islink(path):
        target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        if not path.startswith(own + "/"):
            found[path] = target
        path = target
    return found


def _link(root: str, target: str, path: str) -> None:
    if not os.path.lexists(root + path):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(target, root + path)


def _bind(root: str, path: str, inside: str = "", *, read_only: bool = True) -> None:
    """Mount the folder or file at `path` itself. Raises OSError if it is a link."""
    target = root + (inside or path)
    source = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kind = os.fstat(source).st_mode
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, f"{path} is a link")
        if stat.S_ISDIR(kind):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w"):
                pass
        linux.mount(f"/proc/self/fd/{source}", target, None, linux.MS_BIND | linux.MS_REC)
    finally:
        os.close(source)
    if read_only:
        linux.make_read_only(target)


def _interpreter_paths() -> list[str]:
    """Paths of the interpreter and its standard library, which are the same inside."""
    base = os.path.realpath(sys.base_prefix)
    if base == "/usr":
        return [os.path.realpath(sys.executable)]
    return [base + "/bin", base + "/lib", base + "/lib64"]
