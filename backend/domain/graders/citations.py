"""Quotes of a conversation with the number of a turn: what counts as one, and whether it really stands there.

Turn n is the n-th reply of the policy, what it thought before it, and what was said to it after it; turn 0 is all that
was said before the first reply. A quote that does not stand in its turn word for word is none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Part(StrEnum):
    """Who said it."""

    SAID = "said"
    """The policy's reply."""
    THOUGHT = "thought"
    """What the policy thought before it, kept apart from the reply."""
    HEARD = "heard"
    """The task or the environment."""


@dataclass(frozen=True, slots=True)
class Citation:
    """As somebody claims it."""

    turn: int
    quote: str


@dataclass(frozen=True, slots=True)
class Utterance:
    """One text of a turn."""

    turn: int
    part: Part
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A quote where it stands."""

    turn: int
    part: Part
    start: int
    end: int
    quote: str
    """As it is written there."""


def utterances(messages: Sequence[Mapping[str, Any]]) -> list[Utterance]:
    """A stored conversation in turns, texts as they are stored."""
    found, turn = [], 0
    for message in messages:
        text = str(message.get("content") or "")
        if message.get("role") != "assistant":
            found.append(Utterance(turn, Part.HEARD, text))
            continue
        turn += 1
        if thought := str(message.get("reasoning") or ""):
            found.append(Utterance(turn, Part.THOUGHT, thought))
        found.append(Utterance(turn, Part.SAID, text))
    return found


def find_citation(
    said: Sequence[Utterance], claimed: Citation, parts: frozenset[Part] = frozenset(Part)
) -> Found | None:
    """Where the quote stands in its turn; the policy's own words come before what it heard."""
    quotes = [quote for quote in (claimed.quote, _unbarred(claimed.quote)) if quote.strip()]
    of_turn = [each for each in said if each.turn == claimed.turn and each.part in parts]
    for utterance in sorted(of_turn, key=lambda each: each.part is Part.HEARD):
        for quote in quotes:
            if (start := utterance.text.find(quote)) >= 0:
                return Found(claimed.turn, utterance.part, start, start + len(quote), quote)
    return None


def checked(
    said: Sequence[Utterance], claimed: Sequence[Citation], parts: frozenset[Part] = frozenset(Part)
) -> tuple[list[Found], int]:
    """The quotes that stand where they are said to, each once, and how many do not."""
    looked = [find_citation(said, each, parts) for each in claimed]
    found = list(dict.fromkeys(each for each in looked if each is not None))
    return found, sum(each is None for each in looked)


def _unbarred(quote: str) -> str:
    """Lines were shown behind bars; whoever copies several copies the bars as well."""
    return re.sub(r"(?m)^[ \t]*\| ?", "", quote).strip()
