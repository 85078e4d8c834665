"""Families of problems: a statement with numbers left open, a perfect solution, one that forgets something, inputs.

`$k` and `$m` represent the numbers. The solutions are bodies of the function; nothing of this is shown to a policy but
the statement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Family:
    level: int
    name: str
    parameters: str
    returns: str
    statement: str
    gold: str
    partial: str
    """Right on many inputs, not on all."""
    inputs: Callable[[Random, int], Arguments]
    """Arguments for the problem with this `k`."""
    k: Sequence[int] = field(default=range(2, 40))
    m: Sequence[int] = field(default=(0,))


def _pair(chance: Random, k: int) -> Arguments:
    low = chance.randint(-3 * k, 6 * k)
    return low, low + chance.choice((0, 1, k, chance.randint(0, 9 * k)))


def _number(chance: Random, k: int) -> Arguments:
    return (chance.choice((0, chance.randint(1, 99), chance.randint(1, 10**6), k ** chance.randint(1, 4))),)


def _numbers(chance: Random, k: int) -> Arguments:
    return ([chance.randint(-20, 20) for _ in range(chance.choice((0, 1, 3, 8, 12)))],)


def _repetitive(chance: Random, k: int) -> Arguments:
    runs = [[chance.randint(1, 4)] * chance.randint(1, k + 2) for _ in range(chance.randint(0, 8))]
    return ([number for run in runs for number in run],)


def _text(chance: Random, k: int) -> Arguments:
    letters = "abcxyzABCXYZ .,!"
    return ("".join(chance.choices(letters, k=chance.choice((0, 1, 7, 15, 30)))),)


def _words(chance: Random, k: int) -> Arguments:
    words = ["a", "in", "sun", "moon", "river", "stone", "winter", "Sun", "meadow", "of", "bell", "rivers"]
    return (" ".join(chance.choices(words, k=chance.randint(0, 18))),)


def _pairs_text(chance: Random, k: int) -> Arguments:
    keys = ["ab", "ac", "ba", "b", "c", "cab"]
    parts = [f"{chance.choice(keys)}={chance.randint(-5, 40)}" for _ in range(chance.randint(0, 7))]
    return (";".join(parts + [""] * chance.randint(0, 1)),)


def _brackets(chance: Random, k: int) -> Arguments:
    if chance.random() < 0.3:
        return ("".join(chance.choices("([)]a", k=chance.randint(1, 9))),)
    text = ""
    for _ in range(chance.randint(0, 5)):
        opening = chance.choice(("()", "[]"))
        text = opening[0] + text + opening[1] if chance.random() < 0.6 else text + opening
    return (text,)


def _moves(chance: Random, k: int) -> Arguments:
    return ([[chance.choice(("in", "out")), chance.randint(1, 2 * k)] for _ in range(chance.randint(0, 8))],)


def _amount(chance: Random, k: int) -> Arguments:
    return (chance.choice((0, 1, chance.randint(2, 20), chance.randint(20, 120))),)


def _grid(chance: Random, k: int) -> Arguments:
    rows, columns = chance.randint(1, 6), chance.randint(1, 6)
    return (["".join(chance.choices(".#", (6, 1), k=columns)) for _ in range(rows)],)


def _two_words(chance: Random, k: int) -> Arguments:
    return tuple("".join(chance.choices("abc", k=chance.randint(0, 6))) for _ in range(2))


FAMILIES = (
    Family(0, "count_multiples", "low: int, high: int", "int",
           "How many whole numbers from low to high, both included, are divisible by $k?",
           "return high // $k - (low - 1) // $k", "return sum(1 for n in range(low, high) if n % $k == 0)",
           _pair, range(2, 130)),
    Family(0, "scaled_digit_sum", "n: int", "int",
           "The sum of those decimal digits of n that are larger than $m, times $k.",
           "return $k * sum(int(d) for d in str(n) if int(d) > $m)",
           "return $k * sum(int(d) for d in str(n) if int(d) >= $m)", _number, m=range(1, 8)),
    Family(0, "times_divisible", "n: int", "int",
           "How many times n can be divided by $k before a remainder is left, at most $m times. 0 for n = 0.",
           "count = 0\nwhile n and n % $k == 0 and count < $m:\n    n //= $k\n    count += 1\nreturn count",
           "return int(n != 0 and n % $k == 0)", _number, range(2, 12), range(1, 9)),
    Family(0, "floor_to_step", "n: int", "int",
           "The largest multiple of $k that is not above n, but never less than $m.",
           "return max($m, n // $k * $k)", "return n // $k * $k", _number, m=range(0, 400, 10)),
    Family(0, "sum_of_matches", "low: int, high: int", "int",
           "The sum of the whole numbers from low to high, both included, that leave 1 when divided by $k.",
           "return sum(n for n in range(low, high + 1) if n % $k == 1)",
           "return sum(n for n in range(low, high) if n % $k == 1)", _pair, range(2, 130)),
    Family(1, "long_runs", "numbers: list[int]", "int",
           "How many runs of equal neighbours in the list have a length of at least $k? Add $m to that.",
           "count = length = 0\nfor place, number in enumerate(numbers):\n"
           "    length = length + 1 if place and numbers[place - 1] == number else 1\n"
           "    count += length == $k\nreturn count + $m",
           "return sum(numbers[i:i + $k] == [numbers[i]] * $k for i in range(len(numbers) - $k + 1)) + $m",
           _repetitive, range(2, 6), range(60)),
    Family(1, "every_other", "text: str", "str",
           "Every $k-th character of the text, beginning with the one at index $m, in reversed order.",
           "return text[$m::$k][::-1]", "return text[::-1][$m::$k]", _text, range(2, 9), range(8)),
    Family(1, "nth_largest", "numbers: list[int]", "int | None",
           "The $k-th largest of the distinct numbers in the list, plus $m; None when there are fewer.",
           "found = sorted(set(numbers), reverse=True)\nreturn found[$k - 1] + $m if len(found) >= $k else None",
           "found = sorted(numbers, reverse=True)\nreturn found[$k - 1] + $m if len(found) >= $k else None",
           _numbers, range(1, 6), range(50)),
    Family(1, "shift_letters", "text: str", "str",
           "The text with each of the letters a to z moved $k places on in the alphabet, after z comes a, and each "
           "space written $m times. Everything else stays.",
           "moved = ''.join(chr((ord(c) - 97 + $k) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)\n"
           "return moved.replace(' ', ' ' * $m)",
           "return ''.join(chr((ord(c) - 97 + $k) % 26 + 97) if c.isalpha() else c for c in text)",
           _text, range(1, 26), range(2, 6)),
    Family(1, "best_window", "numbers: list[int]", "int",
           "The largest sum of $k neighbours in the list; -$m when the list has fewer than $k numbers.",
           "if len(numbers) < $k:\n    return -$m\n"
           "return max(sum(numbers[i:i + $k]) for i in range(len(numbers) - $k + 1))",
           "return max((sum(numbers[i:i + $k]) for i in range(len(numbers))), default=-$m)",
           _numbers, range(2, 6), range(60)),
    Family(2, "common_words", "text: str", "list[str]",
           "The words of the text, separated by spaces, that have at least $k letters and occur at least $m times, "
           "small and capital letters being the same. In small letters, the most frequent first, then by the alphabet.",
           "from collections import Counter\ncounts = Counter(text.lower().split())\n"
           "kept = [w for w in counts if len(w) >= $k and counts[w] >= $m]\n"
           "return sorted(kept, key=lambda w: (-counts[w], w))",
           "words = text.split()\nreturn sorted({w for w in words if len(w) >= $k and words.count(w) >= $m})",
           _words, range(1, 8), range(1, 6)),
    Family(2, "sum_of_keys", "text: str", "int",
           "The text holds pairs such as ab=7, separated by semicolons; empty parts do not count. The sum of the "
           "values above $m whose key has an a in it, but at most $k.",
           "pairs = [part.split('=') for part in text.split(';') if part]\n"
           "return min($k, sum(int(v) for key, v in pairs if 'a' in key and int(v) > $m))",
           "pairs = [part.split('=') for part in text.split(';') if part]\n"
           "return sum(int(v) for key, v in pairs if 'a' in key)", _pairs_text, range(30, 90), range(-3, 10)),
    Family(2, "bracket_depth", "text: str", "int",
           "How deep the round and square brackets of the text are nested, times $k; -$m when they do not match.",
           "stack, deepest = [], 0\nfor c in text:\n    if c in '([':\n        stack.append(c)\n"
           "        deepest = max(deepest, len(stack))\n    elif c in ')]':\n"
           "        if not stack or stack.pop() + c not in ('()', '[]'):\n            return -$m\n"
           "return -$m if stack else deepest * $k",
           "depth = deepest = 0\nfor c in text:\n    depth += (c in '([') - (c in ')]')\n"
           "    deepest = max(deepest, depth)\nreturn deepest * $k if depth == 0 else -$m",
           _brackets, range(1, 12), range(1, 30)),
    Family(2, "final_balance", "moves: list[list]", "int",
           "An account begins with $m. Each move is ['in', amount] or ['out', amount]. An 'out' that would bring the "
           "balance below -$k is skipped. The balance at the end.",
           "balance = $m\nfor kind, amount in moves:\n    if kind == 'in':\n        balance += amount\n"
           "    elif balance - amount >= -$k:\n        balance -= amount\nreturn balance",
           "balance = $m\nfor kind, amount in moves:\n    balance += amount if kind == 'in' else -amount\n"
           "return max(balance, -$k)", _moves, m=range(60)),
    Family(2, "by_remainder", "numbers: list[int]", "dict[str, list[int]]",
           "The numbers grouped by their remainder when divided by $k: the remainder as text, then its numbers in "
           "ascending order, each once. Numbers whose absolute value is above $m are left out.",
           "groups = {}\nfor n in sorted(set(numbers)):\n    if abs(n) <= $m:\n"
           "        groups.setdefault(str(n % $k), []).append(n)\nreturn groups",
           "groups = {}\nfor n in sorted(numbers):\n    if n <= $m:\n"
           "        groups.setdefault(str(n % $k), []).append(n)\nreturn groups", _numbers, range(2, 9), range(5, 21)),
    Family(3, "fewest_coins", "amount: int", "int",
           "The fewest coins of the values 1, $k and $m that make the amount.",
           "best = [0] + [amount] * amount\nfor n in range(1, amount + 1):\n"
           "    best[n] = 1 + min(best[n - c] for c in (1, $k, $m) if c <= n)\nreturn best[amount]",
           "count = 0\nfor coin in sorted((1, $k, $m), reverse=True):\n    count += amount // coin\n"
           "    amount %= coin\nreturn count", _amount, range(3, 20), range(7, 40)),
    Family(3, "rising_chain", "numbers: list[int]", "int",
           "The length of the longest subsequence, in the order of the list, in which each number is larger than "
           "the one before by at least $k. Add $m to that.",
           "best = []\nfor i, n in enumerate(numbers):\n"
           "    best.append(1 + max((best[j] for j in range(i) if n - numbers[j] >= $k), default=0))\n"
           "return max(best, default=0) + $m",
           "length, last = 0, None\nfor n in numbers:\n    if last is None or n - last >= $k:\n"
           "        length, last = length + 1, n\nreturn length + $m", _numbers, range(1, 8), range(40)),
    Family(3, "grid_paths", "rows: list[str]", "int",
           "How many ways lead from the upper left to the lower right cell of the grid, going right or down, never "
           "through a #? Counted modulo $k. A path of one cell counts as one; add $m to the result.",
           "ways = [0] * len(rows[0])\nfor i, row in enumerate(rows):\n    for j, cell in enumerate(row):\n"
           "        above = ways[j] if i else int(j == 0)\n"
           "        ways[j] = 0 if cell == '#' else (above + (ways[j - 1] if j else 0)) % $k\n"
           "return ways[-1] % $k + $m",
           "from math import comb\nif any('#' in row for row in rows):\n    return $m\n"
           "return comb(len(rows) + len(rows[0]) - 2, len(rows) - 1) % $k + $m", _grid, range(50, 98), range(40)),
    Family(3, "edit_cost", "first: str, second: str", "int",
           "The least cost of turning the first text into the second, when inserting or deleting a letter costs $k and "
           "replacing one costs $m.",
           "row = [j * $k for j in range(len(second) + 1)]\nfor i, a in enumerate(first, 1):\n"
           "    old, row = row, [i * $k]\n    for j, b in enumerate(second, 1):\n"
           "        row.append(min(row[-1] + $k, old[j] + $k, old[j - 1] + (a != b) * $m))\nreturn row[-1]",
           "same = sum(a != b for a, b in zip(first, second))\n"
           "return same * $m + abs(len(first) - len(second)) * $k", _two_words, range(1, 20), range(1, 20)),
    Family(3, "longest_balanced", "numbers: list[int]", "int",
           "The length of the longest stretch of neighbours whose sum leaves the remainder $m when divided by $k; "
           "0 when there is none.",
           "first, total, best = {0: 0}, 0, 0\nfor i, n in enumerate(numbers, 1):\n    total = (total + n) % $k\n"
           "    if (wanted := (total - $m) % $k) in first:\n        best = max(best, i - first[wanted])\n"
           "    first.setdefault(total, i)\nreturn best",
           "sums = [sum(numbers[:i]) for i in range(len(numbers) + 1)]\n"
           "return max((i for i, s in enumerate(sums) if i and s % $k == $m % $k), default=0)",
           _numbers, range(2, 12), range(12)),
)  # fmt: skip

LEVELS = 1 + max(family.level for family in FAMILIES)
