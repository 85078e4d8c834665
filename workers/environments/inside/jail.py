"""The jail, in two rings: one around a runtime's warm interpreter, one around every server that is forked from it.

The outer ring leaves the interpreter with its own files, read-only, no network, an unprivileged uid and no
capabilities. The inner ring gives a server separate namespaces, a private /tmp, limits and a seccomp filter. Works
as root and, where user namespaces are allowed, as an ordinary user.
"""

import errno
import importlib
import json
import os
import resource
import site
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proctor_sandbox import linux, rings, seccomp

PACKAGE_FOLDER = "/package"
PYTHON_FOLDER = "/python"
"""A virtual environment made by the jail: `sys.prefix` of all that runs inside."""
OWN_FOLDER = "/proctor"
"""Copies of the modules that run inside."""
PROGRAMS_FOLDER = "/programs"
"""The host's compiler, if it is mounted."""
FLAGS = ("-s", "-P", "-S", "-B")
"""Flags of every interpreter started for foreign code: it imports nothing from its folder or from start-up files."""
_SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_OWN_SOURCES = (
    *("proctor_sandbox/*.py", "workers/__init__.py", "workers/environments/__init__.py"),
    *("workers/environments/inside/*.py", "backend/__init__.py", "backend/domain/__init__.py"),
    *(f"backend/domain/{path}.py" for path in ("environments/branches", "environments/packages", "zips")),
)
"""All that runs inside, relative to the project's folder."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    memory_bytes: int
    """Limit above the memory that the warm interpreter had mapped already."""
    tmp_bytes: int
    threads: int
    """Processes and threads together."""
    files: int
    cpus: int
    first_cpu: int = 0
    """Servers start at different ones."""


def main(arguments: Sequence[str]) -> None:
    """The first step of a warm interpreter, outside: make the outer ring, then restart inside it.

    `arguments`: a module in this folder, a JSON object for the ring, and the module's own arguments. The ring's
    `new_root` is an empty folder to build on; as root we become `uid`. Inside is a virtual environment made here,
    `PYTHON_FOLDER`, whose interpreter is this one and which sees the folders `site_packages` in their order. Nothing
    of an environment is imported, found or run by this process, and its knowledge of the host, such as paths, ends
    with it. Raises OSError if a folder is reached through a link inside of its environment's home.
    """
    module, text, *rest = arguments
    options = json.loads(text)
    linux.die_with_parent()
    mounted = {}
    for number, folder in enumerate(options["site_packages"]):
        path = os.path.abspath(folder)
        home = path.removesuffix(f"/{_SITE_PACKAGES}")
        target = f"{os.path.realpath(home)}/{_SITE_PACKAGES}"  # links above the home are resolved
        if home == path or os.path.islink(home) or os.path.realpath(path) != target:
            raise OSError(errno.ELOOP, f"{folder} is not a plain {_SITE_PACKAGES} folder")
        mounted[place_of(number)] = target
    interpreter = os.path.realpath(sys.executable)
    files = {
        f"{PYTHON_FOLDER}/pyvenv.cfg": f"home = {os.path.dirname(interpreter)}\n",
        f"{PYTHON_FOLDER}/{_SITE_PACKAGES}/environment.pth": "".join(
            f"import site; site.addsitedir({place!r})\n" for place in mounted
        ),
    }
    root = Path(__file__).resolve().parents[3]
    for pattern in _OWN_SOURCES:
        files |= {f"{OWN_FOLDER}/{path.relative_to(root)}": path.read_text() for path in root.glob(pattern)}
    names = ("python", "python3", os.path.basename(interpreter))
    links = {f"{PYTHON_FOLDER}/bin/{name}": interpreter for name in names}
    if options.get("compiler"):  # folders of the host with a compiler and headers
        headers = sysconfig.get_path("include", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
        places = {PROGRAMS_FOLDER: "/usr/bin", "/usr/include": "/usr/include", headers: headers}
        mounted |= {place: os.path.realpath(path) for place, path in places.items() if os.path.isdir(path)}
    new_root, uid, has_network = options["new_root"], options["uid"], options.get("network", False)
    rings.enclose(new_root, mounted, uid, [PACKAGE_FOLDER], files=files, links=links, has_network=has_network)
    code = (
        f"import sys; sys.path.insert(0, {OWN_FOLDER!r}); "
        f"from workers.environments.inside.{module} import main; sys.path.pop(0); main(sys.argv[1:])"
    )
    python = f"{PYTHON_FOLDER}/bin/python"
    os.execve(python, [python, *FLAGS, "-c", code, *rest], dict(os.environ))  # noqa: TID251


def place_of(number: int) -> str:
    """Path in the jail of the site-packages folder with this number."""
    return f"/environments/{number}/{_SITE_PACKAGES}"


def add_site_packages(places: Sequence[str]) -> None:
    """See these folders, and run their start-up files: foreign code, which has to be enclosed by now."""
    sys.path[:] = [path for path in sys.path if path not in places]
    for place in places:
        site.addsitedir(place)
    importlib.invalidate_caches()


def enclose_alone(limits: ServerLimits) -> None:
    """The inner ring around a program without a package; the process outside waits for it and ends with its code."""
    linux.die_with_parent()
    linux.set_dumpable(False)
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    enclose_server(limits, lambda folder: None)


def enclose_server(limits: ServerLimits, unpack: Callable[[str], None], *, has_network: bool = False) -> None:
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
    linux.mount("tmpfs", "/tmp", "tmpfs", private, f"mode=700,size={limits.tmp_bytes},nr_inodes=4096")
    linux.mount("tmpfs", PACKAGE_FOLDER, "tmpfs", private, "mode=755,size=16m,nr_inodes=4096")
    linux.mount("proc", "/proc", "proc", private | linux.MS_NOEXEC, "subset=pid")
    unpack(PACKAGE_FOLDER)
    linux.make_read_only(PACKAGE_FOLDER)
    bounds = {
        resource.RLIMIT_AS: linux.mapped_bytes() + limits.memory_bytes,
        resource.RLIMIT_NPROC: limits.threads,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_FSIZE: limits.tmp_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    linux.limit_resources(bounds)
    linux.stay_on_cores(limits.cpus, limits.first_cpu)
    linux.drop_bounding_set()
    linux.drop_capabilities()
    linux.set_dumpable(False)
    seccomp.install(linux.libc)
