"""The client of the env host, and the sessions that it leads to. Everything outside this package imports this file.

async with EnvHost(settings.envhost_address) as host:
    await host.prepare(content_hash, files)
    async with host.lease(content_hash, manifest.proctor.resources) as server, server.session() as session:
        observation = await session.reset(task.reset_arguments(), timeout=10)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
import orjson

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import pack
from backend.domain.errors import SandboxError
from workers.environments.sessions import START_SECONDS, EnvServer, EnvSession, HostRefused, LeaseIsOver
from workers.environments.wire import JsonObject, Observation

__all__ = ["EnvHost", "EnvServer", "EnvSession", "HostRefused", "Observation"]

ANSWER_SECONDS = 15.0
"""How long the env host may take for an answer that needs no work."""


class EnvHost:
    """Talks to the env host process at `unix:/path` or `http://host:port`.

    `is_granted` reports, in a thread, whether an administrator granted network access to a package. Default: none.
    """

    def __init__(self, address: str, token: str = "", *, is_granted: Callable[[str], bool] = lambda _: False) -> None:
        self._is_granted = is_granted
        self._socket_path = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._base = "http://envhost" if self._socket_path else address.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "EnvHost":
        connector = aiohttp.UnixConnector(self._socket_path) if self._socket_path else None
        self._http = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def status(self) -> JsonObject:
        """The launcher, the result of its probe, the servers and the capacity."""
        return await self.ask("GET", "/status")

    async def prepare(self, content_hash: str, files: Mapping[str, str]) -> None:
        """Make the package ready to serve: upload, virtual environment, a first start. Does nothing the second time.

        Raises HostRefused, with the last lines of the package's log, when it does not start.
        """
        known = await self.ask("GET", f"/packages/{content_hash}")
        if not known["is_stored"]:
            await self.ask("PUT", f"/packages/{content_hash}", body=pack(files))
        if not known["is_ready"]:
            order = {"network": await asyncio.to_thread(self._is_granted, content_hash)}
            await self.ask("POST", f"/packages/{content_hash}/prepare", json=order, seconds=START_SECONDS)

    async def build_log(self, content_hash: str) -> tuple[str, bool]:
        """pip's output from building the package's virtual environment, and whether it has a separate one."""
        try:
            answer = await self.ask("GET", f"/packages/{content_hash}/build")
        except HostRefused:  # it was never stored
            return "", False
        return str(answer["log"]), bool(answer["is_own"])

    @asynccontextmanager
    async def lease(
        self, content_hash: str, resources: ResourcesSpec, *, servers: int = 1, hash_seed: int = 0
    ) -> AsyncIterator[EnvServer]:
        """One or more servers of a prepared package for ourselves; waits in the queue while the host is full.

        Sets of strings have the same order in all servers with the same `hash_seed`.
        """
        order = {"hash": content_hash, "resources": resources.model_dump(), "count": servers, "hash_seed": hash_seed}
        if resources.needs_grant:
            order["network"] = await asyncio.to_thread(self._is_granted, content_hash)
        server = EnvServer(self, order)
        try:
            yield await server.acquire()
        finally:
            await server.release()

    def reach(self, server: JsonObject) -> tuple[aiohttp.ClientSession, str]:
        """A connection pool and a URL for a server's WebSocket: its own socket, or the env host's proxy."""
        if self._socket_path:
            return aiohttp.ClientSession(connector=aiohttp.UnixConnector(server["socket"], limit=0)), "ws://server/ws"
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=self._headers)
        return http, f"{self._base}/servers/{server['id']}/ws"

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: JsonObject | None = None,
        body: bytes | None = None,
        seconds: float | None = ANSWER_SECONDS,
    ) -> JsonObject:
        """One request to the env host. Raises HostRefused if it refuses, SandboxError if it cannot be reached."""
        if self._http is None:
            raise SandboxError("the env host's client is not open: use `async with EnvHost(...)`")
        data = orjson.dumps(json) if json is not None else body
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.request(method, self._base + path, data=data, timeout=timeout) as response:
                answer = orjson.loads(await response.read())
        except TimeoutError as error:
            raise SandboxError(f"the env host did not answer {method} {path} within {seconds} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"the env host cannot be reached: {error}") from error
        except orjson.JSONDecodeError as error:
            raise SandboxError(f"the env host did not answer {method} {path} with JSON") from error
        if not isinstance(answer, dict):
            raise SandboxError(f"the env host did not answer {method} {path} with a JSON object")
        if response.status == 410:
            raise LeaseIsOver(str(answer.get("error", answer)))
        if response.status >= 400:
            raise HostRefused(str(answer.get("error", answer)))
        return answer
