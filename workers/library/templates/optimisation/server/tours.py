"""The quantity that is measured: the length of a round tour. Replace it by what you want to make small (or large)."""

import random
from functools import lru_cache
from itertools import pairwise

Place = tuple[int, int]
NAMES = "ABCDEFGHIJ"
SIDE = 100


def make_places(chance: random.Random, count: int) -> tuple[Place, ...]:
    """Places on a map, such that the order of their names is far from the best tour."""
    while True:
        places = tuple((chance.randrange(SIDE), chance.randrange(SIDE)) for _ in range(count))
        if len(set(places)) == count and length(places, tuple(range(count))) > 1.25 * shortest(places):
            return places


def length(places: tuple[Place, ...], order: tuple[int, ...]) -> float:
    """Round tour, straight lines."""
    return sum(_distance(places[a], places[b]) for a, b in pairwise((*order, order[0])))


def shortest(places: tuple[Place, ...]) -> float:
    return length(places, best_order(places))


@lru_cache(maxsize=4096)
def best_order(places: tuple[Place, ...]) -> tuple[int, ...]:
    """Exact, by dynamic programming over sets of visited places: fine for ten, not for thirty."""
    count = len(places)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(1, 0): (0.0, (0,))}
    for visited in range(1, 1 << count, 2):
        for last in range(count):
            if (visited, last) not in best:
                continue
            so_far, order = best[visited, last]
            for place in range(1, count):
                if visited & 1 << place:
                    continue
                key = (visited | 1 << place, place)
                entry = (so_far + _distance(places[last], places[place]), (*order, place))
                best[key] = min(best.get(key, entry), entry)
    whole = (1 << count) - 1
    return min(
        (so_far + _distance(places[order[-1]], places[0]), order)
        for (visited, _), (so_far, order) in best.items()
        if visited == whole
    )[1]


def read_tour(text: str, count: int) -> tuple[int, ...] | None:
    """Letters in any spelling (`a-b-c`, `A, B, C`); None unless each place is visited once."""
    letters = [letter for letter in text.upper() if letter.isalpha()]
    order = tuple(NAMES.find(letter) for letter in letters)
    return order if sorted(order) == list(range(count)) else None


def write_tour(order: tuple[int, ...]) -> str:
    return " ".join(NAMES[place] for place in order)


def _distance(a: Place, b: Place) -> float:
    return ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5
