"""The env host process: `python -m workers.environments.host`. The only place where foreign environment code runs.

It knows no database and holds no secret; a worker talks to it through `client.py`.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from pydantic import SecretStr

from backend.core.logs import configure_logging
from backend.core.outgoing import OutgoingPolicy, outgoing_policy
from backend.domain.addresses import NetworkRule
from backend.domain.errors import SandboxError
from backend.settings import Settings
from workers.environments.api import EnvHostApi
from workers.environments.containers import ContainerEngine
from workers.environments.dedicated_user import HostCannotStart, listen_on_path
from workers.environments.launchers import Launcher, ServerLauncher, choose_launcher
from workers.environments.packages import PackageStore
from workers.environments.pool import MAX_SERVERS, ServerPool
from workers.environments.servers import START_SECONDS
from workers.environments.sources import SourceBuilder
from workers.environments.virtual_environments import VirtualEnvironments
from workers.environments.wheels import Installer
from workers.http_server import make_runner

log = structlog.get_logger("envhost")
_MARKER = "made-by-the-env-host"
"""Proves that the folder is ours to empty."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.environments.host", description=__doc__)
    choices = ["jail", "docker", "remote", "process"]
    parser.add_argument("--launcher", choices=choices, help="launcher to use; default: the best one available")
    parser.add_argument("--max-servers", type=int, default=MAX_SERVERS, help="maximum number of servers")
    parser.add_argument("--listener", type=int, help="descriptor of a listening socket; default: open a new one")
    parser.add_argument("--root-because", default="", help="why it runs as root; shown as a warning")
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS, help="time limit for starting a package")
    arguments = parser.parse_args()
    configure_logging("envhost")
    try:
        # it encrypts nothing, so it does not get the installation's key
        settings = Settings(secret_key=SecretStr(secrets.token_urlsafe()))
        if arguments.listener is not None:
            listener = socket.socket(fileno=arguments.listener)
        elif path := _socket_path(settings):
            listener = listen_on_path(path)
        elif not settings.envhost_token.get_secret_value():
            raise HostCannotStart(
                "set PROCTOR_ENVHOST_TOKEN: over the network the env host requires a token from workers"
            )
        else:
            parts = urlsplit(settings.envhost_address)
            try:
                listener = socket.create_server((parts.hostname or "127.0.0.1", parts.port or 8001), backlog=256)
            except OSError as error:
                raise HostCannotStart(f"cannot listen on {settings.envhost_address}: {error}") from error
            for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                listener.setsockopt(socket.IPPROTO_TCP, option, value)  # a client whose machine is gone holds nothing
        asyncio.run(run(settings, listener, arguments))
    except HostCannotStart as error:
        sys.exit(f"env host: {error}")


async def run(settings: Settings, listener: socket.socket, arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        async with _assemble(settings, arguments) as api:
            runner = make_runner(api.application(), shutdown_seconds=1.0)
            await runner.setup()
            await web.SockSite(runner, listener).start()
            launcher = str(api.pool.launcher.choice.launcher)
            log.info("env host is ready", address=settings.envhost_address, launcher=launcher)
            await stopped.wait()
            await runner.cleanup()
    finally:
        listener.close()
        if path := _socket_path(settings):
            with contextlib.suppress(OSError):  # its folder may be another user's
                path.unlink()


@asynccontextmanager
async def _assemble(settings: Settings, arguments: argparse.Namespace) -> AsyncIterator[EnvHostApi]:
    """Choose a launcher and connect the parts of the host; stop them all at the end."""
    path = _socket_path(settings)
    folder = (path.parent if path else settings.run_folder) / "env"
    is_ours = folder.parent == settings.run_folder or (folder / _MARKER).exists()
    if not is_ours and folder.exists() and any(folder.iterdir()):
        raise HostCannotStart(
            f"{folder} is not empty and was not made by an env host. Move it away, or choose another folder for the "
            "socket in PROCTOR_ENVHOST_URL. Nothing was deleted"
        )
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier env host
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may be a mount, which stays
    (folder / _MARKER).touch()

    python = settings.runtime_python.absolute()
    user = f"{os.getuid() or 65534}:{os.getgid() or 65534}"  # ours, unless that is root, so that both use the sockets
    engine = ContainerEngine(user=user, runtime=settings.docker_runtime)
    requested, is_allowed = arguments.launcher or settings.launcher, settings.allow_unsandboxed
    choice = await choose_launcher(python, folder, allow_unsandboxed=is_allowed, requested=requested, engine=engine)
    if arguments.root_because:
        log.warning("the env host runs as root", reason=arguments.root_because)
        warning = f"The env host runs as root because it cannot run as a dedicated user: {arguments.root_because}"
        choice = replace(choice, probe=choice.probe | {"warning": warning})
    if choice.launcher is Launcher.NONE:
        log.error("foreign code is refused", reason=choice.refusal)
    elif choice.launcher is Launcher.PROCESS:
        log.warning("environment code runs WITHOUT a sandbox", reason=choice.probe["reason"])

    max_bytes = int(settings.environments_gb * 2**30)
    installer = Installer(python, settings.data / "environments", max_bytes)
    builder = SourceBuilder(installer, folder / "root") if choice.launcher is Launcher.JAIL else None
    environments = VirtualEnvironments(installer, builder, max_bytes)
    network, outgoing = NetworkRule.read(settings.allow_network), host_outgoing_policy(settings)
    server_launcher = ServerLauncher(environments, choice, folder, network, outgoing, engine)
    pool = ServerPool(server_launcher, arguments.max_servers, start_seconds=arguments.start_seconds)
    store = PackageStore(settings.data / "packages")

    async def warm_up() -> None:
        try:
            await server_launcher.interpreter()
        except SandboxError as error:
            log.error("the environment runtime does not start", reason=str(error))

    tasks = [asyncio.create_task(pool.run_upkeep())]
    if choice.launcher in {Launcher.JAIL, Launcher.PROCESS}:
        tasks.append(asyncio.create_task(warm_up()))
    try:
        token = "" if path else settings.envhost_token.get_secret_value()
        yield EnvHostApi(store, pool, token)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.stop()
        await server_launcher.stop()
        engine.close()


def host_outgoing_policy(settings: Settings) -> OutgoingPolicy:
    """Over the network the env host serves a shared installation whose stage it does not know."""
    if settings.allow_private_endpoints is None and not _socket_path(settings):
        settings = settings.model_copy(update={"allow_private_endpoints": False})
    return outgoing_policy(settings)


def _socket_path(settings: Settings) -> Path | None:
    """The path of a socket on this machine; None for an address on the network."""
    address = settings.envhost_address
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None


if __name__ == "__main__":
    main()
