"""Quotes as evidence: where a quote is in a conversation, and what contrasts found.

Turn n is the policy's n-th reply, the reasoning before it and the messages after it. Turn 0 is everything before the
first reply. A quote that is not in its turn word for word does not count.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class TurnPart(StrEnum):
    SAID = "said"
    """The policy's reply."""
    THOUGHT = "thought"
    """The policy's reasoning, stored separately from the reply."""
    HEARD = "heard"
    """The task or the environment."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A quote as a grader claims it."""

    turn: int
    quote: str
    rollout: str = ""
    """Contrasts only: the letter of the rollout."""


@dataclass(frozen=True, slots=True)
class Utterance:
    turn: int
    part: TurnPart
    text: str


class Quote(BaseModel):
    """A stored quote with its position in the conversation."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    turn: int
    part: str
    start: int
    end: int
    quote: str
    """As written there."""


def utterances(messages: Sequence[Mapping[str, object]]) -> list[Utterance]:
    """A stored conversation by turn, with texts as stored."""
    result, turn = [], 0
    for message in messages:
        text = str(message.get("content") or "")
        if message.get("role") != "assistant":
            result.append(Utterance(turn, TurnPart.HEARD, text))
            continue
        turn += 1
        if reasoning := str(message.get("reasoning") or ""):
            result.append(Utterance(turn, TurnPart.THOUGHT, reasoning))
        result.append(Utterance(turn, TurnPart.SAID, text))
    return result


def find_citation(
    conversation: Sequence[Utterance], claimed: Citation, parts: frozenset[TurnPart] = frozenset(TurnPart)
) -> Quote | None:
    """Find the quote in its turn. The policy's own words come before what it read."""
    # Prompts show each line behind a bar, and models copy the bars.
    without_bars = re.sub(r"(?m)^[ \t]*\| ?", "", claimed.quote).strip()
    quotes = [quote for quote in (claimed.quote, without_bars) if quote.strip()]
    of_turn = [each for each in conversation if each.turn == claimed.turn and each.part in parts]
    for utterance in sorted(of_turn, key=lambda each: each.part is TurnPart.HEARD):
        for quote in quotes:
            if (start := utterance.text.find(quote)) >= 0:
                end = start + len(quote)
                return Quote(turn=claimed.turn, part=utterance.part, start=start, end=end, quote=quote)
    return None


def check_citations(
    conversation: Sequence[Utterance], claimed: Sequence[Citation], parts: frozenset[TurnPart] = frozenset(TurnPart)
) -> tuple[list[Quote], int]:
    """Return the quotes that were found, each once, and the number of missing ones."""
    results = [find_citation(conversation, each, parts) for each in claimed]
    return list(dict.fromkeys(each for each in results if each is not None)), results.count(None)


class SuspectedRollout(BaseModel):
    """A rollout that shows a pattern."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    rollout_id: uuid.UUID
    quotes: list[Quote] = Field(default_factory=list)


class FoundPattern(BaseModel):
    """Something that high-reward rollouts do and that is not solving the task."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    description: str
    suspicion: float
    rollouts: list[SuspectedRollout] = Field(default_factory=list)


class GroupFinding(BaseModel):
    """The result of comparing one group of rollouts, as `GraderRun.findings` stores it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str
    """The group's id."""
    label: str
    """The task: `train/17`."""
    high: list[uuid.UUID] = Field(default_factory=list)
    low: list[uuid.UUID] = Field(default_factory=list)
    patterns: list[FoundPattern] = Field(default_factory=list)
    dropped: int = 0
    """Quotes that were not found in their rollouts."""
