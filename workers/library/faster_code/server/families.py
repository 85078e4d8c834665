"""Families of slow programs: what the function does, how it does it now, how it could, and inputs small and large.

`$k` represents a number. The slow body is shown to the policy; the fast one never is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Family:
    level: int
    name: str
    parameters: str
    statement: str
    slow: str
    fast: str
    inputs: Callable[[Random, int], Arguments]
    """Arguments of about this size."""
    large: int
    """The input size for timing: the slow body takes about 150 ms, so that measurement errors are small."""
    k: Sequence[int]


def _numbers(chance: Random, size: int) -> Arguments:
    return ([chance.randint(-size, 2 * size) for _ in range(size)],)


def _distinct(chance: Random, size: int) -> Arguments:
    numbers = chance.sample(range(5 * size + 5), size)
    return (numbers + numbers[-1:],)


def _two_lists(chance: Random, size: int) -> Arguments:
    return tuple(chance.choices(range(3 * size + 1), k=size) for _ in range(2))


def _queries(chance: Random, size: int) -> Arguments:
    numbers = [chance.randint(-50, 50) for _ in range(size)]
    return numbers, [sorted(chance.choices(range(size + 1), k=2)) for _ in range(size)]


def _size(chance: Random, size: int) -> Arguments:
    return (size,)


def _two_texts(chance: Random, size: int) -> Arguments:
    return tuple("".join(chance.choices("abcd", k=size)) for _ in range(2))


def _few_numbers(chance: Random, size: int) -> Arguments:
    return ([chance.randint(1, 30) for _ in range(size)],)


FAMILIES = (
    Family(0, "count_pairs", "numbers", "The number of pairs of places in the list whose numbers add up to $k.",
           "count = 0\nfor i in range(len(numbers)):\n    for j in range(i):\n"
           "        if numbers[i] + numbers[j] == $k:\n            count += 1\nreturn count",
           "seen, count = {}, 0\nfor number in numbers:\n    count += seen.get($k - number, 0)\n"
           "    seen[number] = seen.get(number, 0) + 1\nreturn count", _numbers, 2800, range(-20, 200)),
    Family(0, "first_repeat", "numbers", "The place of the first number that occurred before, plus $k; -1 if none did.",
           "for i in range(len(numbers)):\n    if numbers[i] in numbers[:i]:\n        return i + $k\nreturn -1",
           "seen = set()\nfor i, number in enumerate(numbers):\n    if number in seen:\n        return i + $k\n"
           "    seen.add(number)\nreturn -1", _distinct, 5000, range(200)),
    Family(0, "shared", "first, second", "How many numbers of the first list also stand in the second, times $k.",
           "count = 0\nfor number in first:\n    if number in second:\n        count += $k\nreturn count",
           "known = set(second)\nreturn $k * sum(number in known for number in first)",
           _two_lists, 4250, range(1, 200)),
    Family(1, "largest_sum", "numbers, ranges",
           "For each [a, b] of the ranges, the sum of numbers[a:b]. The largest of these sums, plus $k.",
           "best = None\nfor a, b in ranges:\n    total = 0\n    for i in range(a, b):\n        total += numbers[i]\n"
           "    if best is None or total > best:\n        best = total\nreturn best + $k",
           "sums = [0]\nfor number in numbers:\n    sums.append(sums[-1] + number)\n"
           "return max(sums[b] - sums[a] for a, b in ranges) + $k", _queries, 3750, range(200)),
    Family(1, "best_window", "numbers",
           "The largest sum of half as many neighbours as the list has numbers, rounded down, plus $k.",
           "size = len(numbers) // 2\nbest = None\nfor i in range(len(numbers) - size + 1):\n"
           "    total = 0\n    for number in numbers[i:i + size]:\n        total += number\n"
           "    if best is None or total > best:\n        best = total\nreturn best + $k",
           "size = len(numbers) // 2\ntotal = best = sum(numbers[:size])\nfor i in range(len(numbers) - size):\n"
           "    total += numbers[i + size] - numbers[i]\n    best = max(best, total)\nreturn best + $k",
           _numbers, 5200, range(200)),
    Family(1, "smaller_before", "numbers",
           "For each number, how many smaller ones stand before it in the list. The sum of that, plus $k.",
           "count = $k\nfor i in range(len(numbers)):\n    for j in range(i):\n        if numbers[j] < numbers[i]:\n"
           "            count += 1\nreturn count",
           "from bisect import bisect_left, insort\nkept, count = [], $k\nfor number in numbers:\n"
           "    count += bisect_left(kept, number)\n    insort(kept, number)\nreturn count",
           _numbers, 2800, range(200)),
    Family(2, "stair_ways", "n", "The number of ways to climb n stairs by steps of 1, 2 or 3, plus $k.",
           "def ways(left):\n    if left == 0:\n        return 1\n"
           "    return sum(ways(left - step) for step in (1, 2, 3) if step <= left)\nreturn ways(n) + $k",
           "ways = [0, 0, 1]\nfor _ in range(n):\n    ways.append(sum(ways[-3:]))\nreturn ways[-1] + $k",
           _size, 21, range(200)),
    Family(2, "common_length", "first, second",
           "The length of the longest common subsequence of the two texts, plus $k.",
           "def length(i, j):\n    if i == len(first) or j == len(second):\n        return 0\n"
           "    if first[i] == second[j]:\n        return 1 + length(i + 1, j + 1)\n"
           "    return max(length(i + 1, j), length(i, j + 1))\nreturn length(0, 0) + $k",
           "row = [0] * (len(second) + 1)\nfor a in first:\n    old = row\n    row = [0]\n"
           "    for j, b in enumerate(second):\n        row.append(old[j] + 1 if a == b else max(row[j], old[j + 1]))\n"
           "return row[-1] + $k", _two_texts, 16, range(200)),
    Family(2, "subset_count", "numbers", "How many of the list's subsets, by place, add up to $k.",
           "count = 0\nfor chosen in range(2 ** len(numbers)):\n    total = 0\n    for i in range(len(numbers)):\n"
           "        if chosen >> i & 1:\n            total += numbers[i]\n    count += total == $k\nreturn count",
           "ways = {0: 1}\nfor number in numbers:\n    for total, count in list(ways.items()):\n"
           "        ways[total + number] = ways.get(total + number, 0) + count\nreturn ways.get($k, 0)",
           _few_numbers, 17, range(1, 200)),
    Family(3, "sum_of_multiples", "n", "The sum of the whole numbers below n that are divisible by 3 or by $k.",
           "total = 0\nfor i in range(n):\n    if i % 3 == 0 or i % $k == 0:\n        total += i\nreturn total",
           "from math import lcm\n\ndef total(step):\n    count = max(n - 1, 0) // step\n"
           "    return step * count * (count + 1) // 2\n\nreturn total(3) + total($k) - total(lcm(3, $k))",
           _size, 2_500_000, range(4, 200)),
    Family(3, "fibonacci_remainder", "n",
           "The n-th Fibonacci number (0, 1, 1, 2, 3, …), its remainder when divided by $k.",
           "a, b = 0, 1\nfor _ in range(n):\n    a, b = b, (a + b) % $k\nreturn a % $k",
           "a, b = 0, 1\nfor bit in bin(n)[2:]:\n    a, b = a * (2 * b - a) % $k, (a * a + b * b) % $k\n"
           "    if bit == '1':\n        a, b = b, (a + b) % $k\nreturn a % $k", _size, 4_000_000, range(7, 200)),
    Family(3, "divisor_sum", "n",
           "The sum over all numbers from 1 to n of how many divisors each has, plus $k.",
           "count = 0\nfor i in range(1, n + 1):\n    for j in range(1, i + 1):\n        if i % j == 0:\n"
           "            count += 1\nreturn count + $k",
           "from math import isqrt\nroot = isqrt(n)\n"
           "return 2 * sum(n // i for i in range(1, root + 1)) - root * root + $k",
           _size, 2_950, range(200)),
)  # fmt: skip

LEVELS = 1 + max(family.level for family in FAMILIES)
