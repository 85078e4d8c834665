"""Inside the outer ring: make the inner one around itself, try to escape, and print which bounds held as JSON."""

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence

from proctor_sandbox import linux
from workers.environments.inside import jail


def main(arguments: Sequence[str]) -> None:
    """`arguments`: a file of the host that exists and must not be visible."""
    [witness] = arguments
    jail.enclose_alone(limits := jail.ServerLimits(256 << 20, tmp_bytes=1 << 20, threads=8, files=64, cpus=1))
    checks = {
        "own_process_space": os.getpid() == 1,
        "host_files_hidden": not os.path.exists(witness) and not os.path.exists("/etc/passwd"),
        "root_read_only": _fails(lambda: os.mkdir("/probe")),
        "tmp_writable": not _fails(lambda: os.mkdir("/tmp/probe")),
        "network_unreachable": _fails(lambda: socket.create_connection(("127.0.0.1", 9), timeout=1)),
        "no_new_namespaces": _fails(lambda: linux.unshare(linux.NEW_USER)),
        "no_mounts": _fails(lambda: linux.mount("tmpfs", "/tmp", "tmpfs", 0)),
        "processes_bounded": _forks_until_refused(4 * limits.threads) <= limits.threads,
        "no_packet_sockets": _fails(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        "memory_bounded": _fails(lambda: bytearray(1 << 30)),
    }
    sys.stdout.write(json.dumps(checks))
    sys.stdout.flush()
    os._exit(0)


def _fails(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, MemoryError):
        return True
    return False


def _forks_until_refused(maximum: int) -> int:
    """Return the number of forks; stops at a maximum in case the limit does not hold."""
    for count in range(maximum):
        try:
            child = os.fork()
        except OSError:
            return count
        if child == 0:
            linux.libc.pause()
            os._exit(0)
    return maximum
