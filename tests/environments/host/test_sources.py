"""Distributions without a wheel are built inside the jail; their build code sees nothing of the host."""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import content_hash
from backend.domain.errors import SandboxError
from tests.envhost_fixture import HostProcess, package_files, prepared, start_host
from workers.environments.client import EnvHost
from workers.environments.sources import built_from_source
from workers.environments.uv import without_wheel

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
FIND_LINKS = os.environ.get("PIP_FIND_LINKS", "")  # noqa: TID251
LOOK_AROUND = """
import os, socket
from setuptools import setup

def reaches(address):
    try:
        socket.create_connection(address, timeout=1)
    except OSError:
        return False
    return True

found = {
    "root": os.getuid() == 0,
    "passwords": os.path.exists("/etc/passwd"),
    "witness": os.path.exists(WITNESS),
    "loopback": reaches(("127.0.0.1", 22)) or reaches(("127.0.0.1", 80)),
    "variables": sorted(set(os.environ) - {"PATH", "HOME", "LANG", "CC", "CXX", "LDSHARED", "LDCXXSHARED"}),
    "works": True,
}
with open("told_by_build.py", "w") as file:
    file.write(f"FOUND = {found!r}")
setup(name="NAME", version="1.5", py_modules=["told_by_build"])
"""
GREEDY = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        kept = bytearray(300 << 20)
        for place in range(0, len(kept), 4096): kept[place] = 1
        time.sleep(60); os._exit(0)
time.sleep(60)
"""


def source(folder: Path, name: str, setup: str) -> None:
    """A source distribution with nothing but a `setup.py`."""
    data = setup.replace("NAME", name).encode()
    entry = tarfile.TarInfo(f"{name}-1.5/setup.py")
    entry.size = len(data)
    with tarfile.open(folder / f"{name}-1.5.tar.gz", "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(data))


@pytest.fixture(scope="module")
def links() -> Iterator[Path]:
    """Where pip finds the source distributions of these tests, in addition to its index."""
    folder = Path(tempfile.mkdtemp(prefix="links-"))
    witness = folder / "witness"
    witness.touch()
    source(folder, "proctor_told", LOOK_AROUND.replace("WITNESS", repr(str(witness))))
    source(folder, "proctor_broken", "raise RuntimeError('no such header')")
    source(folder, "proctor_liar", "from setuptools import setup\nsetup(name='pip', version='99')")
    source(folder, "proctor_greedy", GREEDY)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def builder(links: Path) -> Iterator[HostProcess]:
    data = Path(tempfile.mkdtemp(prefix="sb-"))
    host = start_host(data, PIP_FIND_LINKS=f"{links} {FIND_LINKS}")
    yield host
    host.stop()
    shutil.rmtree(data, ignore_errors=True)


@pytest.mark.slow
async def test_a_source_is_built_where_nothing_of_the_host_is_seen(builder: HostProcess) -> None:
    files = package_files(
        dependencies=("openenv>=0.10", "proctor-told"),
        in_step="import told_by_build\nobservation.data = told_by_build.FOUND",
    )
    async with EnvHost(builder.address) as host:
        hash_ = await prepared(host, files)
        async with host.lease(hash_, RESOURCES) as server, server.session() as session:
            await session.reset({}, timeout=10)
            found = (await session.step({"amount": 1}, timeout=10)).fields["data"]
        log, is_own = await host.build_log(hash_)
    assert found == {
        "root": False,
        "passwords": False,
        "witness": False,
        "loopback": False,
        "variables": [],
        "works": True,
    }
    assert is_own
    assert built_from_source(log) == ["proctor-told 1.5"]
    assert not list((builder.data / "environments").glob("*.wheels"))


@pytest.mark.slow
async def test_a_build_that_fails_shows_its_last_words(builder: HostProcess) -> None:
    files = package_files(dependencies=("openenv>=0.10", "proctor-broken"))
    async with EnvHost(builder.address) as host:
        with pytest.raises(SandboxError, match=r"could not be built in the sandbox:(.|\n)*no such header"):
            await host.prepare(content_hash(files), files)


@pytest.mark.slow
async def test_a_build_whose_processes_take_too_much_memory_together_is_ended(builder: HostProcess) -> None:
    files = package_files(dependencies=("openenv>=0.10", "proctor-greedy"))
    async with EnvHost(builder.address) as host:
        with pytest.raises(SandboxError, match="used more than 1536 MB of memory"):
            await host.prepare(content_hash(files), files)


@pytest.mark.slow
async def test_a_build_that_makes_another_distribution_is_refused(builder: HostProcess) -> None:
    files = package_files(dependencies=("openenv>=0.10", "proctor-liar"))
    async with EnvHost(builder.address) as host:
        with pytest.raises(SandboxError, match=r"it made 'pip-99.*' instead"):
            await host.prepare(content_hash(files), files)


UNUSABLE = """\
  x No solution found when resolving dependencies:
  `-> Because cellpylib==2.4.0 has no usable wheels and reasoning-gym>=0.1.25 depends on cellpylib==2.4.0, we can
      conclude that reasoning-gym>=0.1.25 cannot be used.
      And because only pycosat<1 is available, and you require pycosat>=0.6,<1, we are stuck. pycosat==0.1 is old.
hint: Wheels are required for `cellpylib` because building from source is disabled for all packages
hint: Wheels are required for `pycosat` because building from source is disabled for all packages
hint: Wheels are required for `zss` because building from source is disabled for all packages
"""


@pytest.mark.slow
def test_requirements_without_a_wheel_are_read_with_the_versions_that_are_needed() -> None:
    found = [str(requirement) for requirement in without_wheel(UNUSABLE)]
    assert found == ["cellpylib==2.4.0", "pycosat<1,>=0.6", "zss"]


def test_a_failure_of_another_kind_names_nothing() -> None:
    assert without_wheel("error: Failed to fetch: disk full") == []
