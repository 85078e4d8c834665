"""Wheels, from an index to a folder of modules: fetched, checked and unpacked once, then linked into environments.

Nothing of a wheel is run, and nothing but its modules is kept: no programs, no headers, no data for other folders. The
unpacking is `unpack_wheels.py`, a program with limits; its output is kept by the digest of the archive.

An environment is `lib/pythonX.Y/site-packages` and nothing else: no interpreter, no programs, no configuration. It is
always run by the shared runtime's interpreter, inside both rings.
"""

import asyncio
import hashlib
import json
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp

from backend.domain.errors import SandboxError
from workers.commands import bounded, end_group
from workers.environments.packages import evictable
from workers.environments.unpack_wheels import WheelLimits, folders_of
from workers.environments.uv import PackageIndex, Wheel, append
from workers.environments.zygotes import site_packages_of

GIB = 1 << 30
WHEEL_LIMITS = WheelLimits(
    archive_bytes=2 * GIB,  # torch for CUDA has 0.9 GB
    unpacked_bytes=4 * GIB,
    ratio=40,  # wheels of code and of native libraries have 3 to 6, those of tables and texts up to 20
    ratio_free_bytes=128 << 20,
    files=50_000,
)
MAX_TOTAL_BYTES = 10 * GIB
"""Maximum size of an environment; torch for CUDA with its libraries has 7 GB."""
MAX_TOTAL_FILES = 200_000
STANDALONE_MARKER = "stands-alone"
"""A file in an environment that does not see the shared runtime's packages."""
_ATTEMPTS = 3
_UNPACK_LIMITS = {"AS": 1 * GIB, "CPU": 600, "FSIZE": WHEEL_LIMITS.unpacked_bytes, "NOFILE": 64}


class Installer:
    """Installs wheels into folders of modules. Keeps unpacked wheels by their digest, shared by all environments."""

    def __init__(self, runtime: Path, folder: Path, max_bytes: int = MAX_TOTAL_BYTES) -> None:
        """`runtime` is the shared runtime's interpreter; `folder` has the environments."""
        self.runtime, self.folder = runtime, folder
        self.index = PackageIndex(runtime, folder / "uv.cache")
        self.store = folder / "wheels.store"
        self.max_total_bytes = min(max_bytes, MAX_TOTAL_BYTES)
        self.limits = WHEEL_LIMITS
        self._locks: dict[str, asyncio.Lock] = {}

    def site_packages(self, home: Path) -> Path:
        """Return the folder of modules of an environment or of the shared runtime."""
        if not self.runtime.exists():
            raise SandboxError("the environment runtime is missing: run `make setup`")
        return home.joinpath(*site_packages_of(self.runtime).parts[-3:])

    async def install(self, home: Path, wheels: Sequence[Wheel], log: Path, *, is_standalone: bool = False) -> None:
        """Make the environment at `home`. Raises SandboxError; nothing is left of it then."""
        shutil.rmtree(home, ignore_errors=True)
        site_packages = self.site_packages(home)
        try:
            trees = await self.provide(wheels, home.with_suffix(".downloads"), log)
            await asyncio.to_thread(_link_trees, trees, site_packages, self.max_total_bytes)
            if is_standalone:
                (home / STANDALONE_MARKER).touch()
            verify_layout(home, site_packages)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    async def provide(self, wheels: Sequence[Wheel], work: Path, log: Path) -> list[tuple[str, Path]]:
        """File name and folder of modules of each wheel; `work` is for downloads. Raises SandboxError."""
        self.store.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        slots, unpackers = asyncio.Semaphore(16), _Unpackers(self.limits)

        async def provide_one(wheel: Wheel, session: aiohttp.ClientSession) -> Path:
            if wheel.sha256 and (home := self._find(wheel.sha256)):
                return home
            async with slots:
                archive, digest = await self._fetch(wheel, session, work)
            async with self._locks.setdefault(digest, asyncio.Lock()):
                if home := self._find(digest):
                    return home
                unfinished = (self.store / digest).with_suffix(".new")
                await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
                if dropped := await unpackers.unpack(archive, wheel.name, unfinished):
                    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(dropped.items()))
                    reason = "not installed, because it is not for site-packages"
                    append(log, f"# {wheel.filename}: {reason}: {kinds}\n")
                return unfinished.rename(self.store / digest)

        try:
            async with self.index.session() as session, asyncio.TaskGroup() as group:
                tasks = [group.create_task(provide_one(wheel, session)) for wheel in wheels]
        except* SandboxError as failed:
            raise failed.exceptions[0] from None
        finally:
            for process in unpackers.idle:
                await end_group(process)
            await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        return [(wheel.filename, task.result()) for wheel, task in zip(wheels, tasks, strict=True)]

    def _find(self, digest: str) -> Path | None:
        home = self.store / digest
        try:
            os.utime(home)
        except FileNotFoundError:
            return None
        return home

    async def _fetch(self, wheel: Wheel, session: aiohttp.ClientSession, work: Path) -> tuple[Path, str]:
        """Path of the archive and its SHA-256. Raises SandboxError."""
        if wheel.size is not None and wheel.size > self.limits.archive_bytes:
            raise SandboxError(
                f"{wheel.filename} has {wheel.size >> 20:,} MB; at most {self.limits.archive_bytes >> 20:,} MB "
                "are allowed for a wheel"
            )
        if "://" in wheel.address:
            archive = work / wheel.filename
            digest = await self._download(wheel, session, archive)
        else:
            archive = Path(wheel.address)
            try:
                with archive.open("rb") as file:
                    digest = (await asyncio.to_thread(hashlib.file_digest, file, "sha256")).hexdigest()
            except OSError as error:
                raise SandboxError(f"{wheel.filename} cannot be read: {error.strerror}") from error
        if wheel.sha256 and digest != wheel.sha256:
            raise SandboxError(f"{wheel.filename} is not the file that the package index lists: its SHA-256 differs")
        return archive, digest

    async def _download(self, wheel: Wheel, session: aiohttp.ClientSession, archive: Path) -> str:
        for attempt in range(1, _ATTEMPTS + 1):
            digest, size = hashlib.sha256(), 0
            try:
                async with session.get(wheel.address, **self.index.request_options(wheel.address)) as response:
                    response.raise_for_status()
                    with archive.open("wb") as file:
                        async for part in response.content.iter_chunked(1 << 20):
                            digest.update(part)
                            size += file.write(part)
                            if size > (wheel.size or self.limits.archive_bytes):
                                raise SandboxError(
                                    f"{wheel.filename} is larger than the package index or the limit allows"
                                )
                return digest.hexdigest()
            except (aiohttp.ClientError, TimeoutError) as error:
                status = getattr(error, "status", 0)
                if attempt == _ATTEMPTS or 400 <= status < 500:
                    problem = f"HTTP {status}" if status else type(error).__name__
                    raise SandboxError(f"{wheel.filename} could not be fetched: {problem}") from error
                await asyncio.sleep(0.5 * attempt)
        raise AssertionError

    def evict(self, max_bytes: int) -> None:
        """Remove wheels unused for a month, then the least recently used until the rest fits. Takes seconds."""
        if not self.store.is_dir():
            return
        sizes: dict[Path, int] = {}
        for home in self.store.iterdir():
            if time.time() - home.stat().st_mtime > (1 if home.suffix else 30) * 86_400:
                shutil.rmtree(home, ignore_errors=True)
            elif not home.suffix:
                sizes[home] = sum(entry.stat().st_size for entry in _files_of(home))
        for home in evictable(sizes, max_bytes):
            remove_folder(home)


@dataclass(slots=True)
class _Unpackers:
    """Processes that unpack one wheel after another, started on demand."""

    limits: WheelLimits
    idle: list[asyncio.subprocess.Process] = field(default_factory=list)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(min(4, os.cpu_count() or 1)))

    async def unpack(self, archive: Path, name: str, target: Path) -> dict[str, int]:
        """Count files that were not installed, by kind. Raises SandboxError if the wheel is refused."""
        async with self._slots:
            if self.idle:
                process = self.idle.pop()
            else:
                python, program = bounded([], {})[0], Path(__file__).with_name("unpack_wheels.py")
                process = await asyncio.create_subprocess_exec(
                    *bounded([python, "-I", "-S", "-B", str(program)], _UNPACK_LIMITS),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={"LANG": "C.UTF-8"},
                    start_new_session=True,
                )
            assert process.stdin is not None
            assert process.stdout is not None
            order = {"path": str(archive), "name": name, "target": str(target), "limits": asdict(self.limits)}
            line = b""
            try:
                process.stdin.write(json.dumps(order).encode() + b"\n")
                with suppress(TimeoutError, ValueError, ConnectionError):
                    async with asyncio.timeout(300):
                        await process.stdin.drain()
                        line = await process.stdout.readline()
                if not line.endswith(b"\n"):
                    raise SandboxError(
                        f"{archive.name} could not be unpacked within the time and memory that a wheel may take"
                    )
                answer = json.loads(line)
            except BaseException:
                await end_group(process)
                await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
                raise
            self.idle.append(process)
        if "error" in answer:
            raise SandboxError(str(answer["error"])[:2000])
        dropped: dict[str, int] = answer["dropped"]
        return dropped


def _link_trees(trees: Sequence[tuple[str, Path]], site_packages: Path, max_bytes: int) -> None:
    """Link all trees into one folder. If several wheels have the same file the last one wins, as with pip."""
    files: dict[str, tuple[str, str, int]] = {}
    for label, tree in trees:
        for entry in _files_of(tree):
            files[entry.path[len(str(tree)) + 1 :]] = (entry.path, label, entry.stat().st_size)
    if len(files) > MAX_TOTAL_FILES:
        raise SandboxError(
            f"the package's requirements have {len(files):,} files; at most {MAX_TOTAL_FILES:,} are allowed"
        )
    sizes = Counter[str]()
    for _, label, size in files.values():
        sizes[label] += size
    if sizes.total() > max_bytes:
        [(largest, size)] = sizes.most_common(1)
        raise SandboxError(
            f"the package's requirements unpack to {sizes.total() >> 20:,} MB; at most {max_bytes >> 20:,} MB are "
            f"allowed for an environment (the largest is {largest} with {size >> 20:,} MB)"
        )
    site_packages.mkdir(parents=True)
    for folder in (site_packages, *site_packages.parents[:3]):
        folder.chmod(0o755)  # for the sandbox's uid, whatever our umask
    parents = {os.path.dirname(inside) for inside in files}
    for inside in sorted({folder for parent in parents if parent for folder in (*folders_of(parent), parent)}):
        os.mkdir(f"{site_packages}/{inside}")
        os.chmod(f"{site_packages}/{inside}", 0o755)
    for inside, (path, label, _) in files.items():
        try:
            os.link(path, f"{site_packages}/{inside}", follow_symlinks=False)
        except FileExistsError as error:
            raise SandboxError(f"{label}: {inside!r} is a file in one distribution and a folder in another") from error


def _files_of(folder: Path) -> Iterator["os.DirEntry[str]"]:
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def remove_folder(home: Path) -> None:
    """Make a folder disappear atomically, then delete its files."""
    gone = home.with_name(f"{home.name}.gone")
    home.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def verify_layout(home: Path, site_packages: Path) -> None:
    """Raise SandboxError unless an environment has plain files of ours in site-packages, and nothing else."""
    allowed = {home / STANDALONE_MARKER, site_packages, *site_packages.parents}
    waiting = [home]
    while waiting:
        for path in waiting.pop().iterdir():
            if path not in allowed or path.is_symlink():
                raise SandboxError(f"the environment holds {path.name!r} outside of site-packages; it was removed")
            if path != site_packages and path.is_dir():
                waiting.append(path)
    if not site_packages.is_dir():
        raise SandboxError("the environment has no site-packages; it was removed")
    for parent, folders, names in os.walk(site_packages):
        for name in (*folders, *names):
            status = os.lstat(os.path.join(parent, name))
            is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
            if not is_plain or status.st_mode & 0o7022 or status.st_uid != os.geteuid():
                raise SandboxError(f"the environment holds {name!r}, which is not a plain file of ours; it was removed")
