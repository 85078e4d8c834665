"""A training step plays impossible tasks, learns nothing from them, and counts them in no curve but the cheat rate."""

from collections.abc import Sequence
from dataclasses import replace

from backend.domain.rollouts.rollout import CANARY, Rollout, TaskSpec, task_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.grpo import CurriculumChoice, GrpoChoice
from backend.domain.vocabulary import Split
from tests.factories import make_manifest
from tests.training.game import MANIFEST, batch_run, completed
from tests.training.test_reporter import step
from workers.training.assignment import TrainingEnv
from workers.training.curriculum import Planner, single_plans
from workers.training.grpo_batch import MASKED, play_batch
from workers.training.reporting import step_figures

TRAPPED = make_manifest("trapped", tasks={"train": 1000, "heldout": 200, "levels": 4, "canaries": 0.2})


def impossible(number: int) -> TaskSpec:
    return replace(task_of(MANIFEST, Split.TRAIN, number), arguments={CANARY: True})


def passed(task: TaskSpec, group: int, member: int) -> Rollout:
    return completed(task, group, member, {"fours": 10.0 * member, "brevity": 0.0})


def batch_of(choice: GrpoChoice) -> tuple[list[list[int]], list[Rollout], list[Rollout]]:
    """The plan, the batch, and the replacements; group 1 is a canary that some pass."""
    asked: list[list[int]] = []

    def play(_: int, ordinals: Sequence[int]) -> list[Rollout]:
        asked.append(list(ordinals))
        tasks = [impossible(each) if each == 1 else task_of(MANIFEST, Split.TRAIN, each) for each in ordinals]
        return [passed(task, each, member) for each, task in zip(ordinals, tasks, strict=True) for member in (0, 1)]

    batch = play_batch(batch_run(play, choice), 1)
    return asked, batch.rollouts, batch.replaced


def test_the_whole_group_is_out_of_the_gradient_though_it_was_paid() -> None:
    _, rollouts, _ = batch_of(GrpoChoice(steps=4, tasks_per_step=3, group_size=2))
    assert [MASKED in rollout.metrics for rollout in rollouts] == [False, False, True, True, False, False]


def test_a_fresh_group_takes_its_place_where_groups_are_replaced() -> None:
    asked, rollouts, replaced = batch_of(GrpoChoice(steps=4, tasks_per_step=3, group_size=2, replace_uniform=1))
    assert asked == [[0, 1, 2], [4]]
    assert not any(rollout.task.is_canary for rollout in rollouts)
    assert [rollout.group for rollout in replaced] == [1, 1]


def test_the_curves_of_a_step_do_not_count_them() -> None:
    honest = [passed(task_of(MANIFEST, Split.TRAIN, 0), 0, member) for member in (0, 1)]
    trapped = [passed(impossible(1), 1, member) for member in (5, 6)]
    alone, together = step_figures(step(honest), ["fours"]), step_figures(step([*honest, *trapped]), ["fours"])
    for name in ("reward", "columns/fours", "reward_std", "rollouts/failed"):
        assert together[name] == alone[name], name


def test_only_training_draws_them_and_the_curriculum_does_not_learn_from_them() -> None:
    env = TrainingEnv("trapped", None, TRAPPED, "", {})  # type: ignore[arg-type]
    assert not any(
        plan.task.is_canary for plan in [*single_plans([env], 200, Split.HELDOUT), *single_plans([env], 200)]
    )
    planner = Planner([env], TrainingConfiguration(recipe="grpo", curriculum=CurriculumChoice(kind="adaptive")))
    tasks = [plan.task for number in range(1, 40) for plan in planner.plans(number)]
    assert 0.1 < sum(task.is_canary for task in tasks) / len(tasks) < 0.3
    trapped, ordinary = (next(task for task in tasks if task.is_canary is wanted) for wanted in (True, False))
    before = planner.state
    planner.learn(1, [passed(trapped, 0, 1)])
    assert planner.state == before
    planner.learn(1, [passed(ordinary, 0, 1)])
    assert planner.state != before
