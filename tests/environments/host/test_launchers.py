"""Which launcher is selected, the options of containers, and servers that run elsewhere."""

import asyncio
import contextlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from aiohttp import web

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import pack
from backend.domain.errors import RolloutError, SandboxError
from backend.settings import get_settings
from tests.envhost_fixture import package_files, prepared, start_host
from workers.environments.client import EnvHost
from workers.environments.containers import ContainerEngine, build_context, container_options
from workers.environments.launchers import Launcher, choose_launcher
from workers.environments.packages import StoredPackage
from workers.environments.processes import LogTail

SECONDS = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pl-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def stored(folder: Path, **files: str) -> StoredPackage:
    path = folder / "package.zip"
    path.write_bytes(pack(package_files() | files))
    return StoredPackage("a" * 64, path, "counter", "server.app:app", {"WORD": "x"}, ResourcesSpec(), ())


def asks(files: dict[str, str], resources: str) -> str:
    """The manifest with other resources."""
    return files["openenv.yaml"].replace("sessions: 64", resources)


# containers


def test_a_container_gets_what_the_manifest_asks_and_nothing_else(folder: Path) -> None:
    resources = ResourcesSpec(memory_mb=300, cpus=1.5, sessions=10)
    options = container_options(stored(folder), resources, "image", folder, user="65534:65534", runtime="runsc")
    assert options["network_mode"] == "none"
    assert options["read_only"] is True
    assert (options["mem_limit"], options["memswap_limit"], options["nano_cpus"]) == ("300m", "300m", 1_500_000_000)
    assert options["pids_limit"] == 74
    assert options["cap_drop"] == ["ALL"]
    assert options["security_opt"] == ["no-new-privileges"]
    assert options["runtime"] == "runsc"
    assert options["environment"] == {"MAX_CONCURRENT_ENVS": "10", "WORD": "x"}
    assert list(options["volumes"]) == [str(folder)]
    assert "privileged" not in options


def test_the_image_is_built_from_the_packages_own_dockerfile(folder: Path) -> None:
    context, dockerfile = build_context(stored(folder, **{"server/Dockerfile": "FROM scratch\n"}).path)
    assert dockerfile == "server/Dockerfile"
    with tarfile.open(fileobj=io.BytesIO(context.read())) as archive:
        assert {"openenv.yaml", "server/app.py", "server/Dockerfile"} <= set(archive.getnames())
    with pytest.raises(SandboxError, match="no server/Dockerfile"):
        build_context(stored(folder).path)


class FakeEngine:
    """Docker's HTTP interface on a socket, as far as the SDK asks; a container is a process of this machine."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.sock"
        self.folder = folder
        self.created: dict[str, Any] = {}
        self.built: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(self.path)).start()
        try:
            yield
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
            if self.process is not None:
                self.process.wait()
            await runner.cleanup()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.path.lstrip("/").partition("/")[2] if request.path.startswith("/v1") else request.path
        match request.method, path:
            case _, "/_ping":
                return web.Response(text="OK", headers={"Api-Version": "1.47"})
            case _, "/version":
                return web.json_response({"ApiVersion": "1.47", "MinAPIVersion": "1.24"})
            case _, "/info":
                return web.json_response({"Runtimes": {"runc": {}, "runsc": {}}})
            case "POST", "/build":
                self.built.append(request.query["t"])
                assert (await request.read())[:4] != b""
                return web.Response(text=json.dumps({"stream": "Successfully built 0123456789ab\n"}))
            case "POST", "/containers/create":
                self.created = await request.json()
                return web.json_response({"Id": "c1", "Warnings": []}, status=201)
            case "POST", "/containers/c1/start":
                self.run()
                return web.Response(status=204)
            case "POST", "/containers/c1/wait":
                while self.process is not None and self.process.poll() is None:
                    await asyncio.sleep(0.05)
                return web.json_response({"StatusCode": 3})
            case "DELETE", "/containers/c1":
                assert self.process is not None
                self.process.kill()
                return web.Response(status=204)
            case "GET", "/containers/c1/json":
                config = {"Tty": True, "Labels": {}}
                return web.json_response(
                    {"Id": "c1", "Config": config, "HostConfig": {"LogConfig": {"Type": "json-file"}}}
                )
            case "GET", "/containers/c1/logs":
                return web.Response(body=b"last words\n")
            case "GET", found if found.startswith("/images/"):
                if self.built:
                    return web.json_response({"Id": "sha256:1", "RepoTags": self.built})
                return web.json_response({"message": "No such image"}, status=404)
        return web.json_response({"message": f"{request.method} {path}"}, status=404)

    def run(self) -> None:
        """The command of the container, with its shared folder where it lies."""
        shared = self.created["HostConfig"]["Binds"][0].split(":")[0]
        uds = self.created["Cmd"][3].replace("/proctor", shared)
        package = self.folder / "run"
        for path, text in package_files().items():
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_text(text)
        python = get_settings().runtime_python.absolute()
        self.process = subprocess.Popen(
            [str(python), "-m", "uvicorn", *self.created["Cmd"][1:2], "--uds", uds, "--log-level", "warning"],
            cwd=package,
        )


async def test_the_engine_is_asked_in_its_own_language(folder: Path) -> None:
    fake = FakeEngine(folder)
    async with fake.serve():
        engine = ContainerEngine(lambda: _client(fake.path), user="65534:65534", runtime="runsc")
        assert await engine.unavailable_reason() == ""
        fake.run = lambda: setattr(fake, "process", subprocess.Popen(["sleep", "60"]))  # type: ignore[method-assign]
        package, log = stored(folder, **{"server/Dockerfile": "FROM scratch\n"}), LogTail()
        container = await engine.start(package, ResourcesSpec(memory_mb=256, sessions=4), folder, log)
        asked = fake.created["HostConfig"]
        assert fake.built == ["proctor-env:" + "a" * 32]
        assert (asked["NetworkMode"], asked["ReadonlyRootfs"], asked["Memory"]) == ("none", True, 256 << 20)
        assert (asked["NanoCpus"], asked["PidsLimit"], asked["CapDrop"]) == (1_000_000_000, 68, ["ALL"])
        assert (asked["Runtime"], asked["SecurityOpt"]) == ("runsc", ["no-new-privileges"])
        assert fake.created["User"] == "65534:65534"
        container.kill()
        await asyncio.wait_for(container.exited.wait(), 10)
        assert container.code == 3
        await asyncio.sleep(0.05)
        assert log.last_lines() == "last words"
        log.close()
        engine.close()
        wrong = ContainerEngine(lambda: _client(fake.path), user="1:1", runtime="kata")
        assert await wrong.unavailable_reason() == "the engine has no runtime 'kata'"
        wrong.close()


def _client(path: Path) -> Any:
    return docker.DockerClient(base_url=f"unix://{path}", version="1.47", timeout=10)


async def test_without_an_engine_the_docker_launcher_refuses(folder: Path) -> None:
    engine = ContainerEngine(lambda: docker.DockerClient("tcp://127.0.0.1:9", version="1.47", timeout=5), user="1:1")
    python = get_settings().runtime_python
    choice = await choose_launcher(python, folder, allow_unsandboxed=True, requested="docker", engine=engine)
    assert choice.launcher is Launcher.NONE
    assert "no container engine answers" in choice.refusal
    engine.close()


@pytest.mark.slow
async def test_a_server_in_a_container_is_leased_and_played(folder: Path) -> None:
    fake = FakeEngine(folder)
    async with fake.serve():
        engine = {"DOCKER_HOST": f"unix://{fake.path}", "PROCTOR_LAUNCHER": "docker"}
        host = await asyncio.to_thread(lambda: start_host(folder / "data", **engine))
        try:
            async with EnvHost(host.address) as client:
                assert (await client.status())["launcher"] == "docker"
                hash_ = await prepared(client, package_files() | {"server/Dockerfile": "FROM scratch\n"})
                async with client.lease(hash_, ResourcesSpec(memory_mb=256)) as server, server.session() as session:
                    await session.reset({}, timeout=SECONDS)
                    assert (await session.step({"amount": 3}, timeout=SECONDS)).fields["total"] == 3
        finally:
            await asyncio.to_thread(host.stop)


# servers that run elsewhere


@pytest.fixture
def elsewhere(folder: Path) -> Iterator[str]:
    """A package's server on a port, as its author would run it."""
    package = folder / "elsewhere"
    for path, text in package_files().items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    python = get_settings().runtime_python.absolute()
    process = subprocess.Popen(
        [str(python), "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "warning"], cwd=package
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.mark.slow
async def test_a_server_that_another_person_runs_is_played_like_any_other(
    folder: Path, elsewhere: str, env_host: EnvHost
) -> None:
    files = package_files("faraway")
    files["openenv.yaml"] = files["openenv.yaml"].replace("sessions: 64", f"sessions: 8, remote: '{elsewhere}'")
    await _played_elsewhere(env_host, files, elsewhere)
    host = await asyncio.to_thread(start_host, folder / "data", PROCTOR_LAUNCHER="remote")
    try:
        async with EnvHost(host.address) as client:
            with pytest.raises(SandboxError, match="only reaches servers that run elsewhere"):
                await prepared(client, package_files())
            await _played_elsewhere(client, files, elsewhere)
    finally:
        host.stop()


async def _played_elsewhere(client: EnvHost, files: dict[str, str], address: str) -> None:
    hash_ = await prepared(client, files)
    async with client.lease(hash_, ResourcesSpec(sessions=8, remote=address)) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        assert (await session.step({"amount": 3}, timeout=SECONDS)).fields["total"] == 3


@pytest.mark.slow
async def test_a_remote_address_that_is_private_or_dead_is_refused(folder: Path) -> None:
    host = await asyncio.to_thread(start_host, folder / "data", PROCTOR_ALLOW_PRIVATE_ENDPOINTS="false")
    try:
        async with EnvHost(host.address) as client:
            for address in ("http://127.0.0.1:9", "http://10.0.0.1"):
                files = package_files("near")
                files["openenv.yaml"] = files["openenv.yaml"].replace(
                    "sessions: 64", f"sessions: 8, remote: '{address}'"
                )
                with pytest.raises(RolloutError, match="private"):
                    await prepared(client, files)
    finally:
        host.stop()
