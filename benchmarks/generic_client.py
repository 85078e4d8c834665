"""A program for the runtime's Python: play a server through OpenEnv's own GenericEnvClient, and print the rate.

python benchmarks/generic_client.py URL SESSIONS FRAMES CHOICES FIELD prints frames a second. `benchmarks.envhost`
runs it beside our own client; it imports nothing of ours.
"""

import asyncio
import sys
import time

from openenv.core import GenericEnvClient  # type: ignore[import-not-found]


async def main(url: str, sessions: int, frames: int, choices: str, field: str) -> None:
    clients = [GenericEnvClient(base_url=url) for _ in range(sessions)]
    for client in clients:
        await client.connect()
        await client.reset(seed=1)
    begun = time.perf_counter()
    counts = await asyncio.gather(
        *(_play(client, frames // sessions, choices, field, number) for number, client in enumerate(clients))
    )
    sys.stdout.write(f"{sum(counts) / (time.perf_counter() - begun)}\n")
    for client in clients:
        await client.close()


async def _play(client: GenericEnvClient, frames: int, choices: str, field: str, number: int) -> int:
    """Always the first legal choice, as our own client does it."""
    count = 0
    while count < frames:
        result = await client.reset(seed=number * frames + count)
        count += 1
        while not result.done:
            result = await client.step({field: result.observation[choices][0]})
            count += 1
    return count


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]))
