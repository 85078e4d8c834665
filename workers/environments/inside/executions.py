"""The sibling of an environment's server that runs programs for it: `proctor_sandbox` in a separate ring.

It is made before the server has any rights to lose or any code of the package, in namespaces next to the server's: the
server keeps its own strict filter, cannot see the sibling, and reaches it by one socket only.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import proctor_sandbox
from proctor_sandbox import linux, rings, seccomp
from proctor_sandbox.client import ENVIRONMENT, FLAGS
from proctor_sandbox.syscalls import NAMESPACE_CALLS
from workers.environments.inside.jail import PACKAGE_FOLDER

_FOLDER_BYTES = 1 << 20


def read_sources() -> dict[str, str]:
    """The package's files, read while they can be seen."""
    folder = Path(proctor_sandbox.__file__).parent
    return {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}


def start_sibling(options: Mapping[str, Any], sources: Mapping[str, str], places: Sequence[str]) -> socket.socket:
    """Fork it; returns our end of its control socket. `options`: parallel, bounds, cpus, first_cpu.

    `places` are the site-packages folders that programs may import from.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            linux.die_with_parent()
            ours.close()
            _become_sibling(theirs.fileno(), options, sources, places)
        finally:
            os._exit(70)
    theirs.close()
    return ours


def _become_sibling(
    control: int, options: Mapping[str, Any], sources: Mapping[str, str], places: Sequence[str]
) -> NoReturn:
    os.closerange(3, control)
    os.closerange(control + 1, 4096)
    uid, gid = os.getuid(), os.getgid()
    linux.set_dumpable(True)  # our own uid_map must be ours to write
    namespaces = linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS
    linux.unshare(namespaces | linux.NEW_IPC | linux.NEW_NETWORK | linux.NEW_UTS)
    linux.map_to_nobody(uid, gid)
    rings.continue_as_first_process()
    linux.mount("proc", "/proc", "proc", rings.PRIVATE | linux.MS_NOEXEC, "subset=pid")
    linux.mount("tmpfs", PACKAGE_FOLDER, "tmpfs", rings.PRIVATE, f"mode=755,size={_FOLDER_BYTES}")
    os.mkdir(f"{PACKAGE_FOLDER}/proctor_sandbox")
    for name, text in sources.items():
        with open(f"{PACKAGE_FOLDER}/proctor_sandbox/{name}", "w") as file:
            file.write(text)
    linux.make_read_only(PACKAGE_FOLDER)
    linux.stay_on_cores(options["cpus"], options["first_cpu"])
    linux.drop_bounding_set()
    linux.drop_capabilities()
    linux.set_dumpable(False)
    seccomp.install(linux.libc, NAMESPACE_CALLS)
    os.set_inheritable(control, True)
    given = json.dumps({"parallel": options["parallel"], "bounds": options["bounds"], "paths": list(places)})
    os.execve(sys.executable, [sys.executable, *FLAGS, PACKAGE_FOLDER, str(control), given], ENVIRONMENT)
