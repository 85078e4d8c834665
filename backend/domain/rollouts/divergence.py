"""Where a replayed episode diverges from the stored one: step by step, and from the policy's point of view."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from backend.domain.described import described

ROUNDING = 1e-6
"""Columns are stored in single precision, so smaller differences do not count."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
Json = Mapping[str, object]


class StepPart(StrEnum):
    """A part of a step that can differ."""

    OBSERVATION = "observation"
    REWARDS = "rewards"
    DONE = "done"
    PARSE = "parse"
    """The reply was parsed differently, or the environment refused an action that it accepted before."""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    opening: Json
    """The observation of the reset."""
    steps: Sequence[Json]
    """`domain.rollouts.rollout.Step` as JSON."""
    prompts: Sequence[str] = ()
    """The prompt before each reply, if known."""


@dataclass(frozen=True, slots=True)
@described
class Difference:
    """One step that differs."""

    step: int
    """0 is the reset, 1 the first reply."""
    parts: tuple[StepPart, ...]
    fields: tuple[str, ...] = ()
    """Fields of the observation and reward columns that differ."""

    def __str__(self) -> str:
        step = f"step {self.step}" if self.step else "the reset"
        names = f" ({', '.join(self.fields[:4])})" if self.fields else ""
        return f"{step}: {', '.join(self.parts)}{names}"


def prompts_of(messages: Sequence[Json]) -> list[str]:
    """Return the environment's messages of a conversation, in order."""
    return [str(message.get("content") or "") for message in messages if message.get("role") in {"user", "tool"}]


def differences(before: RecordedEpisode, after: RecordedEpisode, noise: float = 0.0) -> Iterator[Difference]:
    """Yield every step that differs, in order. With noise, numbers in observations may differ."""
    if names := different_fields(before.opening, after.opening, noise):
        yield Difference(0, (StepPart.OBSERVATION,), names)
    for number, (one, other) in enumerate(zip_longest(before.steps, after.steps), start=1):
        if one is None or other is None:
            yield Difference(number, (StepPart.DONE,))
            continue
        fields = different_fields(_mapping(one, "observation"), _mapping(other, "observation"), noise)
        old, new = (
            {name: value for name, value in _mapping(step, "rewards").items() if isinstance(value, int | float)}
            for step in (one, other)
        )
        columns = tuple(name for name in {**old, **new} if not _is_close(old.get(name), new.get(name), noise))
        found = {
            StepPart.OBSERVATION: bool(fields),
            StepPart.REWARDS: bool(columns),
            StepPart.DONE: bool(one.get("done")) != bool(other.get("done")),
            StepPart.PARSE: one.get("action") != other.get("action"),
        }
        if parts := tuple(part for part, differs in found.items() if differs):
            yield Difference(number, parts, (*fields, *columns))


def first_unseen(before: RecordedEpisode, after: RecordedEpisode, noise: float = 0.0) -> int | None:
    """The first reply of `after` whose prompt the policy never read, 0 for the first one; None if it read all of them.

    Up to that reply the same policy would have played the second episode. Observations after the last reply and fields
    that no prompt shows do not count.
    """
    for number in range(len(after.steps)):
        if number >= len(before.steps):
            return number
        if number == 0:
            is_other = bool(different_fields(before.opening, after.opening, noise))
        else:
            one, other = before.steps[number - 1], after.steps[number - 1]
            observations = _mapping(one, "observation"), _mapping(other, "observation")
            is_other = one.get("note") != other.get("note") or bool(different_fields(*observations, noise))
        prompt = before.prompts[number : number + 1]
        has_same_prompt = bool(prompt) and list(prompt) == list(after.prompts[number : number + 1])
        if is_other and not has_same_prompt:
            return number
    return None


def same_columns(before: Mapping[str, float], after: Mapping[str, float], noise: float = 0.0) -> bool:
    """Return whether the columns that both sides have are equal in single precision."""
    return all(_is_close(before[name], after[name], noise) for name in before.keys() & after.keys())


def different_fields(one: Json, other: Json, noise: float) -> tuple[str, ...]:
    """Return the names of the fields that differ. With noise, numbers in them may differ."""
    if one == other:
        return ()
    names = [name for name in {**one, **other} if one.get(name) != other.get(name) or (name in one) != (name in other)]
    if not noise:
        return tuple(names)
    texts = {name: [json.dumps(side.get(name), sort_keys=True, default=str) for side in (one, other)] for name in names}
    return tuple(name for name, pair in texts.items() if len({_NUMBER.sub("#", text) for text in pair}) > 1)


def _is_close(one: float | None, other: float | None, noise: float) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) <= noise + ROUNDING * max(1.0, abs(one))


def _mapping(step: Json, name: str) -> Json:
    value = step.get(name)
    return value if isinstance(value, Mapping) else {}
