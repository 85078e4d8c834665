"""What TRL learns from, as lists that were checked: TRL accepts wrong lengths and misnamed masks in silence."""

import math
import random
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from backend.domain.rollouts.rollout import Rollout

_SORTED_BATCHES = 16
"""Batches whose lessons are sorted by length among themselves."""


class BrokenStep(RuntimeError):
    """A step's rollouts cannot be learned from."""


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One episode's tokens. `mask` is 1 where the loss counts."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.completion

    @property
    def labels(self) -> list[int]:
        """Tokens to be predicted; -100 where the loss does not count."""
        learned = [token if counts else -100 for token, counts in zip(self.completion, self.mask, strict=True)]
        return [-100] * len(self.prompt) + learned


def lesson_order(lessons: Sequence[TrainingExample], *, batch: int, steps: int, seed: int) -> list[int]:
    """Which lessons each step takes, laid out in a row: all once before any again, and those of about the same length
    together, so that little padding is computed. The same for the same seed, also after a resume."""
    chance = random.Random(f"lessons/{seed}")
    batches: list[list[int]] = []
    while len(batches) < steps:
        shuffled = chance.sample(range(len(lessons)), len(lessons))
        whole = len(shuffled) + -len(shuffled) % batch
        shuffled = list(islice(cycle(shuffled), whole))
        by_length = [
            number
            for start in range(0, len(shuffled), batch * _SORTED_BATCHES)
            for number in sorted(
                shuffled[start : start + batch * _SORTED_BATCHES], key=lambda n: len(lessons[n].tokens)
            )
        ]
        epoch = [by_length[start : start + batch] for start in range(0, len(by_length), batch)]
        batches += chance.sample(epoch, len(epoch))
    return [number for chosen in batches[:steps] for number in chosen]


def lesson_of(rollout: Rollout, *, end: int) -> TrainingExample:
    """A completed rollout's tokens. Raises BrokenStep when they do not fit together."""
    prompt, completion, mask = rollout.prompt_token_ids, rollout.completion_token_ids, rollout.completion_mask
    where = f"rollout {rollout.group}/{rollout.member}"
    if not prompt or not completion or mask is None:
        raise BrokenStep(f"{where} has no tokens: the policy kept no trace")
    if len(mask) != len(completion):
        raise BrokenStep(f"{where}: {len(completion)} tokens, but a mask of {len(mask)}")
    if set(mask) - {0, 1}:
        raise BrokenStep(f"{where}: a mask holds 0 and 1, not {sorted(set(mask) - {0, 1})}")
    if not any(mask):
        raise BrokenStep(f"{where}: no token is the policy's, so nothing could be learned")
    if completion[-1] != end:
        raise BrokenStep(f"{where} does not end with the end token, so it would count as cut off")
    return TrainingExample(prompt, completion, mask)


def check_logprobs(rollout: Rollout) -> None:
    """The sampler's log-probabilities: one a token, finite and at most 0, 0.0 where the environment wrote."""
    logprobs, mask = rollout.logprobs, rollout.completion_mask or []
    where = f"rollout {rollout.group}/{rollout.member}"
    if logprobs is None or len(logprobs) != len(mask):
        raise BrokenStep(f"{where}: {len(mask)} tokens, but {len(logprobs or [])} log-probabilities")
    for value, counts in zip(logprobs, mask, strict=True):
        if not math.isfinite(value) or value > 1e-6 or (not counts and value != 0.0):
            raise BrokenStep(f"{where}: {value} is no log-probability of a {'policy' if counts else 'foreign'} token")


def lessons_of_step(
    rollouts: Sequence[Rollout], *, groups: Sequence[int], group_size: int, end: int, silent: Container[int] = ()
) -> list[TrainingExample]:
    """One lesson a rollout, in the order of the prompts: all members of the first group, then of the next.

    A failed rollout becomes one end token that no loss counts; its reward is null. Of those at a place that is `silent`
    no token counts either.
    """
    wanted = [(group, member) for group in groups for member in range(group_size)]
    got = [(rollout.group, rollout.member) for rollout in rollouts]
    if got != wanted:
        raise BrokenStep(f"{len(wanted)} rollouts were asked for in order, {len(got)} came: {_difference(wanted, got)}")
    if not any(rollout.is_completed for rollout in rollouts):
        errors = Counter(f"{rollout.error_kind}: {rollout.error_message}" for rollout in rollouts)
        raise BrokenStep(f"every rollout of the step failed. Most often {errors.most_common(1)[0][0]}")
    lessons = []
    for place, rollout in enumerate(rollouts):
        if rollout.is_completed:
            lesson = lesson_of(rollout, end=end)
            lessons.append(replace(lesson, mask=[0] * len(lesson.mask)) if place in silent else lesson)
            check_logprobs(rollout)
        else:
            lessons.append(TrainingExample([end], [end], [0]))
    return lessons


def _difference(wanted: Sequence[tuple[int, int]], got: Sequence[tuple[int, int]]) -> str:
    missing = sorted(set(wanted) - set(got))[:3]
    extra = sorted(set(got) - set(wanted))[:3]
    return f"missing {missing}, unasked {extra}" if missing or extra else "in another order"
