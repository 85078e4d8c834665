"""The env host process: `python -m workers.environments.host`. The only place where foreign environment code runs.

It knows no database and holds no secret; a worker talks to it through `client.py`.
"""

import argparse
import asyncio
import contextlib
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
from backend.core.outgoing import OutgoingPolicy, policy_of
from backend.domain.errors import SandboxError
from backend.domain.network import NetworkRule
from backend.settings import Settings
from workers.environments.api import Api
from workers.environments.containers import Engine, connect
from workers.environments.installing import Installer
from workers.environments.launchers import Launcher, Offer, make_offer
from workers.environments.listening import HostCannotStart, listen_on_path
from workers.environments.packages import PackageStore
from workers.environments.pool import MAX_SERVERS, Capacity, Limits, Pool
from workers.environments.runtimes import Runtimes
from workers.environments.servers import START_SECONDS
from workers.environments.sources import Sources
from workers.environments.starting import Grants, Starter, container_user
from workers.environments.virtual_environments import VirtualEnvironments
from workers.http_server import make_runner

log = structlog.get_logger("envhost")
RUNS_AS_ROOT = "The env host runs as root because it cannot run as a dedicated user"
_MARKER = "made-by-the-env-host"
"""Proves that the folder is ours to empty."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.environments.host", description=__doc__)
    parser.add_argument("--launcher", choices=["jail", "docker", "remote", "process"], help="instead of the best one")
    parser.add_argument("--max-servers", type=int, default=MAX_SERVERS, help="maximum number of servers")
    parser.add_argument("--listener", type=int, help="descriptor of a listening socket, instead of one made here")
    parser.add_argument("--root-because", default="", help="why it runs as root; shown as a warning")
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS, help="for a package")
    arguments = parser.parse_args()
    configure_logging("envhost")
    try:
        # it encrypts nothing, and so is not given the installation's key
        settings = Settings(secret_key=SecretStr(secrets.token_urlsafe()))
        limits = Limits(Capacity.of_this_machine(arguments.max_servers), arguments.start_seconds)
        listener = socket.socket(fileno=arguments.listener) if arguments.listener is not None else _listen(settings)
        asyncio.run(run(settings, limits, listener, arguments.launcher or settings.launcher, arguments.root_because))
    except HostCannotStart as error:
        sys.exit(f"env host: {error}")


async def run(
    settings: Settings, limits: Limits, listener: socket.socket, launcher: str = "", root_because: str = ""
) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        async with _parts(settings, limits, launcher, root_because) as api:
            runner = make_runner(api.application(), shutdown_seconds=1.0)
            await runner.setup()
            await web.SockSite(runner, listener).start()
            log.info("env host is ready", address=settings.envhost_address, launcher=str(api.offer.launcher))
            await stopped.wait()
            await runner.cleanup()
    finally:
        listener.close()
        if _is_local(settings):
            with contextlib.suppress(OSError):  # its folder may be another user's
                _path(settings).unlink()


@asynccontextmanager
async def _parts(settings: Settings, limits: Limits, launcher: str, root_because: str) -> AsyncIterator[Api]:
    folder = (_path(settings).parent if _is_local(settings) else settings.run_folder) / "env"
    _clear(folder, settings)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may be a mount, which stays
    (folder / _MARKER).touch()
    python = settings.runtime_python.absolute()
    engine = Engine(connect, user=container_user(), runtime=settings.docker_runtime)
    offer = await make_offer(
        python, folder, allow_unsandboxed=settings.allow_unsandboxed, wanted=launcher, engine=engine
    )
    if root_because:
        log.warning("the env host runs as root", reason=root_because)
        offer = replace(offer, probe={**offer.probe, "warning": f"{RUNS_AS_ROOT}: {root_because}"})
    _announce(offer)
    most = int(settings.environments_gb * 2**30)
    installer = Installer(python, settings.data / "environments", most)
    sources = Sources(installer, folder / "root") if offer.launcher is Launcher.JAIL else None
    environments = VirtualEnvironments(installer, sources, most)
    runtimes = Runtimes(environments, offer, folder)
    grants = Grants(NetworkRule.read(settings.allow_network), _outgoing(settings))
    pool = Pool(runtimes, Starter(runtimes, offer, folder, grants, engine), limits)
    store = PackageStore(settings.data / "packages")
    upkeep = asyncio.create_task(pool.keep_house())
    warming = asyncio.create_task(_warm_up(runtimes, offer))
    try:
        yield Api(store, pool, offer, grants, _token(settings))
    finally:
        for task in (upkeep, warming):
            task.cancel()
        await asyncio.gather(upkeep, warming, return_exceptions=True)
        await pool.stop()
        await runtimes.stop()
        engine.close()


def _clear(folder: Path, settings: Settings) -> None:
    """Remove what an earlier env host left. Raises HostCannotStart for a folder that may be someone else's."""
    is_own = folder.parent == settings.run_folder or (folder / _MARKER).exists()
    if not is_own and folder.exists() and any(folder.iterdir()):
        raise HostCannotStart(
            f"{folder} is not empty and was not made by an env host. Move it away, or choose another folder for the "
            "socket in PROCTOR_ENVHOST_URL. Nothing was deleted"
        )
    shutil.rmtree(folder, ignore_errors=True)


def _announce(offer: Offer) -> None:
    if offer.launcher is Launcher.NONE:
        log.error("foreign code is refused", reason=offer.refusal)
    elif offer.launcher is Launcher.PROCESS:
        log.warning("environment code runs WITHOUT a sandbox", reason=offer.probe["reason"])


async def _warm_up(runtimes: Runtimes, offer: Offer) -> None:
    if offer.launcher not in {Launcher.JAIL, Launcher.PROCESS}:
        return
    try:
        await runtimes.warm_up()
    except SandboxError as error:
        log.error("the environment runtime does not start", reason=str(error))


def _token(settings: Settings) -> str:
    return "" if _is_local(settings) else settings.envhost_token.get_secret_value()


def _outgoing(settings: Settings) -> OutgoingPolicy:
    """Over the network the env host serves a shared installation, whose stage it does not know."""
    if settings.allow_private_endpoints is None and not _is_local(settings):
        settings = settings.model_copy(update={"allow_private_endpoints": False})
    return policy_of(settings)


def _is_local(settings: Settings) -> bool:
    return settings.envhost_address.startswith("unix:")


def _path(settings: Settings) -> Path:
    return Path(settings.envhost_address.removeprefix("unix:"))


def _listen(settings: Settings) -> socket.socket:
    if _is_local(settings):
        return listen_on_path(_path(settings))
    if not settings.envhost_token.get_secret_value():
        raise HostCannotStart("set PROCTOR_ENVHOST_TOKEN: over the network the env host asks workers for a token")
    parts = urlsplit(settings.envhost_address)
    try:
        listener = socket.create_server((parts.hostname or "127.0.0.1", parts.port or 8001), backlog=256)
    except OSError as error:
        raise HostCannotStart(f"cannot listen on {settings.envhost_address}: {error}") from error
    for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)  # a client whose machine is gone holds nothing
    return listener


if __name__ == "__main__":
    main()
