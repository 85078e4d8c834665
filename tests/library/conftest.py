"""Library packages on the real env host."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from backend.domain.manifest import read_manifest
from tests.envhost_fixture import prepared
from workers.environments.client import EnvHost, EnvServer

Serve = Callable[[dict[str, str]], AbstractAsyncContextManager[EnvServer]]


@pytest.fixture
def serve(env_host: EnvHost) -> Serve:
    """A leased server of a package."""

    @asynccontextmanager
    async def serve(files: dict[str, str]) -> AsyncIterator[EnvServer]:
        resources = read_manifest(files["openenv.yaml"]).proctor.resources
        async with env_host.lease(await prepared(env_host, files), resources) as server:
            yield server

    return serve
