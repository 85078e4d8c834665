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

from proctor_sandbox import linux, rings, seccomp

PACKAGE_FOLDER = "/package"
ENVIRONMENTS_FOLDER = "/environments"
"""Where the jail has its virtual environments, numbered: their place on the host is nobody's business."""
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


def enclose_interpreter(new_root: str, environments: Sequence[str], uid: int, *, has_network: bool = False) -> None:
    """The outer ring. `new_root` is an empty folder to build on; as root we become `uid`. Returns in a child.

    The first of `environments` is the one that this interpreter belongs to.
    """
    places = {f"{ENVIRONMENTS_FOLDER}/{number}": path for number, path in enumerate(environments)}
    rings.enclose(new_root, places, uid, [PACKAGE_FOLDER], has_network=has_network)
    sys.executable = f"{ENVIRONMENTS_FOLDER}/0/bin/python"


def enclose_server(limits: Limits, unpack: Callable[[str], None], *, has_network: bool = False) -> None:
    """The inner ring, in a child forked from the warm interpreter; returns in a grandchild, the namespace's first.

    `unpack` writes the package while its folder can still be written.
    """
    uid, gid = os.getuid(), os.getgid()
    linux.set_dumpable(True)  # our own uid_map must be ours to write
    namespaces = linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_IPC | linux.NEW_UTS
    linux.unshare(namespaces | (0 if has_network else linux.NEW_NETWORK))
    linux.map_to_nobody(uid, gid)
    rings.continue_as_first_process(first_closed=0)
    os.setsid()  # a signal to one's process group crosses namespaces
    private = rings.PRIVATE
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


def set_limits(limits: Limits) -> None:
    mapped = linux.mapped_bytes()
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
    linux.stay_on_cores(limits.cpus, limits.first_cpu)
