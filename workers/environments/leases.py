"""A lease as its client holds it: ordered, held by an open connection, ordered again when the env host lost it.

The host ends a lease when the connection that holds it closes and no new one comes within the lease's time to live.
So a client that computes for minutes keeps its servers, and one that died gives them back at once.
"""

import asyncio
import contextlib
import time
from typing import Any, Protocol

import aiohttp

from backend.domain.errors import SandboxError

POLL_SECONDS = 20.0
"""How long one question for a place in the queue stays open."""
START_SECONDS = 900.0
"""A package's own virtual environment may have to be built."""
RETURN_SECONDS = 60.0
"""How long a lost env host may take to come back."""


class HostRefused(SandboxError):
    """The env host answered that it cannot do this, and why."""


class LeaseIsOver(HostRefused):
    """The env host does not know this lease: it was started again, or had no sign of life from us."""


class Host(Protocol):
    """The parts of the env host's client that a lease needs."""

    async def ask(self, method: str, path: str, *, json: Any = None, seconds: float = ...) -> dict[str, Any]: ...

    async def hold(self, path: str) -> None: ...

    def reach(self, server: dict[str, Any]) -> tuple[aiohttp.ClientSession, str]: ...


class Lease:
    """One or more servers of a package, for ourselves."""

    def __init__(self, host: Host, order: dict[str, Any]) -> None:
        self._host, self._order = host, order
        self._path = ""
        self._holding: asyncio.Task[None] | None = None

    async def acquire(self) -> list[dict[str, Any]]:
        """The servers; waits in the queue while the host is full."""
        lease = await self._host.ask("POST", "/servers", json=self._order)
        self._path = f"/leases/{lease['id']}"
        self._holding = asyncio.create_task(self._hold(self._path))
        while lease["state"] == "queued":
            path = f"{self._path}?wait={POLL_SECONDS:g}"
            lease = await self._host.ask("GET", path, seconds=POLL_SECONDS + 15)
        return list(lease["servers"])

    async def acquire_again(self) -> list[dict[str, Any]]:
        """After the host lost the lease; waits for a host that is being started again."""
        await self._let_go()
        deadline = time.monotonic() + RETURN_SECONDS
        while True:
            try:
                return await self.acquire()
            except HostRefused:
                raise
            except SandboxError:
                if time.monotonic() > deadline:
                    raise
            await self._let_go()
            await asyncio.sleep(0.5)

    async def _hold(self, path: str) -> None:
        """Keep a connection open as a heartbeat, until canceled or until the lease ends."""
        while True:
            try:
                await self._host.hold(path)
            except LeaseIsOver:
                return
            except SandboxError:
                pass  # the host may come back
            await asyncio.sleep(0.5)

    async def replace(self, server: str) -> dict[str, Any]:
        """A fresh server instead of one that is dead or worn; the old one may end its sessions."""
        return await self._host.ask("POST", f"{self._path}/servers/{server}/replace", seconds=START_SECONDS)

    async def retire(self, server: str) -> None:
        """A replaced server has no sessions any more."""
        with contextlib.suppress(SandboxError):  # the host ends it by itself after a while
            await self._host.ask("DELETE", f"{self._path}/servers/{server}")

    async def fate(self, server: str) -> str:
        """Describe how a server ended, with the end of its log; empty while it lives or if unknown."""
        try:
            answer = await self._host.ask("GET", f"/servers/{server}")
        except SandboxError:
            return ""
        return f"the server {answer['fate']}\n{answer['log']}".strip() if answer["fate"] else ""

    def reach(self, server: dict[str, Any]) -> tuple[aiohttp.ClientSession, str]:
        return self._host.reach(server)

    async def release(self, worn: list[str]) -> None:
        """Return the servers to the pool, except worn ones."""
        if self._path:
            with contextlib.suppress(SandboxError):  # it lapses by itself
                await asyncio.shield(self._host.ask("DELETE", f"{self._path}?worn={','.join(worn)}"))
        await self._let_go()

    async def _let_go(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)
            self._holding = None
