"""Linux system calls that Python lacks, through ctypes."""

import ctypes
import errno
import os
import platform
import resource
import struct
import threading
from collections.abc import Mapping

from proctor_sandbox.syscalls import CLONE

libc = ctypes.CDLL(None, use_errno=True)
_libc_with_lock = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock during a call."""
_before_fork, _after_fork_in_parent, _after_fork_in_child = (
    getattr(ctypes.pythonapi, f"PyOS_{name}") for name in ("BeforeFork", "AfterFork_Parent", "AfterFork_Child")
)

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

_ATTRIBUTES_READ_ONLY = 1 | 2 | 4  # MOUNT_ATTR_RDONLY | NOSUID | NODEV
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID, _SIGCHLD = 0x200000, 0x1000000, 17
_PR_GET_TID_ADDRESS = 40
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 1, 4, 24, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_M_ARENA_MAX = -8
_SIGKILL = 9


def check(result: int, what: str) -> None:
    """Raise the OSError of a failed libc call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _bytes(text: str | None) -> bytes | None:
    return text.encode() if text is not None else None


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def thread_id_address() -> int:
    """Where the C library keeps this thread's id, which a fork has to renew. Raises OSError if that is unknown."""
    address = ctypes.c_ulong()
    check(libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0), "find the thread's id")
    if ctypes.c_int.from_address(address.value).value != threading.get_native_id():
        raise OSError(errno.ENOSYS, "the C library keeps the thread's id elsewhere")
    return address.value


def fork_into(namespaces: int) -> int:
    """Fork into new namespaces; return 0 in the child. unshare() would need a second fork to enter a process namespace.

    Only for a process with one thread. Raises OSError.
    """
    address = thread_id_address()
    flags = namespaces | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | _SIGCHLD
    own = ctypes.c_ulong(address), ctypes.c_ulong(0)  # the child's thread id, thread-local storage
    machine = platform.machine()
    _before_fork()
    child: int = _libc_with_lock.syscall(
        CLONE[machine], flags, None, None, *(own if machine == "x86_64" else own[::-1])
    )
    if child == 0:
        _after_fork_in_child()
        return 0
    number = ctypes.get_errno()
    _after_fork_in_parent()
    if child < 0:
        raise OSError(number, f"clone: {os.strerror(number)}")
    return child


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    check(
        libc.mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(options)),
        f"mount {target}",
    )


def make_read_only(path: str, *, recursive: bool = True) -> None:
    """Make a mount and all mounts below it read-only, without set-uid programs and devices."""
    attributes = struct.pack("<4Q", _ATTRIBUTES_READ_ONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    check(
        libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, len(attributes)),
        f"make {path} read-only",
    )


def pivot_into_working_directory() -> None:
    """Make the working directory the root and detach the old one."""
    check(libc.syscall(_SYS_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    check(libc.umount2(b".", _MNT_DETACH), "detach the old root")
    os.chdir("/")


def map_to_nobody(uid: int, gid: int) -> None:
    """After unshare(NEW_USER): our ids become 65534, and there are no others."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"65534 {uid} 1"), ("gid_map", f"65534 {gid} 1")):
        file = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)


def die_with_parent() -> None:
    check(libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "PDEATHSIG")


def set_dumpable(value: bool) -> None:
    """If not dumpable, no other process with our uid can trace us or open our memory in /proc."""
    check(libc.prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0), "dumpable")


def drop_bounding_set() -> None:
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


def drop_capabilities() -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    check(libc.capset(header, struct.pack("<6I", 0, 0, 0, 0, 0, 0)), "capset")


def limit_heap_arenas() -> None:
    """Each malloc arena reserves 64 MB of address space, which RLIMIT_AS would count."""
    libc.mallopt(_M_ARENA_MAX, 2)


def sethostname(name: str) -> None:
    check(libc.sethostname(name.encode(), len(name)), "sethostname")


def mapped_bytes() -> int:
    """Address space of this process, which RLIMIT_AS counts."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def stay_on_cores(count: int, first: int = 0) -> None:
    """Run on `count` cores only, starting at core number `first`."""
    cores = sorted(os.sched_getaffinity(0))
    if count < len(cores):
        start = first % len(cores)
        os.sched_setaffinity(0, (cores + cores)[start : start + count])


def limit_resources(bounds: Mapping[int, int]) -> None:
    """Set soft and hard limits by kind (`resource.RLIMIT_…`), but none above its present hard limit."""
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))
