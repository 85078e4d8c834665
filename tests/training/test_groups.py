"""Which groups a step learns from: groups without variance are replaced, for a limited number of rounds."""

from collections.abc import Sequence

import pytest

from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.training.grpo import GrpoChoice
from backend.domain.vocabulary import RolloutStatus, Split
from tests.training.game import MANIFEST, batch_run, completed
from workers.training.grpo_batch import MASKED, REPLACED, SCREENED, Masked, PlayedBatch, Screened, play_batch

CHOICE = GrpoChoice(steps=4, tasks_per_step=3, group_size=2, replace_uniform=2)


class Table:
    """Rewards of groups by ordinal, the others differ."""

    def __init__(self, **uniform: float) -> None:
        self.uniform = {int(name[1:]): value for name, value in uniform.items()}
        self.asked: list[list[int]] = []

    def play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        self.asked.append(list(ordinals))
        return [self.rollout(ordinal, member) for ordinal in ordinals for member in (0, 1)]

    def rollout(self, ordinal: int, member: int) -> Rollout:
        fours = self.uniform.get(ordinal, float(member))
        columns = {"fours": fours, "brevity": 0.0}
        return completed(task_of(MANIFEST, Split.TRAIN, ordinal), ordinal, member, columns)


def batch_of(
    table: Table,
    choice: GrpoChoice = CHOICE,
    masked: Masked = lambda _: set(),
    screened: Screened = lambda *_: set(),
) -> PlayedBatch:
    return play_batch(batch_run(table.play, choice, masked=masked, screened=screened), 1)


def test_groups_that_differ_stay() -> None:
    table = Table()
    batch = batch_of(table)
    assert table.asked == [[0, 1, 2]]
    assert (batch.groups, batch.replaced, batch.no_variance) == ([0, 1, 2], [], 0.0)


def test_a_group_without_variance_gives_place_to_a_fresh_one() -> None:
    table = Table(g1=1.0)
    batch = batch_of(table)
    assert table.asked == [[0, 1, 2], [4]]
    assert batch.groups == [0, 4, 2]
    assert [rollout.group for rollout in batch.rollouts] == [0, 0, 4, 4, 2, 2]
    assert [rollout.group for rollout in batch.replaced] == [1, 1]
    assert all(rollout.metrics == {REPLACED: 1.0} for rollout in batch.replaced)
    assert batch.no_variance == 0.0


def test_the_rounds_end() -> None:
    table = Table(g0=0.0, g1=1.0, g3=1.0, g6=0.0)
    batch = batch_of(table)
    assert table.asked == [[0, 1, 2], [3, 4], [6]]
    assert batch.groups == [6, 4, 2]
    assert [rollout.group for rollout in batch.replaced] == [0, 0, 1, 1, 3, 3]
    assert batch.no_variance == pytest.approx(1 / 3)


def test_nothing_is_replaced_unless_it_is_wanted() -> None:
    table = Table(g1=1.0)
    batch = batch_of(table, CHOICE.model_copy(update={"replace_uniform": 0}))
    assert table.asked == [[0, 1, 2]]
    assert batch.no_variance == pytest.approx(1 / 3)


def test_a_group_of_which_one_counts_teaches_nothing() -> None:
    class Broken(Table):
        def rollout(self, ordinal: int, member: int) -> Rollout:
            made = super().rollout(ordinal, member)
            if ordinal == 2 and member:
                made.status, made.reward = RolloutStatus.FAILED, None
            return made

    batch = batch_of(Broken(), masked=lambda rollouts: {place for place in (0,) if rollouts[place].group == 0})
    assert batch.groups == [3, 1, 5]
    assert batch.masked == set()


def test_masked_rollouts_are_distinguished() -> None:
    choice = CHOICE.model_copy(update={"replace_uniform": 0})
    batch = batch_of(Table(), choice, masked=lambda rollouts: {3})
    assert batch.masked == {3}
    assert batch.rollouts[3].metrics == {MASKED: 1.0}
    assert batch.no_variance == pytest.approx(1 / 3)


def test_equal_sums_of_different_columns_teach_where_columns_are_compared_on_their_own() -> None:
    class Balanced(Table):
        def rollout(self, ordinal: int, member: int) -> Rollout:
            columns = {"fours": 0.1 * member, "brevity": -1.0 * member}
            return completed(task_of(MANIFEST, Split.TRAIN, ordinal), ordinal, member, columns)

    summed = CHOICE.model_copy(update={"replace_uniform": 0})
    assert batch_of(Balanced(), summed).no_variance == 1.0
    assert batch_of(Balanced(), summed.model_copy(update={"aggregation": "normalize_then_sum"})).no_variance == 0.0


def test_what_is_screened_is_masked_and_counts_as_such_until_it_was_judged_a_hack() -> None:
    batch = batch_of(Table(), masked=lambda _: {1}, screened=lambda step, _: {1, 2} if step == 1 else set())
    assert (batch.masked, batch.screened) == ({1, 2}, {2})
    assert batch.rollouts[1].metrics == {MASKED: 1.0}
    assert batch.rollouts[2].metrics == {MASKED: 1.0, SCREENED: 1.0}


def test_a_group_of_which_screening_leaves_one_gives_place_to_a_fresh_one() -> None:
    table = Table()
    batch = batch_of(table, screened=lambda _, rollouts: {place for place in (2,) if rollouts[place].group == 1})
    assert table.asked == [[0, 1, 2], [4]]
    assert batch.screened == set()
