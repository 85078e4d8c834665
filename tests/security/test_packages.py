"""A package's requirements are installed without running any of them, within bounds, and only into its own modules."""

import asyncio
import hashlib
import io
import os
import shutil
import signal
import stat
import struct
import sys
import tempfile
import time
import tracemalloc
import zipfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import PackageInvalid, pack, unpack
from backend.domain.errors import SandboxError
from backend.environments import import_sources
from backend.environments.import_sources import read_zip
from backend.settings import PROJECT_ROOT, get_settings
from tests.envhost_fixture import HostProcess, package_files, prepared, start_host
from tests.security.hostile_archives import make_source, make_wheel, understate
from workers.commands import Bounds, CommandStopped, run_command
from workers.environments import uv
from workers.environments.client import EnvHost
from workers.environments.packages import StoredPackage
from workers.environments.sources import SourceDistribution
from workers.environments.uv import Wheel, append, path_filter
from workers.environments.virtual_environments import VirtualEnvironments
from workers.environments.wheels import STANDALONE_MARKER, Installer, verify_layout

RUNTIME = get_settings().runtime_python.absolute()
RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
WITNESS = "with open({path!r}, 'w') as file:\n    file.write('ran')\n"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where distributions are found."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def installer(links: Path, tmp_path: Path) -> Installer:
    return Installer(RUNTIME, tmp_path / "environments")


@pytest.fixture
def install(installer: Installer, links: Path, tmp_path: Path) -> Callable[..., Path]:
    """`install(distribution…)`: the site-packages folder of a new environment with the wheels in `links`."""

    def run(*distributions: str) -> Path:
        async def build() -> Path:
            log, home = tmp_path / "log", tmp_path / "environments" / "home"
            found = [next(links.glob(f"{name}-*.whl")) for name in distributions]
            wheels = [Wheel(name, "1.0", path.name, str(path)) for name, path in zip(distributions, found, strict=True)]
            await installer.install(home, wheels, log)
            return installer.site_packages(home)

        return asyncio.run(build())

    return run


@pytest.fixture
def index(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index over HTTP with the files of `links` only; it requires a password.

    It has hashes, and metadata for wheels, where `links` has a file `metadata`.
    """

    class Index(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(links))

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != "Basic " + b64encode(b"someone:secret").decode():
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            if self.path.endswith(".metadata"):
                with zipfile.ZipFile(links / self.path.removesuffix(".metadata").strip("/")) as wheel:
                    entry = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
                    return self.answer(wheel.read(entry))
            if not self.path.startswith("/simple/"):
                return super().do_GET()
            name = self.path.strip("/").rpartition("/")[2].replace("-", "_")
            self.answer("".join(map(self.link, links.glob(f"{name}-*"))).encode())

        def link(self, path: Path) -> str:
            if not (links / "metadata").exists():
                return f'<a href="/{path.name}">{path.name}</a>'
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            return f'<a href="/{path.name}#sha256={digest}" data-core-metadata="true">{path.name}</a>'

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://someone:secret@127.0.0.1:{server.server_address[1]}/simple")
        yield links
        server.shutdown()


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


# what a wheel may put where


def test_a_wheel_installs_its_modules(links: Path, install: Callable[..., Path]) -> None:
    program = {"honest/tool": b"#!/bin/sh\n"}
    make_wheel(links, "honest", {"honest_data/words.txt": b"a b"} | program, modes={"honest/tool": 0o755})
    folder = install("honest")
    assert {"honest.py", "honest_data/words.txt"} <= names(folder)
    assert stat.S_IMODE((folder / "honest/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "honest.py").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "path",
    [
        "honest-1.0.data/data/bin/python",
        "honest-1.0.data/data/pyvenv.cfg",
        "honest-1.0.data/scripts/python",
        "honest-1.0.data/headers/x.h",
        "other-2.0.data/data/bin/python3",
        "honest-1.0.data/data/lib/python3.11/site-packages/sitecustomize.py",
    ],
)
def test_files_for_other_places_than_site_packages_are_not_installed(
    path: str, links: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    make_wheel(links, "honest", {path: b"#!/bin/sh\ntouch /tmp/owned\n", "honest-1.0.data/purelib/kept.py": b""})
    folder = install("honest")
    home = folder.parents[2]
    assert {"honest.py", "kept.py"} <= names(folder)
    assert not {"python", "pyvenv.cfg", "python3", "x.h", "sitecustomize.py"} & {p.name for p in home.rglob("*")}
    assert [entry.name for entry in home.iterdir()] == ["lib"]
    assert "not for site-packages" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../escaped.py", "leads outside"),
        ("honest/../../escaped.py", "leads outside"),
        ("/escaped.py", "leads outside"),
        ("honest-1.0.data/purelib/../../escaped.py", "leads outside"),
        ("honest//twice.py", "leads outside"),
        ("honest\\escaped.py", "not allowed"),
        ("HONEST.py", "differ only in case"),
        ("honest.py/inside.py", "as a file and as a folder"),
        ("honest-1.0.data/platlib/honest.py", "twice"),
        ("x" * 251, "too long"),
        ("deep/" * 60 + "x.py", "too long"),
        ("second-1.0.dist-info/METADATA", "exactly one .dist-info"),
    ],
)
def test_a_path_that_could_touch_something_else_is_refused(
    path: str, message: str, links: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    make_wheel(links, "honest", {path: b"x = 1\n"})
    with pytest.raises(SandboxError, match=message):
        install("honest")
    assert not list(tmp_path.rglob("escaped.py"))
    assert not (tmp_path / "environments" / "home").exists()


def test_links_are_refused(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "honest", links={"honest_link": "/etc"})
    with pytest.raises(SandboxError, match="not a regular file"):
        install("honest")


def test_a_file_that_record_does_not_list_is_refused(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "honest", unlisted={"smuggled.py": b""})
    with pytest.raises(SandboxError, match=r"smuggled\.py.*RECORD does not list"):
        install("honest")


def test_a_file_that_differs_from_record_is_refused(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "honest", {"changed.py": b"x = 1\n"}, wrong_hash="changed.py")
    with pytest.raises(SandboxError, match=r"changed\.py.*its hash differs"):
        install("honest")


def test_a_wheel_of_another_distribution_is_refused(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "other", filename="honest-1.0-py3-none-any.whl")
    with pytest.raises(SandboxError, match="honest"):
        install("honest")


def test_bits_that_change_the_user_are_dropped(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "honest", {"honest/tool": b""}, modes={"honest/tool": 0o6777})
    assert stat.S_IMODE((install("honest") / "honest/tool").stat().st_mode) == 0o755


def test_of_two_distributions_with_the_same_file_one_counts(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "first", {"tests/__init__.py": b"x = 1\n"})
    make_wheel(links, "second", {"tests/__init__.py": b"x = 2\n"})
    assert (install("first", "second") / "tests/__init__.py").read_text() == "x = 2\n"


def test_a_file_of_one_cannot_be_a_folder_of_another(links: Path, install: Callable[..., Path]) -> None:
    make_wheel(links, "first", {"both/inside.py": b""})
    make_wheel(links, "second", {"both": b""})
    with pytest.raises(SandboxError, match="a file in one distribution and a folder in another"):
        install("first", "second")


def test_start_up_files_do_not_run_while_installing(links: Path, install: Callable[..., Path], tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    code = WITNESS.format(path=str(witness))
    start_up = {
        "honest.pth": f"import os; exec({code!r})\n".encode(),
        "sitecustomize.py": code.encode(),
        "usercustomize.py": code.encode(),
        "zipfile.py": code.encode(),
        "json/__init__.py": code.encode(),
    }
    make_wheel(links, "honest", start_up)
    folder = install("honest")
    assert set(start_up) <= names(folder)
    assert not witness.exists()
    exec(compile((folder / "sitecustomize.py").read_text(), "it works", "exec"), {})
    assert witness.exists()


# bombs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_metadata", "megabytes", "message"),
    [
        (True, 3072, r"^bomb-1\.0-py3-none-any\.whl has 3\.\d MB and unpacks to 3,072\.0 MB"),
        (False, 512, r"could not be resolved: it wrote more than 128 MB"),  # uv unpacks it for its metadata and hash
    ],
)
async def test_a_wheel_bomb_is_refused_before_its_bytes_are_on_the_disk(
    has_metadata: bool,
    megabytes: int,
    message: str,
    index: Path,
    installer: Installer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uv, "_BOUNDS", replace(uv._BOUNDS, written_bytes=128 << 20))
    if has_metadata:
        (index / "metadata").touch()
    environments = VirtualEnvironments(installer)
    make_wheel(index, "honest", zeros={"honest/zeros": 50})
    bomb = make_wheel(index, "bomb", zeros={"bomb/zeros": megabytes})
    assert bomb.stat().st_size < 4 << 20
    assert await environments.build(stored("honest"))
    with pytest.raises(SandboxError, match=message):
        await environments.build(stored("bomb"))
    for honest in (*installer.store.iterdir(), installer.folder / environments.key_of(stored("honest"))):
        shutil.rmtree(honest)
    assert sum(path.stat().st_size for path in (tmp_path / "environments").rglob("*") if path.is_file()) < 32 << 20


@pytest.mark.slow
def test_a_wheel_that_understates_its_size_is_refused(
    links: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    bomb = make_wheel(links, "honest", zeros={"honest/zeros": 300})
    understate(bomb, "honest/zeros", 10)
    with pytest.raises(SandboxError, match="not a valid wheel"):
        install("honest")
    assert sum(path.stat().st_size for path in (tmp_path / "environments").rglob("*") if path.is_file()) < 32 << 20


def test_bounds_of_one_wheel_and_of_all(
    links: Path, installer: Installer, install: Callable[..., Path], tmp_path: Path
) -> None:
    for name in ("first", "second"):
        make_wheel(links, name, {f"{name}/{number}.py": os.urandom(5000) for number in range(20)})
    assert len(names(install("first", "second"))) == 48
    shutil.rmtree(tmp_path / "environments")
    installer.max_total_bytes = 150_000
    with pytest.raises(SandboxError, match=r"requirements unpack to .*the largest is .*-1\.0-py3-none-any\.whl"):
        install("first", "second")
    assert install("first")
    shutil.rmtree(tmp_path / "environments")
    installer.limits = replace(installer.limits, files=10)
    with pytest.raises(SandboxError, match=r"first-1\.0-py3-none-any\.whl holds 24 files; at most 10"):
        install("first")
    installer.limits = replace(installer.limits, files=100, archive_bytes=1000)
    with pytest.raises(SandboxError, match=r"at most 0\.0 MB are allowed for a wheel"):
        install("first")


async def stalls() -> AsyncIterator[float]:
    """The longest time that the event loop did not turn, so far."""
    longest, last = 0.0, time.monotonic()
    while True:
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        yield longest


@asynccontextmanager
async def watched_loop() -> AsyncIterator[list[float]]:
    seen = [0.0]

    async def watch() -> None:
        async for longest in stalls():
            seen[0] = longest

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(("megabytes", "files"), [(1000, 0), (0, 30_000)])
async def test_a_source_bomb_is_refused_and_does_not_stall_the_event_loop(
    megabytes: int, files: int, tmp_path: Path
) -> None:
    bomb = make_source(tmp_path, "bomb", megabytes, files=files)
    async with watched_loop() as stalled:
        with pytest.raises(SandboxError, match=r"bomb-1\.5\.tar\.gz is refused: it (unpacks to more than|holds more)"):
            await SourceDistribution("bomb", "1.5", str(bomb)).build_requirements()
    assert stalled[0] < 0.5


async def test_an_honest_source_is_read(tmp_path: Path) -> None:
    source = make_source(tmp_path, "honest", 20)
    assert await SourceDistribution("honest", "1.5", str(source)).build_requirements() == ("setuptools<81", "wheel")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x1f\x8b" + bytes(100), b"BZh9" + bytes(100)])
async def test_a_broken_source_is_refused_with_a_reason(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken-1.0.tar.gz"
    path.write_bytes(data)
    with pytest.raises(SandboxError, match=r"the source distribution broken-1\.0\.tar\.gz is refused: it cannot be"):
        await SourceDistribution("broken", "1.0", str(path)).build_requirements()


# no second try


@pytest.mark.slow
async def test_a_file_that_is_refused_is_not_tried_another_way(index: Path, installer: Installer) -> None:
    """Also not as its source, and not as an older version."""
    environments = VirtualEnvironments(installer)
    make_wheel(index, "honest")
    make_wheel(index, "damaged").write_bytes(b"not a zip at all")
    make_wheel(index, "traversing", {"../escaped.py": b""})
    for name in ("damaged", "traversing"):
        make_source(index, name)
    assert await environments.build(stored("honest"))
    for name, reason in (("damaged", "damaged"), ("traversing", "leads outside of its folder")):
        package = stored(name)
        with pytest.raises(SandboxError, match=reason):
            await environments.build(package)
        assert not environments.site_packages_of(package)[0].exists()
        assert "building its source" not in environments.log_of(package)
        assert "secret" not in environments.log_of(package)


# layout


def plain_home(folder: Path) -> tuple[Path, Path]:
    site_packages = folder / "home" / "lib" / "python3.11" / "site-packages"
    site_packages.mkdir(parents=True)
    (site_packages / "module.py").touch()
    (folder / "home" / STANDALONE_MARKER).touch()
    return folder / "home", site_packages


@pytest.mark.parametrize(
    "spoil",
    [
        lambda home, folder: (home / "pyvenv.cfg").touch(),
        lambda home, folder: (home / "bin").mkdir(),
        lambda home, folder: (home / "lib" / "other.so").touch(),
        lambda home, folder: (home / "lib64").symlink_to("lib"),
        lambda home, folder: (folder / "link.py").symlink_to("/etc/passwd"),
        lambda home, folder: os.mkfifo(folder / "pipe"),
        lambda home, folder: (folder / "module.py").chmod(0o4755),
        lambda home, folder: (folder / "module.py").chmod(0o666),
        lambda home, folder: shutil.rmtree(folder),
    ],
)
def test_the_layout_is_verified(spoil: Callable[[Path, Path], object], tmp_path: Path) -> None:
    home, folder = plain_home(tmp_path)
    verify_layout(home, folder)
    spoil(home, folder)
    with pytest.raises(SandboxError, match="removed"):
        verify_layout(home, folder)


def stored(*requirements: str) -> StoredPackage:
    return StoredPackage("0" * 64, Path("x.zip"), "x", "server.app:app", {}, ResourcesSpec(), requirements)


@pytest.mark.slow
async def test_an_environment_of_the_old_layout_is_not_used_and_removed(
    links: Path, installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(links, "honest")
    environments, package = VirtualEnvironments(installer), stored("honest")
    old = installer.folder / "0123456789abcdef"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "python").touch()
    (old / "pyvenv.cfg").touch()
    assert await environments.build(package)
    own, below = environments.site_packages_of(package)
    assert (own / "honest.py").exists()
    assert below == installer.site_packages(RUNTIME.parent.parent)
    await environments.evict(set())
    assert own.exists()
    assert not old.exists()


# a real env host

REPLACED = {
    "evil-1.0.data/data/bin/python": b"#!/bin/sh\ntouch WITNESS\nexec /usr/bin/env true\n",
    "evil-1.0.data/data/bin/python3": b"#!/bin/sh\ntouch WITNESS\n",
    "evil-1.0.data/data/bin/python3.11": b"#!/bin/sh\ntouch WITNESS\n",
    "evil-1.0.data/data/pyvenv.cfg": b"home = HOME\n",
}


@pytest.fixture(scope="module")
def witness() -> Iterator[Path]:
    """A world-writable folder, where code outside of the sandbox would leave traces."""
    folder = Path(tempfile.mkdtemp(prefix="witness-", dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def host(witness: Path) -> Iterator[HostProcess]:
    data = Path(tempfile.mkdtemp(prefix="sp-"))
    links = data / "links"
    links.mkdir()
    base = witness / "base" / "python3.11"
    base.parent.mkdir()
    base.write_text(f"#!/bin/sh\ntouch {witness}/ran\n")
    base.chmod(0o755)
    modes = dict.fromkeys(REPLACED, 0o755)
    files = {
        path: data_.replace(b"WITNESS", f"{witness}/ran".encode()).replace(b"HOME", str(base.parent).encode())
        for path, data_ in REPLACED.items()
    }
    traces = f"import os\ntry: open({str(witness / 'ran')!r}, 'w')\nexcept OSError: pass\n"
    files |= {"evil.pth": f"import os; exec({traces!r})\n".encode(), "sitecustomize.py": traces.encode()}
    make_wheel(links, "evil", files, modes=modes)
    make_wheel(links, "honest")
    make_source(links, "bomb", 1000)
    make_source(links, "honest_source")
    host = start_host(data, PIP_FIND_LINKS=f"{links} {os.environ.get('PIP_FIND_LINKS', '')}")  # noqa: TID251
    yield host
    host.stop()
    shutil.rmtree(data, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("dependency", ["honest", "evil"])
async def test_a_wheel_cannot_replace_the_interpreter_that_serves_it(
    dependency: str, host: HostProcess, witness: Path
) -> None:
    files = package_files(
        dependencies=("openenv>=0.10", dependency),
        in_step=f"import {dependency}\nobservation.text = {dependency}.NAME",
    )
    async with EnvHost(host.address) as client:
        hash_ = await prepared(client, files)
        async with client.lease(hash_, RESOURCES) as server, server.session() as session:
            await session.reset({}, timeout=20)
            assert (await session.step({"amount": 1}, timeout=20)).fields["text"] == dependency
    assert not (witness / "ran").exists()
    assert not list((host.data / "environments").glob("*/bin"))
    assert not list((host.data / "environments").glob("*/pyvenv.cfg"))


@pytest.mark.slow
async def test_a_source_bomb_is_refused_by_a_host_that_keeps_answering(host: HostProcess) -> None:
    files = package_files(dependencies=("openenv>=0.10", "bomb"))
    async with EnvHost(host.address) as client:
        preparing = asyncio.create_task(prepared(client, files))
        longest = 0.0
        while not preparing.done():
            began = time.monotonic()
            await client.request("GET", "/status")
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.02)
        with pytest.raises(SandboxError, match=r"bomb-1\.5\.tar\.gz is refused: it unpacks to more than 256 MB"):
            await preparing
    assert longest < 2


@pytest.mark.slow
async def test_logs_and_errors_have_no_path_of_the_machine(host: HostProcess) -> None:
    async with EnvHost(host.address) as client:
        for dependency in ("honest-source", "nowhere-to-be-found==1", "bomb"):
            files = package_files(dependencies=("openenv>=0.10", dependency))
            try:
                hash_ = await prepared(client, files)
            except SandboxError as error:
                shown = str(error)
                hash_ = error.args[0] and ""
            else:
                shown = (await client.build_log(hash_))[0]
                assert "honest" in shown
            for path in (host.data, PROJECT_ROOT, Path.home(), Path(sys.base_prefix)):
                assert str(path) not in shown


def test_paths_addresses_and_credentials_become_neutral_names(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "Failed to fetch: `https://me:secret@index.internal/simple/x/` file:///opt/w/x-1.0-py3-none-any.whl")
    assert log.read_text() == "Failed to fetch: `<address>` <address>/x-1.0-py3-none-any.whl"
    cleaned = path_filter({tmp_path: "<data>"})(f'File "{tmp_path}/a/b.py" {PROJECT_ROOT}/x {tmp_path}-other')
    assert cleaned == f'File "<data>/a/b.py" <proctor>/x {tmp_path}-other'


# process groups

FAMILY = """
import os, signal, sys, time
for _ in range(2):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
        time.sleep(600)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
if sys.argv[2] == "wait":
    time.sleep(600)
while len(open(sys.argv[1]).readlines()) < 3:
    time.sleep(0.01)
print("done", flush=True)
os._exit(0)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def family(file: Path, count: int = 3) -> list[int]:
    while not file.exists() or len(file.read_text().splitlines()) < count:
        await asyncio.sleep(0.02)
    return [int(line) for line in file.read_text().splitlines()]


async def gone(pids: list[int]) -> bool:
    for _ in range(100):
        if not any(map(is_running, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_command_past_its_time_ends_with_its_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(CommandStopped, match="longer than 2 s"):
        await run_command((sys.executable, "-c", FAMILY, str(file), "wait"), Bounds(2))
    assert await gone(await family(file))


async def test_a_canceled_command_ends_with_its_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    task = asyncio.create_task(run_command((sys.executable, "-c", FAMILY, str(file), "wait"), Bounds(60)))
    pids = await family(file)
    assert all(map(is_running, pids))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(pids)


async def test_what_a_command_leaves_behind_ends_and_does_not_keep_us_waiting(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    done = await run_command((sys.executable, "-c", FAMILY, str(file), "end"), Bounds(60))
    assert (done.status, done.output) == (0, "done\n")
    assert await gone(await family(file))


async def test_a_command_is_bounded_from_its_first_instruction() -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_CORE))"
    done = await run_command((sys.executable, "-c", code), Bounds(20, limits={"AS": 1 << 30}))
    assert done.output == f"{1 << 30} (0, 0)\n"


@pytest.mark.parametrize(
    ("code", "bounds", "message"),
    [
        ("while True: print('x' * 10_000)", Bounds(30, output_bytes=1 << 20), "printed more than"),
        (
            "f = open('/dev/null', 'wb')\nwhile True: f.write(bytes(1 << 20))",
            Bounds(30, written_bytes=50 << 20),
            "wrote",
        ),
    ],
)
async def test_a_flood_ends_a_command(code: str, bounds: Bounds, message: str) -> None:
    with pytest.raises(CommandStopped, match=message):
        await run_command((sys.executable, "-c", code), bounds)


async def test_a_command_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(PROJECT_ROOT)!r})
from workers.environments import uv
from workers.commands import Bounds, run_command
sleeper = "import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
asyncio.run(run_command((sys.executable, "-c", sleeper), Bounds(60)))
"""
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    pids = await family(file, 1)
    assert is_running(pids[0])
    starter.send_signal(signal.SIGKILL)
    await starter.wait()
    assert await gone(pids)


GIT = """#!/bin/sh
case " $* " in
*" {hangs} "*) exec "{python}" -c '{family}' "{file}" wait ;;
*) exit 0 ;;
esac
"""


@pytest.mark.parametrize(("hangs", "message"), [("clone", "took longer than 1 s"), ("ls-tree", "git cannot read it")])
def test_an_import_past_its_time_ends_with_its_whole_group(
    hangs: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, program = tmp_path / "pids", tmp_path / "git"
    program.write_text(GIT.format(hangs=hangs, python=sys.executable, family=FAMILY, file=file))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(import_sources, "CLONE_SECONDS", 1.0)
    monkeypatch.setattr(import_sources, "READ_SECONDS", 1.0)
    with pytest.raises(PackageInvalid, match=message):
        import_sources.read_repository("https://git.example.org/x", is_own=True)
    assert asyncio.run(gone(asyncio.run(family(file))))


def understated_zip(name: str, megabytes: int) -> bytes:
    """A zip whose directory says that its only file has 10 bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    data = bytearray(buffer.getvalue())
    struct.pack_into("<I", data, data.find(b"PK\x01\x02") + 24, 10)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_zip, unpack])
def test_an_uploaded_zip_is_never_unpacked_beyond_its_stated_size(read: Callable[[bytes], object]) -> None:
    bomb = understated_zip("openenv.yaml", 400)
    honest = pack({"openenv.yaml": "name: x\n"})
    tracemalloc.start()
    try:
        assert read(honest)
        with pytest.raises(PackageInvalid):
            read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_zip, unpack])
def test_an_uploaded_zip_with_too_many_files_is_refused_unread(read: Callable[[bytes], object]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(40_000):
            archive.writestr(str(number), b"")
    data = buffer.getvalue()
    tracemalloc.start()
    try:
        with pytest.raises(PackageInvalid, match="the zip holds more than"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
