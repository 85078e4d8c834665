"""Servers that record which branches of their package run, also of packages that meddle with it."""

import pytest

from backend.domain.environments.branches import read_sources
from backend.domain.environments.manifest import read_manifest
from backend.domain.errors import EnvError
from tests.envhost_fixture import package_files, prepared
from workers.environments.client import EnvHost, HostRefused

FORKS = """
import os
if self.steps == 1:
    child = os.fork()
    if child == 0:
        os._exit(0 if action.amount == 2 else 1)
    os.waitpid(child, 0)
"""


async def executed(host: EnvHost, files: dict[str, str], amount: int = 2) -> list[str]:
    """Play one step on a server that records; return the executed branches of the counter."""
    branches = [branch for source in read_sources(files) for branch in source.branches]
    resources = read_manifest(files["openenv.yaml"]).proctor.resources
    async with host.lease(await prepared(host, files), resources, branches=True) as server:
        await server.read_branches()
        async with server.session() as session:
            await session.reset({}, timeout=10)
            await session.step({"amount": amount}, timeout=10)
        record = await server.read_branches()
        assert len(record) == len(branches)
        assert not any(await server.read_branches())  # each is reported once
    return [
        f"{branch.line} {branch.outcome}"
        for branch, seen in zip(branches, record, strict=True)
        if seen and branch.path.endswith("counter_environment.py")
    ]


@pytest.mark.slow
async def test_a_server_records_what_runs_also_in_processes_that_it_forks(env_host: EnvHost) -> None:
    files = package_files("branching", in_step=FORKS)
    where = files["server/counter_environment.py"].split("\n")
    fork, child = (next(n for n, line in enumerate(where, 1) if text in line) for text in ("steps == 1", "amount == 2"))
    both = [f"{fork} true", f"{fork + 2} true", f"{fork + 2} false"]  # which of them is the child
    assert await executed(env_host, files) == [*both, f"{child} true"]
    assert await executed(env_host, files, amount=1) == [*both, f"{child} false"]


@pytest.mark.slow
async def test_a_server_without_the_record_has_none_and_is_not_given_for_one_that_has(env_host: EnvHost) -> None:
    files = package_files("plain")
    resources = read_manifest(files["openenv.yaml"]).proctor.resources
    async with env_host.lease(await prepared(env_host, files), resources) as server:
        with pytest.raises(HostRefused, match="does not record branches"):
            await server.read_branches()
    await executed(env_host, files)
    async with env_host.lease(await prepared(env_host, files), resources) as server:
        with pytest.raises(HostRefused, match="does not record branches"):
            await server.read_branches()


@pytest.mark.slow
async def test_a_package_that_removes_the_record_only_breaks_itself(env_host: EnvHost) -> None:
    meddling = "import builtins\nvars(builtins).pop('__proctor_hit__', None)"
    with pytest.raises(EnvError, match="__proctor_hit__"):
        await executed(env_host, package_files("meddler", before_app=meddling, in_step="if self.total: pass"))
