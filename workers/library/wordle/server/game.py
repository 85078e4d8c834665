"""The rules of the word game, and play that only uses the feedback."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from operator import eq

from .words import LENGTH, OPEN, WORDS

GREEN, YELLOW, GREY = "G", "Y", "-"

FIRST_GUESS = "slate"
MANY = 60
"""Number of candidates above which the fixed first guess is as good as a long search."""
FEW = 12
"""Number of candidates up to which words that cannot be the answer are considered too."""


def mark(guess: str, word: str) -> str:
    """One sign a letter: in its place, elsewhere in the word, or not (again) in the word."""
    left = [letter for letter, other in zip(word, guess, strict=True) if letter != other]
    signs = []
    for letter, other in zip(guess, word, strict=True):
        if letter == other:
            signs.append(GREEN)
        elif letter in left:
            left.remove(letter)
            signs.append(YELLOW)
        else:
            signs.append(GREY)
    return "".join(signs)


class _Marks(dict[str, str]):
    """The feedback of a guess for each possible answer, computed on first use."""

    def __init__(self, guess: str) -> None:
        self._guess = guess

    def __missing__(self, word: str) -> str:
        signs = self[word] = mark(self._guess, word)
        return signs


_marks = lru_cache(maxsize=len(WORDS))(_Marks)


def in_words(guess: str, signs: str) -> str:
    """For example `c grey, r green, …`."""
    names = {GREEN: "green", YELLOW: "yellow", GREY: "grey"}
    return ", ".join(f"{letter} {names[sign]}" for letter, sign in zip(guess, signs, strict=True))


def read_guess(text: str) -> str | None:
    """Five letters, regardless of spacing and capitalization."""
    guess = "".join(text.split()).lower()
    return guess if len(guess) == LENGTH and guess.isascii() and guess.isalpha() else None


def found_places(word: str, shown: str, guesses: list[str]) -> set[int]:
    """Hidden places whose letter was guessed."""
    return {n for n in hidden_places(shown) if any(guess[n] == word[n] for guess in guesses)}


def known_letters(word: str, shown: str, guesses: list[str]) -> int:
    """How many of the hidden letters were guessed, in their place or elsewhere."""
    hidden = Counter(word[n] for n in hidden_places(shown))
    most = 0
    for guess in guesses:
        told = Counter(letter for letter, sign in zip(guess, mark(guess, word), strict=True) if sign != GREY)
        given = Counter(letter for letter in shown if letter != OPEN)
        most = max(most, (hidden & (told - given)).total())
    return most


def hidden_places(shown: str) -> list[int]:
    return [n for n, letter in enumerate(shown) if letter == OPEN]


def candidates(shown: str, guesses: list[str], word: str) -> tuple[str, ...]:
    """Words of the list that agree with all feedback."""
    left = _that_show(shown)
    for guess in guesses:
        left = _that_remain(left, guess, mark(guess, word))
    return left


@lru_cache(maxsize=5_000)
def _that_show(shown: str) -> tuple[str, ...]:
    return tuple(word for word in WORDS if all(letter in (OPEN, own) for letter, own in zip(shown, word, strict=True)))


@lru_cache(maxsize=20_000)
def _that_remain(left: tuple[str, ...], guess: str, signs: str) -> tuple[str, ...]:
    marks = _marks(guess)
    return tuple(word for word in left if marks[word] == signs)


@lru_cache(maxsize=20_000)
def best_guess(left: tuple[str, ...]) -> str:
    """The guess that leaves the fewest candidates on average; a candidate where that is equal."""
    if len(left) > MANY:
        return FIRST_GUESS
    best, fewest = _best_of(left, left, len(left) - 0.5)
    if 2 < len(left) <= FEW and fewest > len(left):
        best, _ = _best_of([best, *WORDS], left, len(left))
    return best


def _best_of(pool: Sequence[str], left: tuple[str, ...], bound: float) -> tuple[str, float]:
    """The first of the pool that leaves the fewest, and how many; nothing can leave fewer than the bound."""
    best, fewest = "", math.inf
    for guess in pool:
        count = _left_over(guess, left)
        if count < fewest:
            best, fewest = guess, count
        if fewest <= bound:
            break
    return best, fewest


def _left_over(guess: str, left: tuple[str, ...]) -> float:
    marks = _marks(guess)
    groups: defaultdict[str, int] = defaultdict(int)
    for word in left:
        groups[marks[word]] += 1
    return sum([size * size for size in groups.values()]) - 0.5 * (guess in left)


def far_guess(word: str, used: list[str]) -> str:
    """The word of the list that has least to do with the answer and was not guessed yet."""
    return next(other for other in _from_far_to_near(word) if other not in used)


def near_guess(word: str, used: list[str]) -> str:
    """Another word of the list that shares most places with the answer and was not guessed yet."""
    return next(other for other in reversed(_from_far_to_near(word)) if other != word and other not in used)


@lru_cache(maxsize=len(WORDS))
def _from_far_to_near(word: str) -> tuple[str, ...]:
    letters = set(word)

    def nearness(other: str) -> tuple[int, int, str]:
        return sum(map(eq, other, word)), len(letters.intersection(other)), other

    return tuple(sorted(WORDS, key=nearness))
