"""The env host as jobs use it: its address and token, network grants, and the number of servers to lease."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest, ResourcesSpec
from backend.environments.tables import NetworkGrant
from backend.settings import get_settings
from workers.environments.client import EnvHost, EnvServer

MAX_SERVERS = 16
"""Per worker: with more, the worker's own event loop is the bottleneck."""


def open_env_host() -> EnvHost:
    """`async with open_env_host() as host`"""

    def has_network_grant(content_hash: str) -> bool:
        """Read for each lease, so a revocation applies at once."""
        with transaction() as session:
            return session.get(NetworkGrant, content_hash) is not None

    settings = get_settings()
    return EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value(), is_granted=has_network_grant)


@asynccontextmanager
async def serve(content_hash: str, files: Mapping[str, str], manifest: Manifest) -> AsyncIterator[EnvServer]:
    """Prepare a package and lease one server of it."""
    async with open_env_host() as host:
        await host.prepare(content_hash, files)
        async with host.lease(content_hash, manifest.proctor.resources) as server:
            yield server


async def servers_for(host: EnvHost, resources: ResourcesSpec, concurrency: int) -> int:
    """Number of servers that an evaluation leases: enough for its episodes, at most half of the free ones.

    Many packages support only a single session per server.
    """
    needed = min(-(-concurrency // resources.sessions), MAX_SERVERS)
    if needed <= 1 or resources.remote:
        return 1
    status = await host.status()
    capacity = status.get("capacity") or {}
    leased = [server for server in status.get("servers", ()) if server.get("is_leased")]  # idle ones make room
    memory = int(capacity.get("memory_mb", 0)) - sum(int(server["memory_mb"]) for server in leased)
    free = min(int(capacity.get("servers", 0)) - len(leased), memory // resources.memory_mb)
    return max(1, min(needed, free // 2))
