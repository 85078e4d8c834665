"""Servers hash strings alike, so that sets of strings have one order; a lease may ask for servers that do not."""

import pytest

from backend.domain.environments.manifest import read_manifest
from tests.envhost_fixture import package_files, prepared
from workers.environments.client import EnvHost


async def hash_of(host: EnvHost, files: dict[str, str], seed: int) -> str:
    resources = read_manifest(files["openenv.yaml"]).proctor.resources
    async with (
        host.lease(await prepared(host, files), resources, hash_seed=seed) as server,
        server.session() as session,
    ):
        await session.reset({}, timeout=10)
        answer = await session.step({"amount": 1}, timeout=10)
        return str(answer.fields["text"])


@pytest.mark.slow
async def test_only_a_lease_with_another_seed_gets_other_hashes(env_host: EnvHost) -> None:
    files = package_files("hashes", in_step="observation.text = str(hash('proctor'))")
    ours = await hash_of(env_host, files, 0)
    assert await hash_of(env_host, files, 1) != ours
    assert await hash_of(env_host, files, 0) == ours
    assert await hash_of(env_host, files, 1) != ours  # an idle server of the one kind is not given for the other
