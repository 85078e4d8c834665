"""What `proctor_sandbox.execute()` costs: one small program with common imports, alone and many at a time.

python -m benchmarks.sandbox [--count 400] [--strict]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from proctor_sandbox import Limits, execute

console = Console(soft_wrap=True)
PROGRAM = """
import collections, functools, itertools, json, math, random, re, string
words = re.findall(r"[a-z]+", input())
print(json.dumps(collections.Counter(words).most_common(3)), math.prod(range(1, 10)))
submit(functools.reduce(lambda total, n: total + n, itertools.islice(itertools.count(), 100)))
"""
MOST_MS, LEAST_PER_SECOND = 15.0, 150.0
"""What is promised of two cores."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="executions per line")
    parser.add_argument("--strict", action="store_true", help="end with 1 when a promise is not kept")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    once()
    console.print(f"warm interpreter started, first execution   {1000 * (time.perf_counter() - begun):8.1f} ms")
    alone = sorted(seconds_of_one() for _ in range(arguments.count))
    median = 1000 * statistics.median(alone)
    console.print(f"one at a time: p50 {median:.1f} ms, p99 {1000 * alone[int(0.99 * len(alone))]:.1f} ms")
    bare = statistics.median(seconds_of_bare_interpreter() for _ in range(10))
    console.print(f"a fresh interpreter without any sandbox: p50 {1000 * bare:.1f} ms")
    rates = {callers: executions_per_second(callers, arguments.count) for callers in (1, 2, 4, 8)}
    for callers, rate in rates.items():
        console.print(f"{callers} callers on {len(os.sched_getaffinity(0))} cores   {rate:8.0f} executions/s")
    is_kept = median <= MOST_MS and max(rates.values()) >= LEAST_PER_SECOND
    console.print(f"promised: p50 ≤ {MOST_MS:g} ms, ≥ {LEAST_PER_SECOND:g}/s: {'kept' if is_kept else 'NOT kept'}")
    return int(arguments.strict and not is_kept)


def once() -> None:
    result = execute(PROGRAM, stdin="to be or not to be\n", limits=Limits(seconds=10))
    if result.value != 4950:
        raise RuntimeError(f"the program did not run: {result}")


def seconds_of_one() -> float:
    begun = time.perf_counter()
    once()
    return time.perf_counter() - begun


def seconds_of_bare_interpreter() -> float:
    begun = time.perf_counter()
    source = "submit = print\n" + PROGRAM
    subprocess.run([sys.executable, "-I", "-c", source], input=b"to be\n", stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def executions_per_second(callers: int, count: int) -> float:
    with ThreadPoolExecutor(callers) as pool:
        begun = time.perf_counter()
        for _ in pool.map(lambda _: once(), range(count)):
            pass
        return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    sys.exit(main())
