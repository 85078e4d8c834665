"""Distributions without a wheel are built inside the jail; their build code sees nothing of the host."""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.errors import SandboxError
from backend.domain.manifest import ResourcesSpec
from backend.domain.packages import content_hash
from tests.envhost_fixture import HostProcess, package_files, prepared, start_host
from workers.environments.client import EnvHost
from workers.environments.sources import built_from_source, missing_of

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


def source(folder: Path, name: str, setup: str) -> None:
    """A source distribution with nothing but a `setup.py`."""
    data = setup.replace("NAME", name).encode()
    entry = tarfile.TarInfo(f"{name}-1.5/setup.py")
    entry.size = len(data)
    with tarfile.open(folder / f"{name}-1.5.tar.gz", "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(data))


@pytest.fixture(scope="module")
def links() -> Iterator[Path]:
    """Where pip finds the source distributions of these tests, besides its index."""
    folder = Path(tempfile.mkdtemp(prefix="links-"))
    witness = folder / "witness"
    witness.touch()
    source(folder, "proctor_told", LOOK_AROUND.replace("WITNESS", repr(str(witness))))
    source(folder, "proctor_broken", "raise RuntimeError('no such header')")
    source(folder, "proctor_liar", "from setuptools import setup\nsetup(name='pip', version='99')")
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
async def test_a_build_that_fails_tells_its_last_words(builder: HostProcess) -> None:
    files = package_files(dependencies=("openenv>=0.10", "proctor-broken"))
    async with EnvHost(builder.address) as host:
        with pytest.raises(SandboxError, match=r"could not be built in the sandbox:(.|\n)*no such header"):
            await host.prepare(content_hash(files), files)


@pytest.mark.slow
async def test_a_build_that_makes_another_distribution_is_refused(builder: HostProcess) -> None:
    files = package_files(dependencies=("openenv>=0.10", "proctor-liar"))
    async with EnvHost(builder.address) as host:
        with pytest.raises(SandboxError, match=r"it made 'pip-99.*' instead"):
            await host.prepare(content_hash(files), files)


def test_pip_names_what_it_did_not_find() -> None:
    said = (
        "ERROR: Could not find a version that satisfies the requirement cellpylib==2.4.0 (from gym) (from versions: )\n"
        "ERROR: No matching distribution found for cellpylib==2.4.0\n"
        "    reasoning-gym 0.1.25 depends on pycosat<1,>=0.6\n"
        "    reasoning-gym 0.1.24 depends on evil @ https://example.org/evil.tar.gz\n"
    )
    assert [str(requirement) for requirement in missing_of(said)] == ["cellpylib==2.4.0", "pycosat<1,>=0.6"]


def test_a_failure_of_another_kind_names_nothing() -> None:
    assert missing_of("ERROR: Could not install packages due to an OSError: disk full") == []
