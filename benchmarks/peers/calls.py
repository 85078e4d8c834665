"""CPU of one model call: `ours|openai COUNT URL`, 64 calls at once. Prints milliseconds."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from openai import AsyncOpenAI

from backend.domain.environments.manifest import read_manifest
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import Split
from benchmarks.peers.packages import peer_package
from workers.policies.base import EpisodeStart, Turn
from workers.policies.openai_api import Endpoint, OpenAiPolicy

AT_ONCE = 64
MESSAGES = [{"role": "system", "content": "Reverse the text."}, {"role": "user", "content": "abcde 1"}]

Call = Callable[[], Awaitable[object]]


async def ours(url: str, count: int) -> float:
    policy = OpenAiPolicy(Endpoint(url, "instant"), Sampling())
    manifest = read_manifest(peer_package("one_turn")["openenv.yaml"])
    start = EpisodeStart(task_of(manifest, Split.TRAIN, 0), manifest, 0, seed=1)
    player = await policy.begin(start)
    turn = Turn(0, MESSAGES, "abcde 1", {}, {}, {}, max_tokens=64)
    try:
        return await cpu_of(lambda: player.act(turn), count)
    finally:
        await policy.aclose()


async def openai(url: str, count: int) -> float:
    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        def call() -> Awaitable[object]:
            return client.chat.completions.create(model="instant", messages=MESSAGES, max_tokens=64, seed=1)  # type: ignore[arg-type]

        return await cpu_of(call, count)


async def cpu_of(call: Call, count: int) -> float:
    """Milliseconds of this process's CPU a call."""
    await _calls(call, AT_ONCE * 2)
    began = time.process_time()
    await _calls(call, count)
    return 1000 * (time.process_time() - began) / count


async def _calls(call: Call, count: int) -> None:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    which, count, url = sys.argv[1:]
    sys.stdout.write(f"{asyncio.run({'ours': ours, 'openai': openai}[which](url, int(count)))}\n")
