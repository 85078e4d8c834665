"""Servers in containers, through the Docker SDK: an image per package from its own Dockerfile, a container per server.

A container has no network, so its server listens on a unix socket in a folder that it shares with the host.
"""

import asyncio
import contextlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError
from workers.environments.packages import StoredPackage
from workers.environments.processes import LogTail, ServerProcess

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

SHARED = "/proctor"
SOCKET = "s"


def _engine_errors() -> tuple[type[Exception], ...]:
    """Exceptions of the SDK, which may not be installed."""
    try:
        from docker.errors import DockerException
        from requests.exceptions import RequestException
    except ImportError:
        return (OSError,)
    return (DockerException, RequestException, OSError)


@dataclass(slots=True, eq=False, kw_only=True)
class ContainerProcess(ServerProcess):
    """A container in place of a server process. The engine limits its memory."""

    container: "Container"
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def kill(self) -> None:
        def remove() -> None:
            with contextlib.suppress(*_engine_errors()):
                self.container.remove(force=True)

        self.tasks.add(asyncio.create_task(asyncio.to_thread(remove)))

    async def watch(self, log: LogTail) -> None:
        """Wait until it ends; its output goes to the log."""
        with contextlib.suppress(*_engine_errors()):
            answer = await asyncio.to_thread(self.container.wait)
            self.code = int(answer.get("StatusCode", -1))
            printed = await asyncio.to_thread(lambda: self.container.logs(tail=200))
            await asyncio.to_thread(os.write, log.writer, printed[-(32 << 10) :])
        os.close(log.writer)
        self.exited.set()


def container_options(
    package: StoredPackage, resources: ResourcesSpec, image: str, shared: Path, *, user: str, runtime: str = ""
) -> dict[str, Any]:
    """The container's configuration: everything that a server may have, and nothing else."""
    options = {
        "image": image,
        "command": ["uvicorn", package.app, "--uds", f"{SHARED}/{SOCKET}", "--log-level", "warning"],
        "environment": {"MAX_CONCURRENT_ENVS": str(resources.sessions), **package.variables},
        "labels": {"proctor.env-server": package.hash},
        "network_mode": "none" if resources.network == "none" else "bridge",
        "read_only": True,
        "tmpfs": {"/tmp": "size=64m,mode=1777,nosuid,nodev"},
        "volumes": {str(shared): {"bind": SHARED, "mode": "rw"}},
        "mem_limit": f"{resources.memory_mb}m",
        "memswap_limit": f"{resources.memory_mb}m",
        "nano_cpus": int(resources.cpus * 1e9),
        "pids_limit": resources.sessions + 64,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc_mode": "private",
        "shm_size": "1m",
        "user": user,
        "init": True,
        "detach": True,
        "log_config": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }
    return options | ({"runtime": runtime} if runtime else {})


def build_context(zipped: Path) -> tuple[io.BytesIO, str]:
    """A package's files as a tar archive for the engine, and the path of its Dockerfile."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(zipped) as archive, tarfile.open(fileobj=buffer, mode="w") as context:
        names = archive.namelist()
        dockerfile = next((path for path in ("server/Dockerfile", "Dockerfile") if path in names), "")
        if not dockerfile:
            raise SandboxError("the package has no server/Dockerfile, which the docker launcher needs")
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = archive.getinfo(name).file_size, 0o644
            context.addfile(entry, io.BytesIO(archive.read(name)))
    buffer.seek(0)
    return buffer, dockerfile


@dataclass(slots=True, eq=False)
class ContainerEngine:
    """The container engine of this machine. Its calls block, so each runs in a thread."""

    connect: "Callable[[], DockerClient] | None" = None
    """Default: as in the environment variables."""
    _: KW_ONLY
    user: str
    runtime: str = ""
    _client: "DockerClient | None" = None
    _building: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def unavailable_reason(self) -> str:
        """Why no container can be started here; empty if containers can be started."""
        try:
            import docker

            self._client = client = await asyncio.to_thread(self.connect or docker.from_env)
            await asyncio.to_thread(client.ping)
            if self.runtime and self.runtime not in (await asyncio.to_thread(client.info)).get("Runtimes", {}):
                return f"the engine has no runtime {self.runtime!r}"
        except ImportError:
            return "the Docker SDK is not installed: pip install 'proctor[docker]'"
        except _engine_errors() as error:
            return f"no container engine answers: {error}"
        return ""

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    async def start(
        self, package: StoredPackage, resources: ResourcesSpec, shared: Path, log: LogTail, *, hash_seed: int = 0
    ) -> ContainerProcess:
        """Raises SandboxError with the end of the build's log."""
        assert self._client is not None
        image = f"proctor-env:{package.hash[:32]}"
        async with self._building.setdefault(package.hash, asyncio.Lock()):
            await asyncio.to_thread(self._build, package, image)
        options = container_options(package, resources, image, shared, user=self.user, runtime=self.runtime)
        options["environment"]["PYTHONHASHSEED"] = str(hash_seed)
        try:
            process = ContainerProcess(container=await asyncio.to_thread(self._client.containers.run, **options))
        except _engine_errors() as error:
            raise SandboxError(f"the container could not be started: {error}") from error
        process.tasks.add(asyncio.create_task(process.watch(log)))
        return process

    def _build(self, package: StoredPackage, image: str) -> None:
        from docker.errors import BuildError, ImageNotFound

        assert self._client is not None
        try:
            self._client.images.get(image)
        except ImageNotFound:
            context, dockerfile = build_context(package.path)
            options = {"tag": image, "rm": True, "forcerm": True, "timeout": 1200}
            try:
                self._client.images.build(fileobj=context, custom_context=True, dockerfile=dockerfile, **options)
            except BuildError as error:
                lines = "".join(str(entry.get("stream", "")) for entry in error.build_log).splitlines()
                raise SandboxError("the package's image could not be built:\n" + "\n".join(lines[-15:])) from error
            except _engine_errors() as error:
                raise SandboxError(f"the package's image could not be built: {error}") from error
