"""Start environment servers on this machine, in a jail, a container or a plain process, or connect to external ones.

The machine's capabilities are tested, not guessed, when the env host starts.
"""

import asyncio
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from backend.core.outgoing import OutgoingPolicy
from backend.domain.addresses import NOBODY, NetworkRule
from backend.domain.environments.manifest import NetworkSpec, ResourcesSpec
from backend.domain.errors import SandboxError
from workers.commands import Bounds, CommandStopped, run_command
from workers.environments.containers import SOCKET, ContainerEngine
from workers.environments.inside.recorder import NOT_RECORDED
from workers.environments.packages import StoredPackage
from workers.environments.processes import LogTail, ServerProcess
from workers.environments.relays import open_relay
from workers.environments.servers import RunningServer, listen, start_server, wait_until_serving
from workers.environments.virtual_environments import VirtualEnvironments
from workers.environments.zygotes import Zygote, jail_command, site_packages_of


class Launcher(StrEnum):
    JAIL = "jail"
    """Namespaces, seccomp, limits; see `inside/jail.py`."""
    DOCKER = "docker"
    """A container per server; see `containers.py`."""
    REMOTE = "remote"
    """Run nothing; only connect to external servers."""
    PROCESS = "process"
    """No isolation at all."""
    NONE = "none"
    """Foreign code is refused."""


@dataclass(frozen=True, slots=True)
class LauncherChoice:
    """The launcher for this machine, and the probe results that led to it."""

    launcher: Launcher
    probe: dict[str, object]
    """`jail`: whether it holds here; `reason`: why not; `checks`: each attempt to escape and whether it failed."""

    @property
    def refusal(self) -> str:
        if self.launcher is Launcher.REMOTE:
            return "this env host only reaches servers that run elsewhere (`resources: {remote: …}`)"
        if requested := self.probe.get("requested"):
            return f"environment code is refused: the {requested} launcher was requested, but {self.probe['reason']}"
        return (
            f"this machine offers no sandbox ({self.probe.get('reason', 'unknown')}), so environment code is refused; "
            "an administrator may allow it to run without one (PROCTOR_ALLOW_UNSANDBOXED=true)"
        )


async def choose_launcher(
    runtime_python: Path,
    folder: Path,
    *,
    allow_unsandboxed: bool,
    requested: str = "",
    engine: ContainerEngine | None = None,
) -> LauncherChoice:
    """`requested`: a launcher's name. Default: the best one. Never degrades silently."""
    if requested == Launcher.REMOTE:
        return LauncherChoice(Launcher.REMOTE, {"jail": False, "reason": "not tested"})
    if requested == Launcher.DOCKER:
        reason = await engine.unavailable_reason() if engine else "there is no engine"
        docker_probe: dict[str, object] = {"jail": False, "requested": requested, "reason": reason}
        return LauncherChoice(Launcher.NONE if reason else Launcher.DOCKER, docker_probe)
    probe = await _probe_jail(runtime_python, folder)
    if requested in {"", Launcher.JAIL} and probe["jail"]:
        return LauncherChoice(Launcher.JAIL, probe)
    if requested in {"", Launcher.PROCESS} and allow_unsandboxed:
        return LauncherChoice(Launcher.PROCESS, probe)
    if requested == Launcher.PROCESS:
        probe = {**probe, "reason": "the process launcher was requested but is not allowed"}
    return LauncherChoice(Launcher.NONE, probe)


async def _probe_jail(runtime_python: Path, folder: Path) -> dict[str, object]:
    """Build a whole jail around a small program that tries to escape (`inside/probe.py`)."""
    if not runtime_python.exists():
        return {"jail": False, "reason": "the environment runtime is missing: run `make setup`"}
    (folder / "root").mkdir(parents=True, exist_ok=True)
    try:
        site_packages = [str(site_packages_of(runtime_python))]
    except SandboxError as error:
        return {"jail": False, "reason": str(error)}
    ring = {"new_root": str(folder / "root"), "site_packages": site_packages, "uid": 60_999}
    command = jail_command(runtime_python.absolute(), ring, "probe", __file__)
    try:
        done = await run_command(command, Bounds(30), environment={})
        checks = json.loads(done.output)
    except CommandStopped as error:
        return {"jail": False, "reason": f"building a jail failed: {error}"}
    except json.JSONDecodeError:
        lines = done.errors.strip().splitlines()
        return {"jail": False, "reason": lines[-1] if lines else "the jail could not be built"}
    broken = [name for name, is_held in checks.items() if not is_held]
    return {"jail": not broken, "reason": f"the jail leaks: {', '.join(broken)}" if broken else "", "checks": checks}


@dataclass(slots=True, eq=False)
class ServerLauncher:
    """Starts servers, with warm interpreters of this host: one per virtual environment, started when first needed."""

    environments: VirtualEnvironments
    choice: LauncherChoice
    folder: Path
    network: NetworkRule
    outgoing: OutgoingPolicy
    """Allowed addresses of remote servers."""
    engine: ContainerEngine
    _zygotes: dict[str, Zygote] = field(default_factory=dict)
    _used_at: dict[str, float] = field(default_factory=dict)
    _starting: dict[str, asyncio.Lock] = field(default_factory=dict)
    _uids: Iterator[int] = field(default_factory=itertools.count)

    def refuse_network(self, package: StoredPackage, resources: ResourcesSpec, *, is_granted: bool) -> None:
        """Raises SandboxError for servers that request a network without a grant, or where none may be granted."""
        if not isinstance(resources.network, NetworkSpec) or self.network.allows(package.hash, is_granted=is_granted):
            return
        request = f"this version requests network access ({', '.join(resources.network.hosts)})"
        if self.network.is_closed:
            raise SandboxError(f"{request}, which is closed on this machine (PROCTOR_ALLOW_NETWORK={NOBODY})")
        raise SandboxError(
            f"{request}, and no administrator has granted it: on the version's page, or by `proctor env grant`"
        )

    async def start(
        self,
        package: StoredPackage,
        resources: ResourcesSpec,
        seconds: float,
        *,
        hash_seed: int = 0,
        branches: bool = False,
    ) -> RunningServer:
        """Start a server, or connect to an external one. Raises SandboxError if that is refused or fails."""
        if branches and (resources.remote or self.choice.launcher is Launcher.DOCKER):
            raise SandboxError(NOT_RECORDED)
        if not resources.remote and self.choice.launcher in {Launcher.NONE, Launcher.REMOTE}:
            raise SandboxError(self.choice.refusal)
        if not resources.remote and self.choice.launcher is not Launcher.DOCKER:
            if await self.environments.build(package):
                await self.environments.evict({key.partition(" ")[0] for key in self._zygotes})
            key, folders = self.environments.key_of(package), self.environments.site_packages_of(package)
            has_network = resources.network != "none"
            key += " network" if has_network else ""
            key += f" hashes {hash_seed}" if hash_seed else ""
            zygote = await self.interpreter(key, folders, has_network=has_network, hash_seed=hash_seed)
            return await start_server(zygote, package, resources, self.folder, seconds, branches=branches)
        home = self.folder / uuid.uuid4().hex[:12]
        home.mkdir(mode=0o700, parents=True)
        log, listener = LogTail(), None
        try:
            process: ServerProcess
            if resources.remote:
                listener = listen(home / SOCKET)
                process = await open_relay(resources, listener, policy=self.outgoing)
                os.close(log.writer)
            else:
                if os.getuid() == 0:
                    os.chown(home, *map(int, self.engine.user.split(":")))  # the container makes its socket there
                process = await self.engine.start(package, resources, home, log, hash_seed=hash_seed)
        except BaseException:
            if listener is not None:
                listener.close()
            shutil.rmtree(home, ignore_errors=True)
            os.close(log.writer)
            log.close()
            raise
        server = RunningServer(home.name, package, resources, home / SOCKET, process, log)
        if not resources.remote:
            server.capacity_path = "/health"
        await wait_until_serving(server, seconds)
        return server

    async def interpreter(
        self, key: str = "", folders: Sequence[Path] = (), *, has_network: bool = False, hash_seed: int = 0
    ) -> Zygote:
        """The interpreter with this key, started if needed. Default: the shared runtime's."""
        async with self._starting.setdefault(key, asyncio.Lock()):
            self._used_at[key] = time.monotonic()
            if zygote := self._zygotes.get(key):
                if zygote.is_alive:
                    return zygote
                await zygote.stop()
            zygote = Zygote(
                self.environments.runtime,
                folders,
                is_jailed=self.choice.launcher is Launcher.JAIL,
                new_root=self.folder / "root",
                uid=61_000 + next(self._uids) % 4_000,
                has_network=has_network,
                hash_seed=hash_seed,
            )
            await zygote.start()
            self._zygotes[key] = zygote
            return zygote

    async def stop_unused(self) -> None:
        """End interpreters (about 150 MB) that had no server for 15 minutes, except the shared one."""
        for key, zygote in list(self._zygotes.items()):
            if key and not zygote.forks and self._used_at[key] < time.monotonic() - 900:
                del self._zygotes[key]
                await zygote.stop()

    async def stop(self) -> None:
        await asyncio.gather(*(zygote.stop() for zygote in self._zygotes.values()))
        self._zygotes.clear()
