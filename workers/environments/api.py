"""The env host's HTTP interface. Errors are JSON: {"error": what and where}."""

import asyncio
import hmac
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import MAX_PACKAGE_BYTES, PackageInvalid
from backend.domain.errors import SandboxError, boundary
from workers.environments.inside.recorder import BRANCHES_PATH
from workers.environments.inside.shared_connection import PROTOCOL
from workers.environments.packages import PackageStore
from workers.environments.pool import TTL_SECONDS, LeaseState, PoolLease, ServerPool
from workers.environments.relays import relay_frames
from workers.environments.servers import RunningServer, get_object


class LeaseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hash: str
    network: bool = False
    """Whether an administrator granted network access; clients with our token are trusted."""
    resources: ResourcesSpec | None = None
    """Default: as the package requests."""
    count: int = Field(default=1, ge=1, le=64)
    hash_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of Python's string hashes. Values other than 0 are for finding out what depends on them."""
    branches: bool = False
    """Record which branches of the package's code run. Its code is rewritten for that and a little slower."""


@dataclass(slots=True)
class EnvHostApi:
    store: PackageStore
    pool: ServerPool
    token: str = ""
    """Empty: anyone who reaches the socket may connect."""

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=2 * MAX_PACKAGE_BYTES)
        add = app.router.add_route
        add("GET", "/status", self.get_status)
        add("GET", "/packages/{hash}", self.get_package)
        add("PUT", "/packages/{hash}", self.put_package)
        add("POST", "/servers", self.request_lease)
        add("GET", "/servers/{server}", self.get_server)
        add("GET", "/servers/{server}/branches", self.get_branches)
        add("GET", "/servers/{server}/ws", self.proxy)
        add("GET", "/leases/{lease}", self.wait_for_lease)
        add("GET", "/leases/{lease}/hold", self.hold_lease)
        add("DELETE", "/leases/{lease}", self.release_lease)
        add("POST", "/leases/{lease}/servers/{server}/replace", self.replace_server)
        add("DELETE", "/leases/{lease}/servers/{server}", self.retire_server)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token and turn exceptions into JSON."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(given.encode(errors="surrogateescape"), self.token.encode()):
            return web.json_response({"error": "the env host requires its token"}, status=401)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.json_response({"error": error.reason}, status=error.status)
        except (PackageInvalid, ValidationError) as error:
            return web.json_response({"error": str(error)}, status=422)
        except SandboxError as error:
            return web.json_response({"error": str(error)}, status=503)

    # packages

    async def get_status(self, request: web.Request) -> web.Response:
        leased = {server.id for lease in self.pool.leases.values() for server in lease.servers}
        servers = [
            {
                "id": server.id,
                "package": server.package.name,
                "hash": server.package.hash,
                "sessions": server.sessions,
                "memory_mb": server.resources.memory_mb,
                "is_leased": server.id in leased,
            }
            for server in self.pool.live_servers()
        ]
        choice = self.pool.launcher.choice
        capacity = {"servers": self.pool.max_servers, "memory_mb": self.pool.max_memory_mb}
        launcher = {"launcher": str(choice.launcher), "probe": choice.probe}
        return web.json_response(launcher | {"capacity": capacity, "servers": servers})

    async def get_package(self, request: web.Request) -> web.Response:
        """State of a package; with `?log=1` also pip's output from building its own environment, if it has one."""
        package = self.store.find(request.match_info["hash"])
        is_ready = package is not None and package.hash in self.pool.started
        answer: dict[str, object] = {"is_stored": package is not None, "is_ready": is_ready}
        if package is not None and "log" in request.query:
            environments = self.pool.launcher.environments
            answer |= {"log": environments.log_of(package), "is_own": bool(environments.key_of(package))}
        return web.json_response(answer)

    async def put_package(self, request: web.Request) -> web.Response:
        self.store.put(request.match_info["hash"], await request.read())
        in_use: list[PoolLease | RunningServer] = [*self.pool.leases.values(), *self.pool.live_servers()]
        self.store.evict({each.package.hash for each in in_use})
        return web.json_response({"is_stored": True})

    # leases

    async def request_lease(self, request: web.Request) -> web.Response:
        body = LeaseRequest.model_validate_json(await request.read())
        package = self.store.find(body.hash)
        if package is None:
            raise web.HTTPNotFound(reason="this env host does not have the package; prepare it first")
        resources = body.resources or package.resources
        self.pool.launcher.refuse_network(package, resources, is_granted=body.network)
        lease = self.pool.request_lease(
            package, resources, body.count, hash_seed=body.hash_seed, branches=body.branches
        )
        return await _wait_for_lease(lease, 2.0)  # a warm server is there at once: save the client a second request

    async def wait_for_lease(self, request: web.Request) -> web.Response:
        lease = self._lease(request)
        lease.renew()
        return await _wait_for_lease(lease, min(30.0, float(request.query.get("wait", "0"))))

    async def hold_lease(self, request: web.Request) -> web.Response:
        """Keep the lease while this connection is open."""
        lease = self._lease(request)
        lease.holders += 1
        try:
            await lease.over.wait()
        finally:
            lease.holders -= 1
            lease.renew()
        raise web.HTTPGone(reason="this lease has ended")

    async def release_lease(self, request: web.Request) -> web.Response:
        failed = frozenset(filter(None, request.query.get("failed", "").split(",")))
        await self.pool.release(self._lease(request), failed)
        return web.json_response({})

    async def replace_server(self, request: web.Request) -> web.Response:
        server = await self.pool.replace(self._lease(request), request.match_info["server"])
        return web.json_response(server.describe())

    async def retire_server(self, request: web.Request) -> web.Response:
        await self.pool.retire(self._lease(request), request.match_info["server"])
        return web.json_response({})

    def _lease(self, request: web.Request) -> PoolLease:
        if lease := self.pool.leases.get(request.match_info["lease"]):
            return lease
        raise web.HTTPGone(reason="this lease has ended")

    # leased servers

    async def get_server(self, request: web.Request) -> web.Response:
        """Return how a leased server ended, if it did, and the end of its log."""
        server = self._server(request)
        log = server.log.last_lines(count=200, characters=16_000)
        return web.json_response({"exit_reason": await server.exit_reason(), "log": log})

    async def get_branches(self, request: web.Request) -> web.Response:
        """Return the branches that ran since the last request, and forget them."""
        server = self._server(request)
        if not server.branches:
            raise web.HTTPNotFound(reason="this server does not record branches")
        async with boundary(SandboxError, "the record of branches"), asyncio.timeout(5):
            report = await get_object(server.socket, BRANCHES_PATH)
        return web.json_response({"executed": str(report.get("executed", ""))})

    async def proxy(self, request: web.Request) -> web.StreamResponse:
        """Relay a WebSocket of a worker on another machine to the server's own socket."""
        connector = aiohttp.UnixConnector(str(self._server(request).socket))
        async with aiohttp.ClientSession(connector=connector) as http:
            return await relay_frames(request, http, "ws://server/ws", heartbeat=30, protocol=PROTOCOL)

    def _server(self, request: web.Request) -> RunningServer:
        """Find a leased server; idle ones are not accessible."""
        for server in (server for lease in self.pool.leases.values() for server in (*lease.servers, *lease.retiring)):
            if server.id == request.match_info["server"]:
                return server
        raise web.HTTPNotFound(reason="no such server is leased")


async def _wait_for_lease(lease: PoolLease, seconds: float) -> web.Response:
    """Wait until the lease is granted, at most `seconds`, and describe it. Raises SandboxError if it failed."""
    with suppress(TimeoutError):  # the client will ask again
        async with asyncio.timeout(seconds):
            await lease.changed.wait()
    if lease.state is LeaseState.FAILED:
        raise SandboxError(lease.error)
    servers = [server.describe() for server in lease.servers]
    described = {"id": lease.id, "state": str(lease.state), "ttl_seconds": TTL_SECONDS, "servers": servers}
    return web.json_response(described)
