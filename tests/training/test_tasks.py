"""Which tasks a training run plays."""

from collections import Counter

import pytest

from backend.domain.manifest import Manifest
from backend.domain.reinforcement import GrpoChoice
from backend.domain.rollouts import HELDOUT_SEED_BASE
from backend.domain.training import TrainingConfiguration
from backend.domain.warm_up import SftChoice
from tests.factories import make_manifest
from workers.rollouts.engine import GroupPlan
from workers.training.arena import waves
from workers.training.tasks import grpo_tasks, heldout_tasks, warm_up_tasks


def manifest(train: int = 1000, levels: int = 3) -> Manifest:
    return make_manifest("game", tasks={"train": train, "heldout": 50, "levels": levels})


def configuration(**grpo: object) -> TrainingConfiguration:
    choice = GrpoChoice.model_validate({"steps": 10, "tasks_per_step": 12, "group_size": 2, **grpo})
    return TrainingConfiguration(sft=SftChoice(episodes=100), grpo=choice)


def test_every_step_has_the_same_mix_of_levels_and_of_seed_parities() -> None:
    tasks = grpo_tasks(manifest(), configuration())
    for step in range(10):
        chosen = tasks[step * 12 : step * 12 + 12]
        assert Counter((task.level, task.seed % 2) for task in chosen) == {(n, p): 2 for n in range(3) for p in (0, 1)}


def test_levels_come_as_often_as_their_shares() -> None:
    tasks = grpo_tasks(manifest(), configuration(levels=[1, 1, 2]))
    for step in range(10):
        assert Counter(task.level for task in tasks[step * 12 : step * 12 + 12]) == {0: 3, 1: 3, 2: 6}


def test_a_level_without_a_share_is_never_played() -> None:
    assert {task.level for task in grpo_tasks(manifest(), configuration(levels=[0, 1]))} == {1}


def test_no_task_comes_twice_and_none_was_in_the_warm_up() -> None:
    tasks = grpo_tasks(manifest(), configuration(levels=[1, 1, 2]))
    warm_up = warm_up_tasks(manifest(), 100)
    assert len({task.seed for task in tasks}) == 120
    assert not {task.seed for task in tasks} & {task.seed for task in warm_up}


def test_a_small_environment_repeats_its_tasks() -> None:
    tasks = grpo_tasks(manifest(train=9), configuration())
    assert len(tasks) == 120
    assert {task.index for task in tasks} == set(range(9))


@pytest.mark.parametrize(("asked", "given"), [(20, 20), (80, 50)])
def test_heldout_tasks_are_the_first_and_never_trained_on(asked: int, given: int) -> None:
    tasks = heldout_tasks(manifest(), asked)
    assert [task.index for task in tasks] == list(range(given))
    assert min(task.seed for task in tasks) >= HELDOUT_SEED_BASE


def test_waves_fit_side_by_side_and_hold_everything_once() -> None:
    tasks = heldout_tasks(manifest(), 10)
    plans = [GroupPlan(task, number, tuple(range(8))) for number, task in enumerate(tasks)]
    parts = waves(plans, 30)
    sizes = [sum(len(plan.members) for plan in part) for part in parts]
    assert sizes == [27, 27, 26]
    members = [(plan.ordinal, member) for part in parts for plan in part for member in plan.members]
    assert members == [(number, member) for number in range(10) for member in range(8)]


def test_waves_never_cut_a_group_that_is_scored_together() -> None:
    plans = [GroupPlan(task, number, tuple(range(8))) for number, task in enumerate(heldout_tasks(manifest(), 5))]
    parts = waves(plans, 20, is_grouped=True)
    assert [[plan.ordinal for plan in part] for part in parts] == [[0, 1], [2, 3], [4]]
    assert all(plan.members == tuple(range(8)) for part in parts for plan in part)
