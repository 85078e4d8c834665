"""A lease as the host keeps it: who waits for servers or has them, and whether its client still lives."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from backend.domain.environments.manifest import ResourcesSpec
from workers.environments.packages import StoredPackage
from workers.environments.servers import RunningServer

TTL_SECONDS = 10.0
"""A lease that no connection holds for so long has lost its client."""


class LeaseState(StrEnum):
    QUEUED = "queued"
    GRANTED = "granted"
    FAILED = "failed"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Lease:
    package: StoredPackage
    resources: ResourcesSpec
    count: int
    hash_seed: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: LeaseState = LeaseState.QUEUED
    servers: list[RunningServer] = field(default_factory=list)
    retiring: dict[str, tuple[RunningServer, float]] = field(default_factory=dict)
    error: str = ""
    expires_at: float = 0.0
    holders: int = 0
    """Connections that keep it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def renew(self) -> None:
        self.expires_at = time.monotonic() + TTL_SECONDS

    @contextmanager
    def held(self) -> Iterator["Lease"]:
        self.holders += 1
        try:
            yield self
        finally:
            self.holders -= 1
            self.renew()

    def has_lapsed(self, now: float) -> bool:
        return not self.holders and self.expires_at < now

    def become(self, state: LeaseState, error: str = "") -> None:
        self.state, self.error = state, error
        self.changed.set()
        if state is LeaseState.OVER:
            self.over.set()

    @property
    def memory_mb(self) -> int:
        return self.count * self.resources.memory_mb
