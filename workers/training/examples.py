"""Training examples as token lists, checked because TRL silently accepts wrong lengths and misnamed masks."""

import math
import random
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Protocol

from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.examples import Conversation
from workers.models.chat import ChatTokens

SORTED_BATCHES = 16  # batches whose examples are sorted by length among themselves


class BrokenStep(RuntimeError):
    """A step's rollouts cannot be learned from."""


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Tokens of one episode. `mask` is 1 for tokens that the loss counts."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.completion

    @property
    def labels(self) -> list[int]:
        """Target tokens, with -100 for tokens that the loss ignores."""
        learned = [token if counts else -100 for token, counts in zip(self.completion, self.mask, strict=True)]
        return [-100] * len(self.prompt) + learned


class Tokenized(Protocol):
    """Something of a length in tokens."""

    @property
    def tokens(self) -> list[int]: ...


def example_order(examples: Sequence[Tokenized], *, batch: int, steps: int, seed: int) -> list[int]:
    """Return the examples of all steps in a row, the same ones for the same seed.

    Every example comes once before any repeats. Examples of similar length share a batch, which saves padding.
    """
    chance = random.Random(f"lessons/{seed}")
    batches: list[list[int]] = []
    while len(batches) < steps:
        shuffled = chance.sample(range(len(examples)), len(examples))
        shuffled = list(islice(cycle(shuffled), len(shuffled) + -len(shuffled) % batch))
        by_length: list[int] = []
        for start in range(0, len(shuffled), batch * SORTED_BATCHES):
            part = shuffled[start : start + batch * SORTED_BATCHES]
            by_length += sorted(part, key=lambda number: len(examples[number].tokens))
        epoch = [by_length[start : start + batch] for start in range(0, len(by_length), batch)]
        batches += chance.sample(epoch, len(epoch))
    return [number for chosen in batches[:steps] for number in chosen]


def example_of(rollout: Rollout, *, end: int) -> TrainingExample:
    """Return a completed rollout's tokens. Raises BrokenStep if they are inconsistent."""
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


def examples_of_step(
    rollouts: Sequence[Rollout], *, groups: Sequence[int], group_size: int, end: int, silent: Container[int] = ()
) -> list[TrainingExample]:
    """Return one example per rollout, in the order of the prompts: all members of the first group, then the next.

    A failed rollout becomes one end token that the loss ignores, like all tokens at the positions in `silent`.
    """
    expected = [(group, member) for group in groups for member in range(group_size)]
    actual = [(rollout.group, rollout.member) for rollout in rollouts]
    if actual != expected:
        missing, extra = sorted(set(expected) - set(actual))[:3], sorted(set(actual) - set(expected))[:3]
        difference = f"missing {missing}, unexpected {extra}" if missing or extra else "in another order"
        raise BrokenStep(f"the step needs {len(expected)} rollouts in order and got {len(actual)}: {difference}")
    if not any(rollout.is_completed for rollout in rollouts):
        errors = Counter(f"{rollout.error_kind}: {rollout.error_message}" for rollout in rollouts)
        raise BrokenStep(f"every rollout of the step failed. Most often {errors.most_common(1)[0][0]}")
    examples = []
    for position, rollout in enumerate(rollouts):
        if not rollout.is_completed:
            examples.append(TrainingExample([end], [end], [0]))
            continue
        example = example_of(rollout, end=end)
        where = f"rollout {rollout.group}/{rollout.member}"
        if rollout.logprobs is None or len(rollout.logprobs) != len(example.mask):
            count = len(rollout.logprobs or [])
            raise BrokenStep(f"{where}: {len(example.mask)} tokens, but {count} log-probabilities")
        for value, counts in zip(rollout.logprobs, example.mask, strict=True):
            if not math.isfinite(value) or value > 1e-6 or (not counts and value != 0.0):
                owner = "the policy" if counts else "the environment"
                raise BrokenStep(f"{where}: {value} is not a log-probability of a token of {owner}")
        examples.append(replace(example, mask=[0] * len(example.mask)) if position in silent else example)
    return examples


def example_of_conversation(conversation: Conversation, chat: ChatTokens) -> TrainingExample | None:
    """Return the tokens as the policy will see them, or None if no reply is to be learned."""
    messages = conversation.messages
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    turns = turns[: len(conversation.learned)]
    if not any(conversation.learned[: len(turns)]):
        return None
    completion: list[int] = []
    mask: list[int] = []
    for ordinal, turn in enumerate(turns):
        if ordinal:
            between = chat.continuation(messages[turns[ordinal - 1] + 1 : turn])
            completion += between
            mask += [0] * len(between)
        reply = chat.reply(messages[turn]["content"], messages[turn].get("reasoning"))
        completion += reply
        mask += [int(conversation.learned[ordinal])] * len(reply)
    return TrainingExample(list(chat.opening(messages[: turns[0]])), completion, mask)


def mix_examples(
    main: Sequence[TrainingExample], others: Sequence[tuple[Sequence[TrainingExample], float]]
) -> list[TrainingExample]:
    """Replace shares of the main source with examples of other sources, repeating short ones."""
    counts = [round(len(main) * share) for _, share in others]
    mixed = list(main[: max(0, len(main) - sum(counts))])
    for (examples, _), count in zip(others, counts, strict=True):
        mixed += islice(cycle(examples), count)
    return mixed
