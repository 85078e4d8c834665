"""The warm interpreters of this host, one per virtual environment, started when they are first needed."""

import asyncio
import itertools
import time
from pathlib import Path

from backend.domain.errors import SandboxError
from workers.environments.launchers import Launcher, Offer
from workers.environments.packages import StoredPackage
from workers.environments.virtual_environments import VirtualEnvironments
from workers.environments.zygotes import Zygote

IDLE_SECONDS = 900.0
"""How long a package's own warm interpreter (about 150 MB) is kept without servers."""
_FIRST_UID, _UIDS = 61_000, 4_000


class Runtimes:
    def __init__(self, environments: VirtualEnvironments, offer: Offer, folder: Path) -> None:
        self._environments, self._offer, self._folder = environments, offer, folder
        self._zygotes: dict[str, Zygote] = {}
        self._used_at: dict[str, float] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._uids = itertools.count()

    @property
    def environments(self) -> VirtualEnvironments:
        return self._environments

    async def warm_up(self) -> None:
        """Start the shared runtime's interpreter before it is needed."""
        await self._zygote("", [])

    async def zygote_for(self, package: StoredPackage, *, has_network: bool = False, hash_seed: int = 0) -> Zygote:
        """Raises SandboxError when this machine may not run foreign code or the interpreter does not start."""
        if self._offer.launcher is Launcher.NONE:
            raise SandboxError(self._offer.refusal)
        if await self._environments.build(package):
            await self._environments.tidy({key.partition(" ")[0] for key in self._zygotes})
        key, folders = self._environments.key_of(package), self._environments.site_packages_of(package)
        key += " network" if has_network else ""
        key += f" hashes {hash_seed}" if hash_seed else ""
        return await self._zygote(key, folders, has_network=has_network, hash_seed=hash_seed)

    async def _zygote(self, key: str, folders: list[Path], *, has_network: bool = False, hash_seed: int = 0) -> Zygote:
        async with self._starting.setdefault(key, asyncio.Lock()):
            self._used_at[key] = time.monotonic()
            zygote = self._zygotes.get(key)
            if zygote is not None and zygote.is_alive:
                return zygote
            if zygote is not None:
                await zygote.stop()
            zygote = Zygote(
                self._environments.runtime,
                folders,
                is_jailed=self._offer.launcher is Launcher.JAIL,
                new_root=self._folder / "root",
                uid=_FIRST_UID + next(self._uids) % _UIDS,
                has_network=has_network,
                hash_seed=hash_seed,
            )
            await zygote.start()
            self._zygotes[key] = zygote
            return zygote

    async def stop_unused(self) -> None:
        """End the interpreters, but the shared one, that have forked nothing for a while."""
        for key, zygote in list(self._zygotes.items()):
            if key and not zygote.has_forks and time.monotonic() - self._used_at[key] > IDLE_SECONDS:
                del self._zygotes[key]
                await zygote.stop()

    async def stop(self) -> None:
        await asyncio.gather(*(zygote.stop() for zygote in self._zygotes.values()))
        self._zygotes.clear()
