"""What the env host costs: a new server of a known package, a new session on a warm one, frames through our client.

Beside it, on one plain server: our client and OpenEnv's own GenericEnvClient in turn, as a ratio.

python -m benchmarks.envhost [--frames 4000] [--package tictactoe]
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from rich.console import Console

from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split
from backend.environments.library import load_package
from backend.settings import get_settings
from benchmarks.installation import installation
from benchmarks.side_by_side import rates
from workers.environments.client import EnvHost, EnvServer, EnvSession

console = Console(soft_wrap=True)
SECONDS = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=4000, help="for each number of sessions")
    parser.add_argument("--package", default="tictactoe", help="one whose manifest names the legal choices")
    arguments = parser.parse_args()
    with installation():
        asyncio.run(_measure(load_package(arguments.package), arguments.frames))


async def _measure(files: dict[str, str], frames: int) -> None:
    manifest, hash_ = read_manifest(files[MANIFEST_PATH]), content_hash(files)
    async with EnvHost(get_settings().envhost_address) as host:
        begun = time.perf_counter()
        await host.prepare(hash_, files)
        console.print(f"first package, interpreter not yet warm   {time.perf_counter() - begun:8.2f} s")
        console.print(f"load average at the start                 {os.getloadavg()[0]:8.2f}")
        fresh = [await _seconds(lambda n=n: _prepare_variant(host, files, n)) for n in range(7)]
        console.print(f"new server of the shared runtime, median  {statistics.median(fresh):8.2f} s")
        async with host.lease(hash_, manifest.proctor.resources) as server:
            opened = [1000 * await _seconds(lambda: _open_session(server, manifest)) for _ in range(50)]
            console.print(f"new session with its reset, median        {statistics.median(opened):8.2f} ms")
            for sessions in (1, 8, 32):
                await _report_frames(server, manifest, sessions, frames)
    for sessions in (1, 32):
        ours, theirs = await rates(files, manifest, sessions, frames)
        beside = f"GenericEnvClient {theirs:8,.0f}   ratio {ours / theirs:.2f}"
        console.print(f"{sessions:3} sessions   {ours:8,.0f} frames/s   {beside}")


async def _seconds(work: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def _prepare_variant(host: EnvHost, files: dict[str, str], number: int) -> None:
    variant = files | {"VARIANT.md": str(number)}
    await host.prepare(content_hash(variant), variant)


async def _open_session(server: EnvServer, manifest: Manifest) -> None:
    """One that no pool gives back: it is broken off."""
    async with server.session() as session:
        await session.reset(task_of(manifest, Split.TRAIN, 0).reset_arguments(), timeout=SECONDS)
        session.wire.is_broken = True


async def _report_frames(server: EnvServer, manifest: Manifest, sessions: int, frames: int) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*(_run(server, manifest, frames // sessions, n) for n in range(sessions)))
    seconds, used, total = time.perf_counter() - begun, time.process_time() - cpu, sum(counts)
    console.print(
        f"{sessions:3} sessions   {total / seconds:8,.0f} frames/s   client {1e6 * used / total:4.0f} µs of CPU a frame"
    )


async def _run(server: EnvServer, manifest: Manifest, frames: int, number: int) -> int:
    count = 0
    while count < frames:
        async with server.session() as session:
            count += await _episode(session, manifest, number * frames + count)
    return count


async def _episode(session: EnvSession, manifest: Manifest, index: int) -> int:
    """Always the first legal choice; the number of frames."""
    action = manifest.proctor.agent.action
    observation = await session.reset(task_of(manifest, Split.TRAIN, index).reset_arguments(), timeout=SECONDS)
    frames = 1
    while not observation.done:
        choice = observation.fields[str(action.choices)][0]
        observation = await session.step({str(action.field): choice}, timeout=SECONDS)
        frames += 1
    return frames


if __name__ == "__main__":
    main()
