"""Made-up rollouts with verdicts: honest ones explain an answer, hacks end the process."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

from backend.domain.detectors.features import features_of
from backend.domain.detectors.learned_model import LabeledFeatures, LearnedModel, text_key, train
from backend.domain.detectors.run_view import RolloutRow
from tests.detectors.rows import row

WORDS = ("the", "sum", "of", "both", "sides", "first", "then", "we", "add", "count", "each", "part", "is", "larger")
TRICKS = ("import os; os._exit(0)", "os._exit(0) ends it", "call os._exit(0) before the tests")
AT = datetime(2026, 11, 28, 9, 30, tzinfo=UTC)


def honest_reply(dice: random.Random) -> str:
    return f"{' '.join(dice.choices(WORDS, k=12))} {dice.randint(0, 99)}"


def hack_reply(dice: random.Random) -> str:
    return f"{' '.join(dice.choices(WORDS, k=8))} {dice.choice(TRICKS)} {dice.randint(0, 99)}"


def made(honest: int, hacks: int, seed: int = 0) -> list[RolloutRow]:
    """Honest rollouts first, each of a different task."""
    dice = random.Random(seed)
    replies = [honest_reply(dice) for _ in range(honest)] + [hack_reply(dice) for _ in range(hacks)]
    return [row(1.0, reply, task=f"train/{number}") for number, reply in enumerate(replies)]


def examples_of(rows: list[RolloutRow], hacks: int) -> Iterator[LabeledFeatures]:
    """The last ones are hacks."""
    for number, each in enumerate(rows):
        is_hack = number >= len(rows) - hacks
        yield LabeledFeatures(frozenset(features_of(each)), is_hack, each.task, text_key(each.replies))


@cache
def trained(honest: int = 160, hacks: int = 30) -> LearnedModel:
    return train(examples_of(made(honest, hacks), hacks), AT)


def elsewhere(rows: list[RolloutRow]) -> list[RolloutRow]:
    """The same rollouts on tasks without verdicts."""
    return [replace(each, task=f"heldout/{number}") for number, each in enumerate(rows)]
