"""The points that a training step leaves behind."""

import math
import uuid
from dataclasses import replace

import pytest

from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import RolloutStatus, Split
from tests.training.game import MANIFEST, completed
from workers.training.grpo_batch import MASKED, REPLACED, SCREENED, GrpoStep
from workers.training.reporting import seconds_left, step_figures

COLUMNS = ["fours", "brevity"]
OTHER = uuid.uuid4()


def rollouts() -> list[Rollout]:
    made = []
    for number in range(11):
        task = task_of(MANIFEST, Split.TRAIN, 0)
        rollout = completed(replace(task, level=number % 2), 0, number, {"fours": float(number), "brevity": -1.0})
        rollout.tokens_in, rollout.tokens_out = 10, number
        made.append(rollout)
    return made


def step(played: list[Rollout]) -> GrpoStep:
    return GrpoStep(
        step=3,
        rollouts=played,
        figures={
            "loss": 0.5,
            "grad_norm": 0.1,
            "learning_rate": 0.001,
            "lr_factor": 0.5,
            "temperature": 0.9,
            "entropy": 1.5,
            "groups/no_variance": 0.25,
            "ratio/mean": 1.0,
            "ratio/max": 1.2,
            "ratio/low_clip": 0.01,
        },
        seconds={
            "rollouts": 1.0,
            "reward": 0.1,
            "forward": 0.3,
            "backward": 0.4,
            "optimiser": 0.1,
            "other": 0.02,
            "idle": 0.08,
            "step": 2.0,
        },
    )


def test_each_column_has_its_mean_deviation_and_quantiles() -> None:
    figures = step_figures(step(rollouts()), COLUMNS)
    assert figures["columns/fours"] == 5.0
    assert figures["columns_std/fours"] == pytest.approx(math.sqrt(11))
    assert (figures["columns_p10/fours"], figures["columns_p50/fours"], figures["columns_p90/fours"]) == (1, 5, 9)
    assert figures["columns_std/brevity"] == 0.0


def test_columns_are_reported_by_level() -> None:
    figures = step_figures(step(rollouts()), COLUMNS)
    assert figures["columns_level/0/fours"] == 5.0
    assert figures["columns_level/1/fours"] == 5.0
    assert figures["level/0"] == pytest.approx(4.9)
    one_level = step_figures(step(rollouts()[::2]), COLUMNS)
    assert not any(name.startswith(("level/", "columns_level/")) for name in one_level)


def test_in_a_mix_columns_are_reported_by_environment_and_levels_within_it() -> None:
    played = rollouts()
    for rollout in played[:4]:
        rollout.task = replace(rollout.task, version_id=OTHER)
        del rollout.columns["brevity"]
    figures = step_figures(step(played), COLUMNS, {None: "game", OTHER: "guess"})
    assert figures["columns_environment/guess/fours"] == 1.5
    assert figures["columns_environment/game/brevity"] == -1.0
    assert "columns_environment/guess/brevity" not in figures
    assert not any(name.startswith("level/") for name in figures)
    own = [rollout for rollout in played[4:] if rollout.is_completed and rollout.task.level == 1]
    assert figures["environment_level/game/1"] == pytest.approx(sum(each.reward or 0 for each in own) / len(own))
    assert figures["columns/brevity"] == -1.0


def test_levels_and_environments_with_enough_rollouts_have_deviation_and_quantiles() -> None:
    played = [*rollouts(), *rollouts()]  # 12 of level 0, 10 of level 1
    figures = step_figures(step(played), COLUMNS)
    assert figures["columns_level_std/0/fours"] == pytest.approx(math.sqrt(140 / 11))
    assert figures["columns_level_p10/0/fours"] == pytest.approx(0.2)
    assert figures["columns_level_p50/1/fours"] == 5.0
    assert figures["columns_level_p90/1/brevity"] == -1.0
    few = step_figures(step(rollouts()), COLUMNS)
    assert not any(name.startswith(("columns_level_std/", "columns_level_p")) for name in few)
    for rollout in played[:4]:
        rollout.task = replace(rollout.task, version_id=OTHER)
    mixed = step_figures(step(played), COLUMNS, {None: "game", OTHER: "guess"})
    assert mixed["columns_environment_p50/game/brevity"] == -1.0
    assert mixed["columns_environment_level/guess/1/fours"] == 2.0
    assert mixed["columns_environment_level_p90/game/1/brevity"] == -1.0
    assert "columns_environment_std/guess/fours" not in mixed


def test_levels_of_few_rollouts_add_little_to_a_steps_curves() -> None:
    def points(levels: int) -> int:
        tasks = [replace(task_of(MANIFEST, Split.TRAIN, 0), level=number % levels) for number in range(320)]
        played = [completed(task, 0, number, {"fours": 1.0, "brevity": -1.0}) for number, task in enumerate(tasks)]
        return len(step_figures(step(played), COLUMNS)) - len(step_figures(step(played[:1]), COLUMNS))

    assert points(64) == 64 * (1 + 2)
    assert points(40) == 40 * (1 + 2 * 5)


def test_replaced_and_masked_rollouts_are_counted() -> None:
    played = rollouts()
    played[0].metrics |= {MASKED: 1.0, SCREENED: 1.0}
    played[1].metrics[MASKED] = 1.0
    for rollout in played[-2:]:
        rollout.metrics[REPLACED] = 1.0
    figures = step_figures(step(played), COLUMNS)
    assert (figures["rollouts/masked"], figures["rollouts/screened"]) == (2.0, 1.0)
    assert figures["groups/replaced"] == pytest.approx(2 / 11)
    assert figures["groups/no_variance"] == 0.25
    assert figures["columns/fours"] == 5.0


def test_the_time_of_a_step_is_reported_in_parts_that_sum_to_it() -> None:
    figures = step_figures(step(rollouts()), COLUMNS)
    names = ("rollouts", "reward", "forward", "backward", "optimiser", "other", "idle")
    assert sum(figures[f"seconds/{name}"] for name in names) == pytest.approx(figures["seconds/step"])
    assert figures["seconds/idle"] == pytest.approx(0.08)
    assert (figures["tokens/in"], figures["tokens/out"]) == (110.0, 55.0)
    assert figures["tokens_per_second"] == 27.5


def test_what_the_optimiser_did_is_reported() -> None:
    figures = step_figures(step(rollouts()), COLUMNS)
    assert (figures["learning_rate"], figures["lr_factor"], figures["temperature"]) == (0.001, 0.5, 0.9)
    assert (figures["ratio/mean"], figures["ratio/max"], figures["ratio/low_clip"]) == (1.0, 1.2, 0.01)
    assert "ratio/high_clip" not in figures
    assert "divergence" not in figures


def test_a_step_of_failures_has_no_means() -> None:
    played = rollouts()
    for rollout in played:
        rollout.status, rollout.reward, rollout.columns = RolloutStatus.FAILED, None, {}
    figures = step_figures(step(played), COLUMNS)
    assert math.isnan(figures["reward"])
    assert math.isnan(figures["columns_p90/fours"])
    assert figures["rollouts/failed"] == 11.0


def test_the_time_left_follows_the_last_steps() -> None:
    ends = [(10, 100.0), (12, 104.0)]
    assert seconds_left(ends, last=20) == pytest.approx(16.0)
    ends.append((14, 114.0))
    assert seconds_left(ends, last=20) == pytest.approx(21.0)
    assert seconds_left([*ends, (20, 114.0)], last=20) == 0.0
