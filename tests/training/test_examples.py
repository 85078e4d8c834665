"""What would make TRL learn something else in silence is refused here (see its traps one by one)."""

import math
from collections.abc import Callable

import pytest

from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import ErrorKind, RolloutStatus, Split
from tests.training.game import MANIFEST, completed
from workers.training.examples import BrokenStep, TrainingExample, example_order, examples_of_step

END = 1


def rollout(group: int, member: int) -> Rollout:
    made = completed(task_of(MANIFEST, Split.TRAIN, group), group, member, {"fours": 1.0, "brevity": 0.0})
    made.prompt_token_ids, made.completion_token_ids = [5, 6], [7, END, 8, 9, END]
    made.completion_mask, made.logprobs = [1, 1, 0, 1, 1], [-0.5, -0.1, 0.0, -2.0, -0.3]
    return made


def step() -> list[Rollout]:
    return [rollout(group, member) for group in (0, 1) for member in (0, 1)]


def learn(rollouts: list[Rollout]) -> list[TrainingExample]:
    return examples_of_step(rollouts, groups=[0, 1], group_size=2, end=END)


def test_it_takes_a_good_step() -> None:
    lessons = learn(step())
    assert len(lessons) == 4
    assert lessons[0].labels == [-100, -100, 7, END, -100, 9, END]


def no_mask(rollouts: list[Rollout]) -> None:
    rollouts[2].completion_mask = None


def short_mask(rollouts: list[Rollout]) -> None:
    rollouts[2].completion_mask = [1, 0]


def mask_of_other_numbers(rollouts: list[Rollout]) -> None:
    rollouts[2].completion_mask = [1, 1, 0, 2, 1]


def nothing_to_learn(rollouts: list[Rollout]) -> None:
    rollouts[2].completion_mask, rollouts[2].logprobs = [0] * 5, [0.0] * 5


def empty_completion(rollouts: list[Rollout]) -> None:
    rollouts[2].completion_token_ids, rollouts[2].completion_mask, rollouts[2].logprobs = [], [], []


def no_end(rollouts: list[Rollout]) -> None:
    rollouts[2].completion_token_ids = [7, END, 8, 9, 10]


def fewer(rollouts: list[Rollout]) -> None:
    del rollouts[3]


def more(rollouts: list[Rollout]) -> None:
    rollouts.append(rollout(2, 0))


def other_order(rollouts: list[Rollout]) -> None:
    rollouts[1], rollouts[2] = rollouts[2], rollouts[1]


def all_failed(rollouts: list[Rollout]) -> None:
    for each in rollouts:
        each.status = RolloutStatus.FAILED


def short_logprobs(rollouts: list[Rollout]) -> None:
    rollouts[2].logprobs = [-0.5]


def no_logprobs(rollouts: list[Rollout]) -> None:
    rollouts[2].logprobs = None


def positive_logprob(rollouts: list[Rollout]) -> None:
    rollouts[2].logprobs = [0.5, -0.1, 0.0, -2.0, -0.3]


def nan_logprob(rollouts: list[Rollout]) -> None:
    rollouts[2].logprobs = [math.nan, -0.1, 0.0, -2.0, -0.3]


def logprob_of_the_environment(rollouts: list[Rollout]) -> None:
    rollouts[2].logprobs = [-0.5, -0.1, -1.0, -2.0, -0.3]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_mask, "kept no trace"),
        (short_mask, "5 tokens, but a mask of 2"),
        (mask_of_other_numbers, "a mask holds 0 and 1"),
        (nothing_to_learn, "no token is the policy's"),
        (empty_completion, "no tokens"),
        (no_end, "does not end with the end token"),
        (fewer, r"the step needs 4 rollouts in order and got 3: missing \[\(1, 1\)\]"),
        (more, r"unexpected \[\(2, 0\)\]"),
        (other_order, "in another order"),
        (all_failed, "every rollout of the step failed"),
        (short_logprobs, "5 tokens, but 1 log-probabilities"),
        (no_logprobs, "5 tokens, but 0 log-probabilities"),
        (positive_logprob, "0.5 is not a log-probability"),
        (nan_logprob, "nan is not a log-probability"),
        (logprob_of_the_environment, "-1.0 is not a log-probability of a token of the environment"),
    ],
)
def test_it_refuses_what_cannot_be_learned_from(spoil: Callable[[list[Rollout]], None], message: str) -> None:
    rollouts = step()
    spoil(rollouts)
    with pytest.raises(BrokenStep, match=message):
        learn(rollouts)


def test_a_failed_rollout_becomes_a_training_example_that_teaches_nothing() -> None:
    rollouts = step()
    rollouts[2].status, rollouts[2].reward = RolloutStatus.FAILED, None
    rollouts[2].error_kind, rollouts[2].completion_token_ids = ErrorKind.SANDBOX, None
    lesson = learn(rollouts)[2]
    assert lesson.completion == [END]
    assert lesson.mask == [0]


def lessons(count: int) -> list[TrainingExample]:
    return [TrainingExample([1], [2] * (1 + number % 17), [1] * (1 + number % 17)) for number in range(count)]


def test_every_training_example_comes_once_before_any_comes_again() -> None:
    order = example_order(lessons(64), batch=8, steps=16, seed=3)
    assert sorted(order[:64]) == sorted(order[64:]) == list(range(64))
    assert order[:64] != order[64:]


def test_training_examples_of_a_batch_are_about_as_long() -> None:
    made = lessons(256)
    order = example_order(made, batch=16, steps=16, seed=3)
    padded = sum(16 * max(len(made[n].tokens) for n in order[i : i + 16]) for i in range(0, 256, 16))
    assert padded < 1.1 * sum(len(made[number].tokens) for number in order)


@pytest.mark.parametrize("count", [1, 5, 100])
def test_the_order_fills_every_step_and_depends_on_the_seed_alone(count: int) -> None:
    first, again = (example_order(lessons(count), batch=8, steps=9, seed=3) for _ in range(2))
    assert first == again
    assert len(first) == 72
    assert len(set(first)) >= min(count, 72 - 8)  # the last batch of a round is filled with repeats
