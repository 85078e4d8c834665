"""Wheels, from an index to a folder of modules: fetched, checked and unpacked once, then linked into environments.

Nothing of a wheel is run, and nothing but its modules is kept: no programs, no headers, no data for other folders. The
unpacking is `unpack_wheels.py`, a program with limits; what it wrote is kept by the digest of the archive.
"""

import asyncio
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from backend.domain.errors import SandboxError
from workers.commands import bounded, end_group
from workers.environments.build_log import append
from workers.environments.indexes import IndexAccess
from workers.environments.unpack_wheels import WheelLimits

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
_DOWNLOADS, _ATTEMPTS = 16, 3
_UNPACKERS = min(4, os.cpu_count() or 1)
_UNPACK_SECONDS = 300.0
_UNPACK_LIMITS = {"AS": 1 * GIB, "CPU": 600, "FSIZE": WHEEL_LIMITS.unpacked_bytes, "NOFILE": 64}
_PROGRAM = Path(__file__).with_name("unpack_wheels.py")
_CHUNK = 1 << 20
_UNUSED_DAYS = 30
_NEW = ".new"


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of an index."""

    name: str
    version: str
    filename: str
    address: str
    """A URL, or a path of this machine."""
    sha256: str = ""
    """Empty where the index gives none."""
    size: int | None = None


@dataclass(slots=True)
class WheelStore:
    """Unpacked wheels by the digest of their archive, shared by the environments in the same folder."""

    folder: Path
    access: IndexAccess
    max_total_bytes: int = MAX_TOTAL_BYTES
    limits: WheelLimits = WHEEL_LIMITS
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def install(self, wheels: Sequence[Wheel], site_packages: Path, work: Path, log: Path) -> None:
        """Fill a folder that does not exist yet; `work` is for downloads. Raises SandboxError."""
        trees = await self.provide(wheels, work, log)
        await asyncio.to_thread(_link_all, trees, site_packages, self.max_total_bytes)

    async def provide(self, wheels: Sequence[Wheel], work: Path, log: Path) -> list[tuple[str, Path]]:
        """Name and folder of each wheel's modules. Raises SandboxError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        try:
            async with AsyncExitStack() as stack:
                session = await stack.enter_async_context(self.access.session())
                unpackers = await stack.enter_async_context(_Unpackers(self.limits))
                slots = asyncio.Semaphore(_DOWNLOADS)
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._provide(wheel, session, unpackers, slots, work, log))
                        for wheel in wheels
                    ]
        except* SandboxError as failed:
            raise failed.exceptions[0] from None
        finally:
            await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        return [(wheel.filename, task.result()) for wheel, task in zip(wheels, tasks, strict=True)]

    async def _provide(
        self,
        wheel: Wheel,
        session: aiohttp.ClientSession,
        unpackers: "_Unpackers",
        slots: asyncio.Semaphore,
        work: Path,
        log: Path,
    ) -> Path:
        """The folder with the wheel's modules."""
        if wheel.sha256 and (home := self._find(wheel.sha256)):
            return home
        async with slots:
            archive, digest = await self._fetch(wheel, session, work)
        async with self._locks.setdefault(digest, asyncio.Lock()):
            if home := self._find(digest):
                return home
            home = self.folder / digest
            unfinished = home.with_suffix(_NEW)
            await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
            answer = await unpackers.unpack(archive, wheel.name, unfinished)
            if dropped := answer["dropped"]:
                kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(dropped.items()))
                append(log, f"# {wheel.filename}: not installed, because it is not for site-packages: {kinds}\n")
            unfinished.rename(home)
            return home

    def _find(self, digest: str) -> Path | None:
        home = self.folder / digest
        try:
            os.utime(home)
        except FileNotFoundError:
            return None
        return home

    async def _fetch(self, wheel: Wheel, session: aiohttp.ClientSession, work: Path) -> tuple[Path, str]:
        """Where the archive lies, and its SHA-256. Raises SandboxError."""
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
                digest = await asyncio.to_thread(_digest_of, archive)
            except OSError as error:
                raise SandboxError(f"{wheel.filename} cannot be read: {error.strerror}") from error
        if wheel.sha256 and digest != wheel.sha256:
            raise SandboxError(f"{wheel.filename} is not the file that the package index lists: its SHA-256 differs")
        return archive, digest

    async def _download(self, wheel: Wheel, session: aiohttp.ClientSession, archive: Path) -> str:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._download_once(wheel, session, archive)
            except (aiohttp.ClientError, TimeoutError) as error:
                status = getattr(error, "status", 0)
                if attempt == _ATTEMPTS or 400 <= status < 500:
                    said = f"HTTP {status}" if status else type(error).__name__
                    raise SandboxError(f"{wheel.filename} could not be fetched: {said}") from error
                await asyncio.sleep(0.5 * attempt)
        raise AssertionError

    async def _download_once(self, wheel: Wheel, session: aiohttp.ClientSession, archive: Path) -> str:
        digest, size = hashlib.sha256(), 0
        async with session.get(wheel.address, **self.access.request_options(wheel.address)) as response:
            response.raise_for_status()
            with archive.open("wb") as file:
                async for part in response.content.iter_chunked(_CHUNK):
                    digest.update(part)
                    size += file.write(part)
                    if size > (wheel.size or self.limits.archive_bytes):
                        raise SandboxError(f"{wheel.filename} is larger than the package index or the limit allows")
        return digest.hexdigest()

    def tidy(self, max_bytes: int) -> None:
        """Remove what no import has used for a month, then what was used longest ago until the rest fits."""
        if not self.folder.is_dir():
            return
        now, homes = time.time(), []
        for home in self.folder.iterdir():
            used_at = home.stat().st_mtime
            if now - used_at > (86_400 if home.suffix == _NEW else _UNUSED_DAYS * 86_400):
                shutil.rmtree(home, ignore_errors=True)
            elif home.suffix != _NEW:
                homes.append((used_at, home, sum(entry.stat().st_size for entry in _files_of(home))))
        total = sum(size for _, _, size in homes)
        for used_at, home, size in sorted(homes, key=lambda entry: entry[0]):
            if total <= max_bytes or now - used_at < 900:
                return
            gone = home.with_suffix(_NEW)
            home.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            total -= size


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Unpackers:
    """Processes that unpack one wheel after another, started when they are needed."""

    def __init__(self, limits: WheelLimits) -> None:
        self._limits = asdict(limits)
        self._idle: list[asyncio.subprocess.Process] = []
        self._slots = asyncio.Semaphore(_UNPACKERS)

    async def __aenter__(self) -> "_Unpackers":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._idle:
            await end_group(process)

    async def unpack(self, archive: Path, name: str, target: Path) -> dict[str, Any]:
        """Raises SandboxError with what is wrong with the wheel."""
        async with self._slots:
            process = self._idle.pop() if self._idle else await _start_unpacker()
            is_idle = False
            try:
                answer = await self._ask(process, archive, name, target)
                is_idle = True
            finally:
                if is_idle:
                    self._idle.append(process)
                else:
                    await end_group(process)
                    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
        if "error" in answer:
            raise SandboxError(str(answer["error"])[:2000])
        return answer

    async def _ask(self, process: asyncio.subprocess.Process, archive: Path, name: str, target: Path) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"path": str(archive), "name": name, "target": str(target), "limits": self._limits}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        line = b""
        with suppress(TimeoutError, ValueError, ConnectionError):
            async with asyncio.timeout(_UNPACK_SECONDS):
                await process.stdin.drain()
                line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise SandboxError(f"{archive.name} could not be unpacked within the time and memory that a wheel may take")
        answer: dict[str, Any] = json.loads(line)
        return answer


async def _start_unpacker() -> asyncio.subprocess.Process:
    python = bounded([], {})[0]
    return await asyncio.create_subprocess_exec(
        *bounded([python, "-I", "-S", "-B", str(_PROGRAM)], _UNPACK_LIMITS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"LANG": "C.UTF-8"},
        start_new_session=True,
    )


def _link_all(trees: Sequence[tuple[str, Path]], site_packages: Path, max_bytes: int) -> None:
    """One folder of all of them. Of several wheels with the same file the last one counts, as with pip."""
    files: dict[str, tuple[str, str]] = {}
    sizes: dict[str, int] = {}
    for label, tree in trees:
        for entry in _files_of(tree):
            inside = entry.path[len(str(tree)) + 1 :]
            files[inside] = (entry.path, label)
            sizes[inside] = entry.stat().st_size
    _check_totals(files, sizes, max_bytes)
    site_packages.mkdir(parents=True)
    for folder in (site_packages, *site_packages.parents[:3]):
        folder.chmod(0o755)  # for the sandbox's uid, whatever our umask
    made = {""}
    for inside, (path, label) in files.items():
        try:
            _make_folder(str(site_packages), os.path.dirname(inside), made)
            os.link(path, f"{site_packages}/{inside}", follow_symlinks=False)
        except (FileExistsError, NotADirectoryError) as error:
            raise SandboxError(f"{label}: {inside!r} is a file in one distribution and a folder in another") from error


def _make_folder(root: str, inside: str, made: set[str]) -> None:
    if inside in made:
        return
    _make_folder(root, os.path.dirname(inside), made)
    os.mkdir(f"{root}/{inside}")
    os.chmod(f"{root}/{inside}", 0o755)
    made.add(inside)


def _check_totals(files: Mapping[str, tuple[str, str]], sizes: Mapping[str, int], max_bytes: int) -> None:
    if len(files) > MAX_TOTAL_FILES:
        raise SandboxError(
            f"the package's requirements have {len(files):,} files; at most {MAX_TOTAL_FILES:,} are allowed"
        )
    if (total := sum(sizes.values())) > max_bytes:
        by_label: dict[str, int] = {}
        for inside, (_, label) in files.items():
            by_label[label] = by_label.get(label, 0) + sizes[inside]
        largest = max(by_label, key=lambda label: by_label[label])
        raise SandboxError(
            f"the package's requirements unpack to {total >> 20:,} MB; at most {max_bytes >> 20:,} MB are allowed for "
            f"an environment (the largest is {largest} with {by_label[largest] >> 20:,} MB)"
        )


def _files_of(folder: Path) -> Iterator["os.DirEntry[str]"]:
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def verify_layout(home: Path, site_packages: Path, markers: Sequence[str]) -> None:
    """Raise SandboxError unless an environment has plain files of ours in site-packages, and nothing else."""
    allowed = {home / name for name in markers} | {site_packages, *site_packages.parents}
    for path in _beside(home, site_packages):
        if path not in allowed or path.is_symlink():
            raise SandboxError(f"the environment holds {path.name!r} outside of site-packages; it was removed")
    if not site_packages.is_dir():
        raise SandboxError("the environment has no site-packages; it was removed")
    for parent, folders, names in os.walk(site_packages):
        for name in (*folders, *names):
            status = os.lstat(os.path.join(parent, name))
            is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
            if not is_plain or status.st_mode & 0o7022 or status.st_uid != os.geteuid():
                raise SandboxError(f"the environment holds {name!r}, which is not a plain file of ours; it was removed")


def _beside(home: Path, site_packages: Path) -> Iterator[Path]:
    """Everything in an environment but the content of site-packages."""
    waiting = [home]
    while waiting:
        for path in waiting.pop().iterdir():
            yield path
            if path != site_packages and path.is_dir() and not path.is_symlink():
                waiting.append(path)
