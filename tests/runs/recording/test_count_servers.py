"""How many servers an evaluation leases."""

from typing import Any

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from workers.storage.env_host import servers_for


class Host:
    """An env host that only reports its status: numbers of places, megabytes and leased servers."""

    def __init__(self, servers: int = 64, memory_mb: int = 64_000, leased: int = 0) -> None:
        running = [{"is_leased": number < leased, "memory_mb": 1000} for number in range(leased + 3)]
        self._status = {"capacity": {"servers": servers, "memory_mb": memory_mb}, "servers": running}

    async def status(self) -> dict[str, Any]:
        return self._status


@pytest.mark.parametrize(
    ("host", "sessions", "concurrency", "servers"),
    [
        (Host(), 64, 64, 1),
        (Host(), 64, 512, 8),
        (Host(), 1, 64, 16),
        (Host(servers=8), 1, 64, 4),
        (Host(servers=8, leased=7), 1, 64, 1),
        (Host(memory_mb=6_000), 1, 64, 3),
        (Host(memory_mb=500), 1, 64, 1),
    ],
)
async def test_there_are_enough_and_never_more_than_half_of_what_is_free(
    host: Host, sessions: int, concurrency: int, servers: int
) -> None:
    resources = ResourcesSpec(memory_mb=1000, sessions=sessions)
    assert await servers_for(host, resources, concurrency) == servers  # type: ignore[arg-type]
