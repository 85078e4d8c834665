"""How many servers of a package an evaluation leases: enough for its episodes, no more than half of what is free."""

from typing import Any

from backend.domain.environments.manifest import ResourcesSpec
from workers.environments.client import EnvHost

MOST_SERVERS = 16
"""For one worker: beyond that its own loop is what limits it."""


async def servers_for(host: EnvHost, resources: ResourcesSpec, concurrency: int) -> int:
    """Many packages bear a single session; several servers of such a one play side by side."""
    wanted = min(-(-concurrency // resources.sessions), MOST_SERVERS)
    if wanted <= 1 or resources.remote:
        return 1
    return max(1, min(wanted, _room(await host.status(), resources) // 2))


def _room(status: dict[str, Any], resources: ResourcesSpec) -> int:
    """Servers of this size that could be started now. Idle ones make room for others."""
    capacity = status.get("capacity") or {}
    leased = [server for server in status.get("servers", ()) if server.get("is_leased")]
    memory = int(capacity.get("memory_mb", 0)) - sum(int(server["memory_mb"]) for server in leased)
    return min(int(capacity.get("servers", 0)) - len(leased), memory // resources.memory_mb)
