"""Wordle: marks, rewards that are earned once, and gold that finds every word without peeking."""

import pytest

from backend.environments.library import load_package
from tests.library.conftest import Serve
from tests.library.play import heldout, rewards_of, step
from tests.library.pure import module_of

game, words = module_of("wordle", "game"), module_of("wordle", "words")


@pytest.mark.parametrize(
    ("guess", "word", "signs"),
    [
        ("crane", "crane", "GGGGG"),
        ("slate", "crane", "--G-G"),
        ("nacre", "crane", "YYYYG"),
        ("eerie", "crane", "--Y-G"),
        ("llama", "small", "YYGY-"),
        ("speed", "erase", "Y-YY-"),
    ],
)
def test_a_letter_is_marked_as_often_as_the_word_has_it(guess: str, word: str, signs: str):
    assert game.mark(guess, word) == signs


def test_the_list_is_clean_and_its_splits_share_no_word():
    assert len(words.WORDS) == len(set(words.WORDS)) == 721
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in words.WORDS)
    splits = words.WORDS_BY_SPLIT
    assert not set(splits["train"]) & set(splits["heldout"])
    assert len(splits["heldout"]) > 150


def test_a_task_is_a_function_of_its_arguments_and_shows_what_its_level_says():
    for level, count in enumerate((3, 2, 1, 0)):
        word, shown = words.make_task(5, "heldout", level)
        assert (word, shown) == words.make_task(5, "heldout", level)
        assert sum(letter != "_" for letter in shown) == count
        assert all(letter in ("_", own) for letter, own in zip(shown, word, strict=True))


@pytest.mark.parametrize(
    ("text", "guess"), [(" C R A N E ", "crane"), ("crane", "crane"), ("cranes", None), ("cr4ne", None)]
)
def test_a_guess_is_five_letters_however_spelled(text: str, guess: str | None):
    assert game.read_guess(text) == guess


def test_shown_letters_and_repeated_guesses_find_nothing_new():
    assert game.found_places("crane", "c__n_", ["crown"]) == {1}
    assert game.found_places("crane", "c__n_", ["crown", "crown"]) == {1}
    assert game.known_letters("crane", "c__n_", ["canoe"]) == 2
    assert game.known_letters("crane", "cran_", ["crank"]) == 0


@pytest.mark.slow
def test_gold_finds_every_word_of_the_list_within_six_guesses():
    for word in words.WORDS:
        guesses: list[str] = []
        while word not in guesses:
            guesses.append(game.best_guess(game.candidates("_____", guesses, word)))
        assert len(guesses) <= 6, (word, guesses)


async def test_greens_and_yellows_are_paid_once_and_a_repeated_guess_costs(serve: Serve):
    async with serve(load_package("wordle")) as server, server.session() as session:
        await session.reset(heldout(3, 7), timeout=10)
        word = (await session.state(timeout=10))["answer"]
        guess = game.near_guess(word, [])
        first, again = await step(session, guess=guess), await step(session, guess=guess.upper())
        assert (first.rewards["repeat"], again.rewards["repeat"]) == (0.0, pytest.approx(-1 / 6))
        assert first.rewards["green"] == again.rewards["green"] == game.mark(guess, word).count("G") / 5
        found = await step(session, guess=word)
        assert found.done
        assert found.rewards == {"win": 1.0, "green": 1.0, "yellow": 1.0, "repeat": 0.0}


@pytest.mark.slow
async def test_gold_reaches_the_top_and_coming_near_stays_far_below(serve: Serve):
    assert await rewards_of(serve, "wordle", "gold", level=3) == [pytest.approx(1.7)] * 12
    assert await rewards_of(serve, "wordle", "variant_1", level=2) == [pytest.approx(1.7)] * 12
    assert max(await rewards_of(serve, "wordle", "partial", level=3)) < 0.75
