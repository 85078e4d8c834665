"""Which tasks a training run plays."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import HELDOUT_SEED_BASE, Rollout, TaskSpec, task_of
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.warm_up import SftChoice
from backend.domain.vocabulary import Phase, RolloutStatus, Split
from tests.factories import make_manifest
from tests.training.training_envs import make_venue
from workers.rollouts.engine import GroupPlan
from workers.training.curriculum import Planner, single_plans
from workers.training.env_pool import EnvCapacity, waves
from workers.training.heldout_evaluation import summarize


def manifest(train: int = 1000, levels: int = 3, name: str = "game") -> Manifest:
    return make_manifest(name, {"win": 1.0}, tasks={"train": train, "heldout": 50, "levels": levels})


def configuration(curriculum: dict[str, Any] | None = None, **grpo: object) -> TrainingConfiguration:
    choice = GrpoChoice.model_validate({"steps": 10, "tasks_per_step": 12, "group_size": 2, **grpo})
    choices = {"sft": SftChoice(episodes=100), "grpo": choice, "curriculum": curriculum or {}}
    return TrainingConfiguration.model_validate(choices)


def grpo_tasks(of: Manifest, choices: TrainingConfiguration) -> list[TaskSpec]:
    planner = Planner([make_venue(of)], choices)
    return [plan.task for step in range(1, choices.grpo.steps + 1) for plan in planner.plans(step)]


def played(plans: list[GroupPlan], *, won: bool = True) -> list[Rollout]:
    reward = float(won)
    return [
        Rollout(plan.task, Phase.TRAIN, plan.ordinal, member, RolloutStatus.COMPLETED, reward=reward,
                columns={"win": reward})
        for plan in plans
        for member in plan.members
    ]  # fmt: skip


def numbers(plans: Iterable[GroupPlan]) -> set[tuple[Any, int]]:
    """Tasks by environment and index."""
    return {(plan.task.version_id, plan.task.index) for plan in plans}


def test_every_step_has_the_same_mix_of_levels_and_of_seed_parities() -> None:
    tasks = grpo_tasks(manifest(), configuration())
    for step in range(10):
        chosen = tasks[step * 12 : step * 12 + 12]
        assert Counter((task.level, task.seed % 2) for task in chosen) == {(n, p): 2 for n in range(3) for p in (0, 1)}


def test_the_tasks_of_a_fixed_mix_stay_what_they_were() -> None:
    """Old runs are resumed with them, and published figures were reached on them."""
    tasks = grpo_tasks(manifest(), configuration(levels=[2, 1], tasks_per_step=3))
    assert [task.index for task in tasks[:6]] == [102, 103, 105, 108, 106, 111]
    assert tasks[0] == task_of(manifest(), Split.TRAIN, 102)


def test_levels_come_as_often_as_their_shares() -> None:
    tasks = grpo_tasks(manifest(), configuration(levels=[1, 1, 2]))
    for step in range(10):
        assert Counter(task.level for task in tasks[step * 12 : step * 12 + 12]) == {0: 3, 1: 3, 2: 6}


def test_a_level_without_a_share_is_never_played() -> None:
    assert {task.level for task in grpo_tasks(manifest(), configuration(levels=[0, 1]))} == {1}


def test_no_task_comes_twice_and_none_was_in_the_warm_up() -> None:
    tasks = grpo_tasks(manifest(), configuration(levels=[1, 1, 2]))
    warm_up = [plan.task for plan in single_plans([make_venue(manifest())], 100)]
    assert len({task.seed for task in tasks}) == 120
    assert not {task.seed for task in tasks} & {task.seed for task in warm_up}


def test_a_small_environment_repeats_its_tasks() -> None:
    tasks = grpo_tasks(manifest(train=9), configuration())
    assert len(tasks) == 120
    assert {task.index for task in tasks} == set(range(9))


def test_a_step_is_planned_once_however_often_it_is_requested() -> None:
    planner = Planner([make_venue(manifest())], configuration())
    first = planner.plans(1)
    assert planner.plans(1) == first
    assert planner.plans(1, [3, 5]) == [first[3], first[5]]
    assert not numbers(planner.plans(2)) & numbers(first)


def test_a_replacement_is_a_fresh_task_of_the_same_level() -> None:
    planner = Planner([make_venue(manifest())], configuration())
    first = planner.plans(1)
    fresh = planner.plans(1, [12 + 4, 24 + 4])
    assert [plan.ordinal for plan in fresh] == [16, 28]
    assert {plan.task.level for plan in fresh} == {first[4].task.level}
    assert len(numbers([*first, *fresh, *planner.plans(2)])) == 26


def test_an_adaptive_planner_climbs_and_continues_the_same_after_a_resume() -> None:
    choices = configuration({"kind": "adaptive", "window": 12})
    whole, cut = (Planner([make_venue(manifest())], choices) for _ in range(2))
    highest = 0
    for step in range(1, 11):
        if step in {4, 5, 8}:
            kept, cut = cut.state, Planner([make_venue(manifest())], choices)
            cut.restore(kept)
        assert cut.plans(step) == whole.plans(step)
        highest = max(plan.task.level for plan in whole.plans(step))
        points = whole.learn(step, played(whole.plans(step)))
        assert cut.learn(step, played(cut.plans(step))) == points
        assert points["curriculum/game/high"] == highest
    assert highest == 2


def test_failed_rollouts_say_nothing_about_success() -> None:
    planner = Planner([make_venue(manifest())], configuration({"kind": "adaptive", "window": 12}))
    rollouts = played(planner.plans(1))
    for rollout in rollouts[4:]:
        rollout.status, rollout.reward, rollout.columns = RolloutStatus.FAILED, None, {}
    assert planner.learn(1, rollouts)["curriculum/game/success"] == 1.0
    assert {plan.task.level for plan in planner.plans(2)} == {0}


def test_success_can_be_a_reward_of_ones_own() -> None:
    choices = configuration({"kind": "adaptive", "window": 12, "success_at": 1.5})
    planner = Planner([make_venue(manifest())], choices)
    assert planner.learn(1, played(planner.plans(1)))["curriculum/game/success"] == 0.0


def test_every_step_has_tasks_of_all_environments_by_weight() -> None:
    own, other = make_venue(manifest()), make_venue(manifest(name="other", levels=2), weight=0.5, is_own=False)
    planner = Planner([own, other], configuration())
    for step in range(1, 6):
        counts = Counter((plan.task.version_id, plan.task.level) for plan in planner.plans(step))
        assert sum(count for (tag, _), count in counts.items() if tag is None) == 8
        assert [counts[other.version_id, level] for level in (0, 1)] == [2, 2]


def test_environments_climb_each_automatically_and_have_curves() -> None:
    own, other = make_venue(manifest()), make_venue(manifest(name="other"), is_own=False)
    planner = Planner([own, other], configuration({"kind": "adaptive", "window": 12}))
    plans = planner.plans(1)
    won = played([plan for plan in plans if plan.task.version_id is None])
    lost = played([plan for plan in plans if plan.task.version_id], won=False)
    points = planner.learn(1, [*won, *lost])
    assert (points["environment/game"], points["environment/other"]) == (1.0, 0.0)
    assert {plan.task.level for plan in planner.plans(2) if plan.task.version_id is None} == {0, 1}
    assert {plan.task.level for plan in planner.plans(2) if plan.task.version_id} == {0}


def test_the_warm_up_of_a_mix_is_by_weight_and_never_played_again() -> None:
    own, other = make_venue(manifest()), make_venue(manifest(name="other"), weight=0.25, is_own=False)
    warm_up = single_plans([own, other], 100)
    assert Counter(plan.task.version_id for plan in warm_up) == {None: 80, other.version_id: 20}
    assert Counter(plan.task.version_id for plan in warm_up[:10]) == {None: 8, other.version_id: 2}
    planner = Planner([own, other], configuration())
    for step in range(1, 11):
        assert not numbers(planner.plans(step)) & numbers(warm_up)


def test_without_a_warm_up_the_first_task_is_the_first() -> None:
    choices = configuration().model_copy(update={"recipe": Recipe.GRPO})
    assert grpo_tasks(manifest(), choices)[0].index == 0


@pytest.mark.parametrize(("asked", "given"), [(20, 20), (80, 50)])
def test_heldout_tasks_are_the_first_and_never_trained_on(asked: int, given: int) -> None:
    tasks = [plan.task for plan in single_plans([make_venue(manifest())], asked, Split.HELDOUT)]
    assert [task.index for task in tasks] == list(range(given))
    assert min(task.seed for task in tasks) >= HELDOUT_SEED_BASE


def test_waves_fit_side_by_side_and_hold_everything_once() -> None:
    plans = whole_groups(10)
    parts = waves(plans, {None: EnvCapacity(30)}, 30)
    sizes = [sum(len(plan.members) for plan in part) for part in parts]
    assert sizes == [27, 27, 26]
    members = [(plan.ordinal, member) for part in parts for plan in part for member in plan.members]
    assert members == [(number, member) for number in range(10) for member in range(8)]


def test_waves_never_cut_a_group_that_is_scored_together() -> None:
    parts = waves(whole_groups(5), {None: EnvCapacity(20, is_grouped=True)}, 20)
    assert [[plan.ordinal for plan in part] for part in parts] == [[0, 1], [2, 3], [4]]
    assert all(plan.members == tuple(range(8)) for part in parts for plan in part)


def test_every_wave_of_a_mix_fits_the_room_of_each_environment() -> None:
    own, other = make_venue(manifest()), make_venue(manifest(name="other"), is_own=False)
    plans = single_plans([own, other], 60)
    rooms = {None: EnvCapacity(30), other.version_id: EnvCapacity(8)}
    for concurrency in (100, 13):
        parts = waves(plans, rooms, concurrency)
        assert sorted(plan.ordinal for part in parts for plan in part) == list(range(60))
        for part in parts:
            counts = Counter(plan.task.version_id for plan in part)
            assert counts[None] <= 30
            assert counts[other.version_id] <= 8
            assert len(part) <= concurrency


def test_no_wave_is_needed_for_nothing() -> None:
    assert waves([], {None: EnvCapacity(30)}, 30) == []


def whole_groups(count: int) -> list[GroupPlan]:
    return [
        replace(plan, members=tuple(range(8))) for plan in single_plans([make_venue(manifest())], count, Split.HELDOUT)
    ]


def test_a_heldout_evaluation_of_a_mix_is_the_mean_by_weight_with_each_environments_own() -> None:
    own, other = make_venue(manifest()), make_venue(manifest(name="other"), weight=0.5, is_own=False)
    plans = single_plans([own, other], 12, Split.HELDOUT)
    rollouts = played([plan for plan in plans if plan.task.version_id is None])
    rollouts += played([plan for plan in plans if plan.task.version_id], won=False)
    found = summarize(rollouts, ["win", "near"], [own, other])
    assert found.reward is not None
    assert found.reward.mean == pytest.approx(1 / 1.5)
    assert {name: each.mean for name, each in found.environments.items()} == {"game": 1.0, "other": 0.0}
    assert found.levels == {}
    assert list(found.columns) == ["win"]
    assert found.metrics()["heldout/environment/other"] == 0.0
    for name, reward in (("game", 1.0), ("other", 0.0)):
        assert found.environment_successes[name].mean == reward
        levels = found.environment_levels[name]
        assert sum(each.count for each in levels.values()) == found.environments[name].count
        assert {level: each.mean for level, each in levels.items()} == dict.fromkeys(range(len(levels)), reward)
        assert found.metrics()[f"heldout/environment_level/{name}/1"] == reward
    assert set(found.environment_levels) == {"game", "other"}


def test_a_heldout_evaluation_in_which_one_environment_failed_has_no_reward() -> None:
    own, other = make_venue(manifest()), make_venue(manifest(name="other"), is_own=False)
    plans = single_plans([own, other], 4, Split.HELDOUT)
    rollouts = played(plans)
    for rollout in rollouts:
        if rollout.task.version_id:
            rollout.status, rollout.reward, rollout.columns = RolloutStatus.FAILED, None, {}
    assert summarize(rollouts, ["win"], [own, other]).reward is None
