"""Tasks from numbers, and columns folded over an episode."""

import pytest

from backend.domain.environments.manifest import OverEpisode, RewardColumn, read_manifest
from backend.domain.rollouts.rollout import columns_over_episode, task_of, weighted_reward
from backend.domain.vocabulary import Split

MANIFEST = read_manifest(
    "name: a\nproctor:\n  agent: {action: {format: text, field: x}}\n  rewards: {win: 1.0}\n  tasks: {levels: 3}\n"
)


def test_levels_take_turns():
    assert [task_of(MANIFEST, Split.TRAIN, index).level for index in range(5)] == [0, 1, 2, 0, 1]


def test_heldout_tasks_share_no_seed_with_training_tasks():
    train = {task_of(MANIFEST, Split.TRAIN, index).seed for index in range(1000)}
    heldout = {task_of(MANIFEST, Split.HELDOUT, index).seed for index in range(1000)}
    assert not train & heldout


@pytest.mark.parametrize(("how", "expected"), [("sum", 0.5), ("last", -0.5), ("max", 1.0)])
def test_a_column_is_folded_as_the_manifest_says(how: str, expected: float):
    column = RewardColumn(name="win", weight=1.0, over_episode=OverEpisode(how))
    assert columns_over_episode([column], [{"win": 1.0}, {}, {"win": -0.5}]) == {"win": expected}


def test_the_reward_is_the_weighted_sum():
    columns = [RewardColumn(name="win", weight=1.0), RewardColumn(name="format", weight=0.2)]
    assert weighted_reward(columns, {"win": 0.5, "format": 1.0}) == pytest.approx(0.7)
