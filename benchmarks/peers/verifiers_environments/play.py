"""One measurement of verifiers 0.3.1, run by its own interpreter: play.py ENVIRONMENT COUNT CONCURRENCY URL.

The variable PEER_KEY holds any key. Prints {rollouts_per_second, cpu_ms, peak_mb, reward, errors} as JSON; nothing is
stored.
"""

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any

import uvloop
import verifiers as vf
from verifiers.types import ClientConfig


async def measure(name: str, count: int, concurrency: int, url: str) -> dict[str, Any]:
    environment = vf.load_environment(name, n=count)
    client = ClientConfig(api_base_url=url, api_key_var="PEER_KEY")

    async def play(examples: int) -> list[Any]:
        found = await environment.evaluate(
            client,
            "instant",
            num_examples=examples,
            rollouts_per_example=1,
            max_concurrent=concurrency,
            independent_scoring=True,
            on_progress=[],
        )
        return list(found["outputs"])

    await play(32)  # warm
    cpu, began = time.process_time(), time.perf_counter()
    outputs = await play(count)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "rollouts_per_second": count / seconds,
        "cpu_ms": 1000 * cpu / count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "reward": sum(output["reward"] for output in outputs) / count,
        "errors": sum(output["error"] is not None for output in outputs),
    }


if __name__ == "__main__":
    uvloop.install()
    name, count, concurrency, url = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(name, int(count), int(concurrency), url))), flush=True)  # noqa: T201
    os._exit(0)
