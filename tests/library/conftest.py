"""Library packages on the real env host."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from backend.domain.environments.manifest import read_manifest
from tests.envhost_fixture import prepared
from workers.environments.client import EnvHost, EnvServer

Serve = Callable[..., AbstractAsyncContextManager[EnvServer]]


@pytest.fixture
def serve(env_host: EnvHost) -> Serve:
    """A leased server of a package; `hash_seed` of its string hashes, `branches` for one that records them."""

    @asynccontextmanager
    async def serve(files: dict[str, str], hash_seed: int = 0, *, branches: bool = False) -> AsyncIterator[EnvServer]:
        resources = read_manifest(files["openenv.yaml"]).proctor.resources
        hash_ = await prepared(env_host, files)
        async with env_host.lease(hash_, resources, hash_seed=hash_seed, branches=branches) as server:
            yield server

    return serve
