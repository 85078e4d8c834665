"""The jail, in two rings: one around a runtime's warm interpreter, one around every server that is forked from it.

The outer ring leaves the interpreter with its own files, read-only, no network, an unprivileged uid and no
capabilities. The inner ring gives a server namespaces of its own, a private /tmp, limits and a seccomp filter. Works
as root and, where user namespaces are allowed, as an ordinary user.
"""

import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.environments.inside import linux, seccomp

PACKAGE_FOLDER = "/package"
ENVIRONMENTS_FOLDER = "/environments"
"""Where the jail has its virtual environments, numbered: their place on the host is nobody's business."""
_SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
_PACKAGE_BYTES = 16 << 20
_TMP_INODES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server may use."""

    memory_bytes: int
    """Above what the warm interpreter had mapped already."""
    tmp_bytes: int
    threads: int
    """Processes and threads together."""
    files: int
    cpus: int
    first_cpu: int = 0
    """Servers start at different ones."""


def enclose_interpreter(new_root: str, environments: Sequence[str], uid: int) -> None:
    """The outer ring. `new_root` is an empty folder to build on; as root we become `uid`. Returns in a child.

    The first of `environments` is the one that this interpreter belongs to.
    """
    own_uid, own_gid = os.getuid(), os.getgid()
    namespaces = linux.NEW_MOUNTS | linux.NEW_UTS | linux.NEW_IPC | linux.NEW_PIDS | linux.NEW_NETWORK
    linux.unshare(namespaces | (linux.NEW_USER if own_uid else 0))
    if own_uid:
        linux.map_to_nobody(own_uid, own_gid)
    linux.die_with_parent()
    _continue_as_first_process()
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    _build_root(new_root, environments)
    sys.executable = f"{ENVIRONMENTS_FOLDER}/0/bin/python"
    os.setsid()
    linux.sethostname("sandbox")
    linux.drop_bounding_set()
    if own_uid == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.drop_capabilities()
    linux.die_with_parent()  # changing ids cleared it
    linux.set_dumpable(False)


def _continue_as_first_process() -> None:
    """Fork into the new process namespace; the parent only waits."""
    child = os.fork()
    if child:
        os.closerange(3, 1024)  # the host must see our control socket close when the child ends
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    linux.die_with_parent()


def _build_root(root: str, environments: Sequence[str]) -> None:
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    os.chdir(root)
    os.umask(0o022)
    for path in _SYSTEM_LIBRARIES:
        if os.path.islink(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        elif os.path.isdir(path):
            _bind(root, path)
    for path in (*_FILES, *_interpreter_paths()):
        if os.path.exists(path) and not os.path.exists(root + path):
            _bind(root, path)
    for number, path in enumerate(environments):
        _bind(root, path, f"{ENVIRONMENTS_FOLDER}/{number}")
    _copy_links(root, sys.executable, environments[0])
    for path in _DEVICES:
        _bind(root, path, read_only=False)
    for path in ("/tmp", "/proc", PACKAGE_FOLDER):
        os.makedirs(root + path, exist_ok=True)
    # while the old /proc can still be seen: without root the kernel refuses a new one after that
    linux.mount("proc", root + "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("tmpfs", root + "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=4m")
    linux.pivot_into_working_directory()
    linux.make_read_only("/", recursive=False)


def _copy_links(root: str, path: str, environment: str) -> None:
    """A virtual environment's interpreter is a chain of links, which may lead through folders that are not bound."""
    while os.path.islink(path):
        target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        if not path.startswith(environment + "/") and not os.path.lexists(root + path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)
        path = target


def _bind(root: str, path: str, inside: str = "", *, read_only: bool = True) -> None:
    target = root + (inside or path)
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w"):
            pass
    linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    if read_only:
        linux.make_read_only(target)


def enclose_server(limits: Limits, unpack: Callable[[str], None]) -> None:
    """The inner ring, in a child forked from the warm interpreter; returns in a grandchild, the namespace's first.

    `unpack` writes the package while its folder can still be written.
    """
    uid, gid = os.getuid(), os.getgid()
    linux.set_dumpable(True)  # our own uid_map must be ours to write
    linux.unshare(
        linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_IPC | linux.NEW_NETWORK | linux.NEW_UTS
    )
    linux.map_to_nobody(uid, gid)
    _continue_as_first_process_of_server()
    private = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", "/tmp", "tmpfs", private, f"mode=700,size={limits.tmp_bytes},nr_inodes={_TMP_INODES}")
    linux.mount("tmpfs", PACKAGE_FOLDER, "tmpfs", private, f"mode=755,size={_PACKAGE_BYTES},nr_inodes={_TMP_INODES}")
    linux.mount("proc", "/proc", "proc", private | linux.MS_NOEXEC, "subset=pid")
    unpack(PACKAGE_FOLDER)
    linux.make_read_only(PACKAGE_FOLDER)
    set_limits(limits)
    linux.drop_bounding_set()
    linux.drop_capabilities()
    linux.set_dumpable(False)
    seccomp.install(linux.libc)


def _continue_as_first_process_of_server() -> None:
    child = os.fork()
    if child:
        os.closerange(0, 1024)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(128 - status if status < 0 else status)
    linux.die_with_parent()


def set_limits(limits: Limits) -> None:
    mapped = _mapped_bytes()
    bounds = {
        resource.RLIMIT_AS: mapped + limits.memory_bytes,
        resource.RLIMIT_NPROC: limits.threads,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.tmp_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))
    cores = sorted(os.sched_getaffinity(0))
    if limits.cpus < len(cores):
        first = limits.first_cpu % len(cores)
        os.sched_setaffinity(0, (cores + cores)[first : first + limits.cpus])


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _interpreter_paths() -> list[str]:
    """The interpreter itself and its standard library, which stay where they were."""
    base = os.path.realpath(sys.base_prefix)
    if base == "/usr":
        return [os.path.realpath(sys.executable)]
    return [base + "/bin", base + "/lib", base + "/lib64"]
