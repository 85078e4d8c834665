"""Start a server with the current launcher, or connect to an external one."""

import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from backend.core.outgoing import OutgoingPolicy
from backend.domain.environments.manifest import NetworkSpec, ResourcesSpec
from backend.domain.errors import SandboxError
from backend.domain.network import NOBODY, NetworkRule
from workers.environments.containers import SOCKET, Engine
from workers.environments.launchers import Launcher, Offer
from workers.environments.logs import LogTail
from workers.environments.packages import StoredPackage
from workers.environments.relays import open_relay
from workers.environments.runtimes import Runtimes
from workers.environments.servers import RunningServer, begin_serving, listen, start_server


@dataclass(frozen=True, slots=True)
class Grants:
    """Permissions of the env host, set by the operator of this machine."""

    network: NetworkRule
    outgoing: OutgoingPolicy
    """Where remote servers may be."""

    def refuse_network(self, package: StoredPackage, resources: ResourcesSpec, *, is_granted: bool) -> None:
        """Raises SandboxError for servers that want a network and have no grant, or no right to one here."""
        if not isinstance(resources.network, NetworkSpec) or self.network.allows(package.hash, is_granted=is_granted):
            return
        asks = f"this version asks for the network ({', '.join(resources.network.hosts)})"
        if self.network.is_closed:
            raise SandboxError(f"{asks}, which is closed on this machine (PROCTOR_ALLOW_NETWORK={NOBODY})")
        raise SandboxError(
            f"{asks}, and no administrator has granted it: on the version's page, or by `proctor env grant`"
        )


class Starter:
    def __init__(self, runtimes: Runtimes, offer: Offer, folder: Path, grants: Grants, engine: Engine | None) -> None:
        self._runtimes, self._offer, self._folder = runtimes, offer, folder
        self._grants, self._engine = grants, engine

    async def start(
        self, package: StoredPackage, resources: ResourcesSpec, seconds: float, *, hash_seed: int = 0
    ) -> RunningServer:
        """Raises SandboxError when it may not, cannot or does not start."""
        if resources.remote:
            return await self._reach(package, resources, seconds)
        match self._offer.launcher:
            case Launcher.NONE | Launcher.REMOTE:
                raise SandboxError(self._offer.refusal)
            case Launcher.DOCKER:
                return await self._contain(package, resources, seconds, hash_seed)
            case _:
                zygote = await self._runtimes.zygote_for(
                    package, has_network=resources.needs_grant, hash_seed=hash_seed
                )
                return await start_server(zygote, package, resources, self._folder, seconds)

    async def _reach(self, package: StoredPackage, resources: ResourcesSpec, seconds: float) -> RunningServer:
        path = self._home() / SOCKET
        listener = listen(path)
        try:
            relay = await open_relay(resources, listener, policy=self._grants.outgoing)
        except BaseException:
            listener.close()
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        (log := LogTail()).handed_over()
        server = RunningServer(path.parent.name, package, resources, path, relay, log)
        await begin_serving(server, seconds)
        return server

    async def _contain(
        self, package: StoredPackage, resources: ResourcesSpec, seconds: float, hash_seed: int
    ) -> RunningServer:
        assert self._engine is not None
        home, log = self._home(), LogTail()
        if os.getuid() == 0:
            os.chown(home, *map(int, container_user().split(":")))  # it makes its socket there
        try:
            container = await self._engine.start(package, resources, home, log, hash_seed=hash_seed)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            log.handed_over()
            log.close()
            raise
        server = RunningServer(home.name, package, resources, home / SOCKET, container, log, "/health")
        await begin_serving(server, seconds)
        return server

    def _home(self) -> Path:
        home = self._folder / uuid.uuid4().hex[:12]
        home.mkdir(mode=0o700, parents=True)
        return home


def container_user() -> str:
    """Containers run as the env host's user, unless that is root, so that both can use their socket."""
    return f"{os.getuid() or 65534}:{os.getgid() or 65534}"
