"""A message to the support, put together from pieces, and the only right decision about it."""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from . import phrases
from .rules import CAUSES, Decision, Ticket, decide

LEVELS = 4
HELDOUT_EVERY = 4
"""One in this many phrases is kept for the held-out split."""
TYPING_ERRORS = 0.06
"""Share of the words that are mistyped on the highest level."""
PRESSING_SHARE = 0.4
_NEVER_PRESSING = {"praise", "advertising", "danger", "stranger_inside"}
_AGES = {"late_parcel": ((2, 10), (11, 40)), "unwanted": ((3, 30), (31, 200))}
_ANY_AGE = ((2, 30), (31, 730), (731, 1600))

Piece = TypeVar("Piece")


class Message(NamedTuple):
    text: str
    decision: Decision


def make_message(seed: int, split: str, level: int) -> Message:
    """No piece of a held-out message ever occurs in training."""
    return _Writer(random.Random(f"{split}:{level}:{seed}"), split, level).write()


def pieces_of(split: str, pieces: Sequence[Piece]) -> list[Piece]:
    """The phrases of a split."""
    is_heldout = split == "heldout"
    return [piece for n, piece in enumerate(pieces) if (n % HELDOUT_EVERY == HELDOUT_EVERY - 1) == is_heldout]


class _Writer:
    """Draws the pieces of one message."""

    def __init__(self, chance: random.Random, split: str, level: int) -> None:
        self._chance, self._split, self._level = chance, split, level
        self._order, self._other = (f"HX-{number}" for number in chance.sample(range(10000, 99999), 2))
        self._product, faults = self._pick(phrases.PRODUCTS)
        self._fault = chance.choice(faults)
        self._name = chance.choice(phrases.NAMES)

    def write(self) -> Message:
        chance = self._chance
        cause = chance.choice(sorted(CAUSES))
        days = chance.randint(*chance.choice(_AGES.get(cause, _ANY_AGE)))
        is_pressing = cause not in _NEVER_PRESSING and chance.random() < PRESSING_SHARE
        core = self._pick(phrases.BY_CAUSE[cause])
        ticket = Ticket(cause, days, is_pressing, self._order if "{order}" in core else "")
        parts = [core, *([self._pick(phrases.PRESSING)] if is_pressing else []), *self._around(ticket)]
        if self._level >= 2:
            chance.shuffle(parts)
        body = self._fill(" ".join(parts))
        if self._level >= 3:
            body = self._mistype(body)
        return Message(self._header(ticket) + self._frame(body), decide(ticket))

    def _around(self, ticket: Ticket) -> list[str]:
        """What does not matter, more of it on higher levels."""
        parts = [self._pick(phrases.FILLERS)] if self._level >= 1 else []
        if self._level >= 1 and not ticket.is_pressing and ticket.cause not in _NEVER_PRESSING:
            parts += [self._pick(phrases.UNHURRIED)] if self._chance.random() < 0.5 else []
        if self._level >= 2 and ticket.cause != "advertising":
            parts.append(self._pick(phrases.SETTLED))
        if self._level >= 3:
            parts.append(self._pick(phrases.COMMANDS))
        return parts

    def _header(self, ticket: Ticket) -> str:
        sent = ticket.days if ticket.cause == "late_parcel" else max(1, ticket.days - self._chance.randint(0, 2))
        bought = ticket.days + self._chance.randint(0, 2) if ticket.cause == "late_parcel" else ticket.days
        return f"[bought {bought} days ago, parcel sent {sent} days ago]\n"

    def _frame(self, body: str) -> str:
        if self._level == 0:
            return body
        farewell = self._pick(phrases.FAREWELLS).format(name=self._name)
        return f"{self._pick(phrases.GREETINGS)}\n{body}\n{farewell}"

    def _fill(self, text: str) -> str:
        amount = f"{self._chance.randint(9, 180)}.{self._chance.choice(('00', '50', '90'))} euros"
        return text.format(
            product=self._product, fault=self._fault, order=self._order, other=self._other, amount=amount
        )

    def _mistype(self, text: str) -> str:
        """Swap two neighboring letters, never in text that must be copied."""
        words = text.split(" ")
        for n, word in enumerate(words):
            if len(word) > 4 and word.isalpha() and word.islower() and self._chance.random() < TYPING_ERRORS:
                place = self._chance.randint(1, len(word) - 3)
                words[n] = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
        return " ".join(words)

    def _pick(self, pieces: Sequence[Piece]) -> Piece:
        return self._chance.choice(pieces_of(self._split, pieces))
