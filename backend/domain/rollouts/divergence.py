"""Where an episode that was played again leaves the stored one: step by step, and from the policy's point of view."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Any

ROUNDING = 1e-6
"""Columns that differ by less are the same: they are stored in single precision."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


class Part(StrEnum):
    """What can differ in a step."""

    OBSERVATION = "observation"
    REWARDS = "rewards"
    DONE = "done"
    PARSE = "parse"
    """The reply was understood otherwise, or the environment refused what it took before."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An episode as it is stored."""

    opening: Mapping[str, Any]
    """The observation of reset."""
    steps: Sequence[Mapping[str, Any]]
    """`domain.rollouts.Step` as JSON."""
    prompts: Sequence[str] = ()
    """What the policy read before each of its replies, where that is at hand."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One step that went differently."""

    step: int
    """0 is the reset, 1 the first reply."""
    parts: tuple[Part, ...]
    fields: tuple[str, ...] = field(default=())
    """Fields of the observation and reward columns that differ."""

    def __str__(self) -> str:
        where = f"step {self.step}" if self.step else "the reset"
        names = f" ({', '.join(self.fields[:4])})" if self.fields else ""
        return f"{where}: {', '.join(self.parts)}{names}"


def prompts_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the environment said in a conversation, in order."""
    return [str(message.get("content") or "") for message in messages if message.get("role") in {"user", "tool"}]


def differences(before: Recorded, after: Recorded, noise: float = 0.0) -> Iterator[Difference]:
    """Every step that differs, in order. With noise, numbers in observations may differ."""
    if names := _other_fields(before.opening, after.opening, noise):
        yield Difference(0, (Part.OBSERVATION,), names)
    for number, (one, other) in enumerate(zip_longest(before.steps, after.steps), start=1):
        found = _difference(number, one, other, noise)
        if found is not None:
            yield found


def first_difference(before: Recorded, after: Recorded, noise: float = 0.0) -> Difference | None:
    return next(differences(before, after, noise), None)


def first_unseen(before: Recorded, after: Recorded, noise: float = 0.0) -> int | None:
    """The first reply that answers what its policy never read, 0 for the first one; None when there is none.

    Up to there the second episode is what the same policy would have played. What follows the last reply does not
    count, nor does a field that no prompt shows.
    """
    for number in range(len(after.steps)):
        if number >= len(before.steps):
            return number
        if _other_sight(before, after, number, noise) and not _told_alike(before, after, number):
            return number
    return None


def same_columns(before: Mapping[str, float], after: Mapping[str, float], noise: float = 0.0) -> bool:
    """Are the columns that both have equal, as far as single precision tells?"""
    shared = before.keys() & after.keys()
    return all(abs(before[name] - after[name]) <= _reach(before[name], noise) for name in shared)


def _difference(
    number: int, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, noise: float
) -> Difference | None:
    if one is None or other is None:
        return Difference(number, (Part.DONE,))
    parts: list[Part] = []
    names: list[str] = []
    if other_fields := _other_fields(one.get("observation") or {}, other.get("observation") or {}, noise):
        parts.append(Part.OBSERVATION)
        names += other_fields
    if other_columns := _other_columns(one.get("rewards") or {}, other.get("rewards") or {}, noise):
        parts.append(Part.REWARDS)
        names += other_columns
    if bool(one.get("done")) != bool(other.get("done")):
        parts.append(Part.DONE)
    if one.get("action") != other.get("action"):
        parts.append(Part.PARSE)
    return Difference(number, tuple(parts), tuple(names)) if parts else None


def _told_alike(before: Recorded, after: Recorded, number: int) -> bool:
    """Did the policy read the same words? Unknown where the conversation is not at hand."""
    one, other = before.prompts[number : number + 1], after.prompts[number : number + 1]
    return bool(one) and list(one) == list(other)


def _other_sight(before: Recorded, after: Recorded, number: int, noise: float) -> bool:
    """Is what stands before reply `number` another observation, not only told in other words?"""
    if number == 0:
        return bool(_other_fields(before.opening, after.opening, noise))
    one, other = before.steps[number - 1], after.steps[number - 1]
    if one.get("note") != other.get("note"):
        return True
    return bool(_other_fields(one.get("observation") or {}, other.get("observation") or {}, noise))


def _other_fields(one: Mapping[str, Any], other: Mapping[str, Any], noise: float) -> tuple[str, ...]:
    if one == other:
        return ()
    names = [name for name in {**one, **other} if one.get(name) != other.get(name) or (name in one) != (name in other)]
    return tuple(name for name in names if not noise or _masked(one.get(name)) != _masked(other.get(name)))


def _other_columns(one: Mapping[str, float], other: Mapping[str, float], noise: float) -> list[str]:
    return [
        name
        for name in {**one, **other}
        if name not in one or name not in other or abs(one[name] - other[name]) > _reach(one[name], noise)
    ]


def _reach(value: float, noise: float) -> float:
    return noise + ROUNDING * max(1.0, abs(value))


def _masked(value: Any) -> str:
    return _NUMBER.sub("#", json.dumps(value, sort_keys=True, default=str))
