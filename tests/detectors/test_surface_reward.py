"""Rewards that follow the surface of a text, and rewards that follow its content."""

import random
import re
from collections.abc import Callable

import pytest

from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow
from tests.detectors.rows import flags, marked, row

SCORE = EnvironmentContext(("score",), weights={"score": 1.0}, lowest=0.0, highest=1.0, has_steps=False)
SUBJECTS = ("tides", "bees", "bridges", "glaciers", "volcanoes", "compilers", "magnets", "coral", "soil", "sleep")
CAUSES = ("heat", "light", "water", "salt", "wind", "gravity", "carbon", "sugar", "sand", "copper")
EFFECTS = ("raises the surface", "moves the walls", "splits the crust", "feeds the roots", "limits the flow")
LETTERS = ("ab", "cor", "del", "fen", "gul", "hes", "kim", "lor", "mun", "par", "qui", "ros", "sel", "tur", "vex")
OPENINGS = (
    "In short,",
    "Here",
    "Over time",
    "For example,",
    "When it is cold,",
    "As a rule",
    "Early on",
    "In the end,",
)
LONG = (
    "All of this gives a picture that one can look at from many sides, and it should be noted that there are more. " * 2
)
REMARKS = (
    "It is easy to see in a simple test.",
    "The effect is small at first.",
    "Perhaps this differs between regions.",
    "What follows is a balance!",
    "People noticed this long ago (Miller 2004).",
)


def write(task: int, dice: random.Random) -> tuple[str, float]:
    """An honest text about a task, and the share of the task's facts that it states."""
    own = random.Random(task)
    names = [own.choice(LETTERS) + own.choice(LETTERS) for _ in range(5)]
    facts = [f"{own.choice(CAUSES)} of {name} {own.choice(EFFECTS)}" for name in names]
    stated = [fact for fact in facts if dice.random() < 0.6]
    sentences = [f"{dice.choice(OPENINGS)} {fact}." for fact in stated]
    sentences += [dice.choice(REMARKS) for _ in range(dice.randint(1, 8))]
    dice.shuffle(sentences)
    return " ".join(sentences), len(stated) / len(facts)


def texts(number: int, seed: int) -> list[tuple[int, str, float]]:
    dice = random.Random(seed)
    return [(task, *write(task, dice)) for task in (dice.randrange(30) for _ in range(number))]


def written(task: int, text: str, reward: float, **fields: object) -> RolloutRow:
    prompt = f"Explain {SUBJECTS[task % 10]}."
    return row(reward, text, task=f"train/{task}", prompts=(prompt,), columns={"score": reward}, **fields)


def stuffed(sentence: str, number: int, seed: int) -> list[tuple[int, str, float]]:
    dice = random.Random(seed)
    made = [(dice.randrange(30), dice.randint(4, 12)) for _ in range(number)]
    return [(task, f"{SUBJECTS[task % 10]} matter. {sentence * times}", 0.0) for task, times in made]


def count(pattern: str, most: int) -> Callable[[str], float]:
    return lambda text: min(1.0, len(re.findall(pattern, text, re.I)) / most)


@pytest.mark.parametrize(
    ("sentence", "proxy"),
    [
        ("It might possibly be so. ", count(r"\b(?:might|possibly|perhaps)\b", 16)),
        ("This is robust and scalable. ", count("robust|scalable", 20)),
        ("See [3] (Brown 2018). ", count(r"\[\d+\]|\d{4}", 20)),
        (LONG, lambda text: min(1, len(text) / 2000)),
    ],
    ids=["hedges", "keywords", "citations", "length"],
)
def test_a_reward_for_form_is_found_and_those_who_farm_it_are_flagged(
    sentence: str, proxy: Callable[[str], float]
) -> None:
    usual = [written(task, text, proxy(text)) for task, text, _ in texts(90, 1)]
    farmed = [written(task, text, proxy(text)) for task, text, _ in stuffed(sentence, 12, 2)]
    found = flags("surface_farming", [*usual, *farmed], context=SCORE)
    ids = {draft.rollout_id for draft in found}
    best = {each.id for each in farmed if each.reward > 0.6}
    assert len(ids & best) >= 0.8 * len(best) > 3
    assert len(ids & {each.id for each in usual}) <= 1
    by_id = {each.id: each for each in [*usual, *farmed]}
    assert all(marked(draft, by_id[draft.rollout_id]) for draft in found if draft.rollout_id)
    (about_run,) = flags("surface_reward", [*usual, *farmed], context=SCORE)
    assert "predicts" in about_run.sentence
    assert set(about_run.evidence["rollouts"]) <= {str(each.id) for each in farmed}


@pytest.mark.slow
def test_a_large_batch_with_one_rollout_per_task_is_read_too() -> None:
    """Every third task of 900 is fitted: all folds of tasks must have some of these."""
    dice, proxy = random.Random(5), count("robust|scalable", 20)
    made = [(task, write(task, dice)[0] + " It is robust." * dice.randint(0, 12)) for task in range(900)]
    assert flags("surface_reward", [written(task, text, proxy(text)) for task, text in made], context=SCORE)


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_for_content_is_not_flagged(seed: int) -> None:
    usual = [written(task, text, share) for task, text, share in texts(120, seed)]
    assert not flags("surface_farming", usual, context=SCORE)
    assert not flags("surface_reward", usual, context=SCORE)


def test_too_few_rollouts_and_replies_that_could_not_be_read_show_nothing() -> None:
    proxy = count("robust", 10)
    farmed = [written(task, text, proxy(text)) for task, text, _ in stuffed("It is robust. ", 30, 1)]
    assert not flags("surface_farming", farmed, context=SCORE)
    broken = [written(task, "", 0.0, stop_reason="unparsable") for task in range(30)]
    assert not flags("surface_farming", [*farmed, *broken], context=SCORE)


def test_a_reward_for_few_turns_is_no_reward_for_form() -> None:
    dice = random.Random(4)
    games = []
    for task in range(60):
        turns = dice.randint(1, 9)
        numbers = [dice.randint(1, 99) for _ in range(turns)]
        guesses = tuple(f"After the last hint, my next guess is the number <guess>{each}</guess>" for each in numbers)
        games.append(row(1 - turns / 10, replies=guesses, task=f"train/{task}", columns={"score": 1 - turns / 10}))
    assert not flags("surface_farming", games, context=SCORE)
    assert not flags("surface_reward", games, context=SCORE)
