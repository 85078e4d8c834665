"""Has the env host room for all ranks? Else those that got servers would wait for those that never do."""

import asyncio

from backend.domain.environments.manifest import ResourcesSpec
from workers.storage.env_host import open_env_host


class NoRoom(RuntimeError):
    """The env host can never serve all processes at once."""


def check_room(needs: list[ResourcesSpec], each: int) -> None:
    """`needs`: one for each environment and process; `each`: servers that each of them leases."""
    local = [need for need in needs if not need.remote]
    if not local:
        return
    there = asyncio.run(_capacity())
    servers, memory_mb = len(local) * each, sum(need.memory_mb for need in local) * each
    if servers > there["servers"] or memory_mb > there["memory_mb"]:
        raise NoRoom(
            f"All processes together lease {servers} env servers with {memory_mb:,} MB; the env host has room for "
            f"{there['servers']} with {there['memory_mb']:,} MB. Choose fewer hardware.processes or servers."
        )


async def _capacity() -> dict[str, int]:
    async with open_env_host() as host:
        return dict((await host.status())["capacity"])
