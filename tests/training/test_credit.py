"""Credit by turn: what each turn brought, what came from it on, and how it compares with the group."""

import pytest

from backend.domain.environments.manifest import OverEpisode, RewardColumn
from backend.domain.rollouts.rollout import Rollout, Step, columns_over_episode, task_of, weighted_reward
from backend.domain.vocabulary import Phase, RolloutStatus, Split
from tests.training.game import MANIFEST
from workers.training.examples import BrokenStep
from workers.training.grpo_batch import (
    contributions,
    credit_turns,
    rewards_to_go,
    sample_deviation,
    token_advantages,
    turns_of_tokens,
)

WIN = RewardColumn(name="win", weight=2.0)
LAST = RewardColumn(name="progress", weight=1.0, over_episode=OverEpisode.LAST)
MOST = RewardColumn(name="best", weight=1.0, over_episode=OverEpisode.MAX)
FORMAT = RewardColumn(name="format", weight=0.5)


def rollout(*rewards: dict[str, float], columns: list[RewardColumn], mask: list[int] | None = None) -> Rollout:
    made = Rollout(task_of(MANIFEST, Split.TRAIN, 0), Phase.TRAIN, 0, 0, RolloutStatus.COMPLETED)
    made.steps = [Step("", {}, {}, "", row, False) for row in rewards]
    made.columns = columns_over_episode(columns, rewards)
    made.reward = weighted_reward(columns, made.columns)
    made.completion_mask = mask or [1, 0] * len(rewards)
    return made


@pytest.mark.parametrize(
    ("column", "values", "brought"),
    [
        (WIN, [1.0, 0.0, 3.0], [2.0, 0.0, 6.0]),
        (LAST, [0.5, 0.25], [0.0, 0.25]),
        (MOST, [0.5, 0.25, 0.75], [0.5, 0.0, 0.25]),
        (MOST, [-1.0, -0.5], [-1.0, 0.5]),
    ],
)
def test_the_turns_parts_sum_to_the_reward(column: RewardColumn, values: list[float], brought: list[float]) -> None:
    made = rollout(*({column.name: value} for value in values), columns=[column])
    assert contributions(made, [column]) == pytest.approx(brought)
    assert sum(brought) == pytest.approx(made.reward)


def test_a_column_that_a_turn_did_not_send_takes_nothing_from_it() -> None:
    made = rollout({"best": 0.5}, {}, {"best": 0.25}, columns=[MOST])
    assert contributions(made, [MOST]) == [0.5, 0.0, 0.0]


def test_the_platforms_columns_speak_to_the_turn_that_could_not_be_read_or_to_the_last() -> None:
    length = RewardColumn(name="length", weight=-0.25)
    made = rollout({"win": 0.0}, {"win": 1.0}, columns=[WIN])
    made.steps[0].action = None
    made.columns |= {"format": 0.5, "length": 4.0}
    made.reward = weighted_reward([WIN, FORMAT, length], made.columns)
    assert contributions(made, [WIN, FORMAT, length]) == pytest.approx([0.0, 2.0 + 0.25 - 1.0])


def test_tokens_belong_to_the_turn_between_two_of_the_environments() -> None:
    assert turns_of_tokens([1, 1, 0, 0, 1, 0, 1]) == [0, 0, -1, -1, 1, -1, 2]
    assert turns_of_tokens([]) == []


def test_what_comes_from_a_turn_on_is_summed_and_a_turn_without_tokens_belongs_to_the_last() -> None:
    made = rollout({"win": 1.0}, {"win": 2.0}, {"win": 4.0}, columns=[WIN])
    assert rewards_to_go(made, [WIN], 3) == [14.0, 12.0, 8.0]
    assert rewards_to_go(made, [WIN], 2) == [14.0, 12.0]
    with pytest.raises(BrokenStep, match="tokens of 4 turns, but 3 steps"):
        rewards_to_go(made, [WIN], 4)


def group() -> list[Rollout]:
    return [
        rollout({"win": 1.0}, {"win": 0.0}, columns=[WIN], mask=[1, 1, 0, 1]),
        rollout({"win": 0.0}, {"win": 1.0}, columns=[WIN], mask=[1, 0, 1, 1]),
        rollout({"win": 0.0}, columns=[WIN], mask=[1]),
    ]


def test_each_turn_is_compared_with_those_that_reached_it() -> None:
    members = group()
    credit_turns(members, set(), size=3, columns_for=lambda _: [WIN], scale="none")
    # to go: [2, 0], [2, 2], [0]; means 4/3 and 1
    assert members[0].turn_advantages == pytest.approx([2 / 3, -1.0])
    assert members[1].turn_advantages == pytest.approx([2 / 3, 1.0])
    assert members[2].turn_advantages == pytest.approx([-4 / 3])
    assert token_advantages(members[0]) == pytest.approx([2 / 3, 2 / 3, 0.0, -1.0])
    assert token_advantages(members[1]) == pytest.approx([2 / 3, 0.0, 1.0, 1.0])


def test_the_first_turns_advantage_is_the_episodes() -> None:
    members = group()
    credit_turns(members, set(), size=3, columns_for=lambda _: [WIN], scale="group")
    rewards = [member.reward or 0.0 for member in members]
    spread = sample_deviation(rewards)
    assert spread is not None
    for member, reward in zip(members, rewards, strict=True):
        assert member.turn_advantages is not None
        assert member.turn_advantages[0] == pytest.approx((reward - sum(rewards) / 3) / (spread + 1e-4))


def test_masked_and_failed_members_have_no_part() -> None:
    members = [*group(), *group()]
    members[3].status = RolloutStatus.FAILED
    credit_turns(members, {1}, size=3, columns_for=lambda _: [WIN], scale="batch")
    assert members[1].turn_advantages is None
    assert members[3].turn_advantages is None
    assert token_advantages(members[1]) == []
    spread = sample_deviation([2.0, 0.0, 2.0, 0.0])
    assert spread is not None
    assert members[0].turn_advantages == pytest.approx([1.0 / (spread + 1e-4), 0.0])
