"""One whole run of all that a resume has to know again, and its like that was killed in the warm-up and once more in
reinforcement: two environments, climbing levels, the best of the warm-up, credit by turn, replaced groups, a budget."""

import time
import uuid
from collections import Counter
from typing import Any, NamedTuple

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.environments.manifest import read_manifest
from backend.domain.training.mix import union_columns
from backend.domain.vocabulary import Phase, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from tests.training.conftest import (
    built_in,
    checkpoints_of,
    counts_of,
    kill,
    make_run,
    points_of,
    run_of,
    start_child,
    stored_version,
    take_up_again,
    wait_for_step,
    weights_of,
)
from workers.training.assignment import read_assignment
from workers.training.curriculum import Planner, replay
from workers.training.grpo_batch import REPLACED
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

LADDER = "arithmetic_ladder"
CHOICES: dict[str, Any] = {
    "model": {"context": 256},
    "sft": {"steps": 24, "examine_every": 8},
    "curriculum": {"kind": "adaptive", "window": 8, "mastery": 0.25, "collapse": 0, "success_at": 0.0},
    # A temperature at which some groups of four are uniform, however the batches of the untrained model fall.
    "grpo": {
        "steps": 31,
        "credit": "turn",
        "replace_uniform": 2,
        "updates": 2,
        "temperature": 0.7,
        "temperature_end": 0.4,
    },
    "heldout": {"every": 4},
    "budget": {"rollouts": 130, "tokens": 10_000_000},
}


class Cut(NamedTuple):
    """The run that was killed twice."""

    id: uuid.UUID
    stored: dict[tuple[Phase, int | None], int]
    """Its rollouts when it was killed for the last time."""


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All tests share the two runs."""


@pytest.fixture(scope="module")
def whole(installation: None) -> uuid.UUID:
    run_id = mixed_run()
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_id


@pytest.fixture(scope="module")
def cut(installation: None) -> Cut:
    run_id = mixed_run()
    child = start_child(run_id)
    while ("sft", 8) not in checkpoints_of(run_id):
        assert child.poll() is None
        time.sleep(0.02)
    kill(child)
    assert ("sft", 24) not in checkpoints_of(run_id), "it was in the middle"
    take_up_again(run_id)
    child = start_child(run_id)
    wait_for_step(run_id, 2)
    kill(child)
    stored = counts_of(run_id)
    take_up_again(run_id)
    assert start_child(run_id).wait(300) == 0
    return Cut(run_id, stored)


def mixed_run() -> uuid.UUID:
    """Tic-tac-toe with half as much arithmetic."""
    with transaction() as session:
        version = stored_version(session, built_in(LADDER), name=LADDER)
    run_id = make_run(mix=[f"{LADDER}@{version.number}=0.5"], **CHOICES)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        columns = union_columns(read_manifest(built_in(name)["openenv.yaml"]) for name in ("tictactoe", LADDER))
        run.columns, run.weights = [each.name for each in columns], [each.weight for each in columns]
    return run_id


def steps_of(run_id: uuid.UUID) -> list[int]:
    return sorted(step for phase, step in counts_of(run_id) if phase is Phase.TRAIN and step)


def rollouts_of(run_id: uuid.UUID) -> list[Rollout]:
    """Those of GRPO's steps."""
    with transaction() as session:
        statement = select(Rollout).where(Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN)
        return list(session.scalars(statement.options(undefer(Rollout.tokens))))


def levels_of(rollouts: list[Rollout]) -> Counter[tuple[int | None, int]]:
    """How many of each level every step played."""
    return Counter((rollout.training_step, rollout.level) for rollout in rollouts)


def test_it_ends_with_the_same_weights_without_loss_or_doubles(whole: uuid.UUID, cut: Cut) -> None:
    assert run_of(cut.id).status is RunStatus.COMPLETED, run_of(cut.id).reason
    counts = counts_of(cut.id)
    assert counts == counts_of(whole)
    assert all(counts[key] >= count for key, count in cut.stored.items())
    assert list(checkpoints_of(cut.id)) == list(checkpoints_of(whole))
    for key, row in checkpoints_of(whole).items():
        assert weights_of(checkpoints_of(cut.id)[key]) == weights_of(row), key


def test_the_best_on_the_way_of_the_warm_up_continues(whole: uuid.UUID, cut: Cut) -> None:
    assert [step for stage, step in sorted(checkpoints_of(cut.id)) if stage == "sft"] == [8, 16, 24]
    assert sorted(points_of(cut.id)["sft/heldout/reward"]) == [8, 16, 24]
    assert run_of(cut.id).summary["warm_up"] == run_of(whole).summary["warm_up"]
    assert counts_of(cut.id)[Phase.HELDOUT, 0] == 9


def test_what_was_used_before_counts(whole: uuid.UUID, cut: Cut) -> None:
    assert run_of(cut.id).reason == run_of(whole).reason
    assert "The budget of 130 rollouts is used up." in (run_of(whole).reason or "")
    assert 4 <= steps_of(whole)[-1] < 31
    assert run_of(cut.id).summary["budget"] == run_of(whole).summary["budget"]
    assert run_of(whole).summary["budget"]["rollouts"]["used"] == len(rollouts_of(whole))


def test_windows_of_levels_climb_as_they_did(whole: uuid.UUID, cut: Cut) -> None:
    assert levels_of(rollouts_of(cut.id)) == levels_of(rollouts_of(whole))
    ours, theirs = points_of(cut.id), points_of(whole)
    windows = [name for name in theirs if name.startswith("curriculum/")]
    assert {name: ours[name] for name in windows} == {name: theirs[name] for name in windows}
    highest = [theirs[name] for name in windows if name.endswith("/high")]
    assert len(highest) == 2
    for high in highest:
        assert high[1] == 0
        assert (high[steps_of(whole)[-1]] or 0) > 0


def test_what_the_planner_knew_follows_from_the_stored_rollouts(whole: uuid.UUID) -> None:
    assignment = read_assignment(whole)
    played = levels_of([rollout for rollout in rollouts_of(whole) if REPLACED not in rollout.metrics])
    for step in steps_of(whole):
        fresh = Planner(assignment.envs, assignment.configuration)
        replay(fresh, whole, step - 1)
        planned = Counter((step, plan.task.level) for plan in fresh.plans(step) for _ in plan.members)
        assert planned == Counter({key: count for key, count in played.items() if key[0] == step})


def test_turns_have_their_credit_and_replaced_groups_none(whole: uuid.UUID, cut: Cut) -> None:
    rollouts, again, steps = rollouts_of(whole), rollouts_of(cut.id), steps_of(whole)
    assert sorted(each.excerpt for each in rollouts) == sorted(each.excerpt for each in again)
    replaced = [each for each in rollouts if REPLACED in each.metrics]
    learned = [each for each in rollouts if REPLACED not in each.metrics]
    assert len(learned) == len(steps) * 12
    assert replaced
    assert all(each.advantage is None for each in replaced)
    for each in learned:
        assert each.tokens is not None
        assert each.tokens["turn_advantages"][0] == pytest.approx(each.advantage, abs=1e-4)
    curves = points_of(whole)
    thrown = {step: len([each for each in replaced if each.training_step == step]) for step in steps}
    for step, value in curves["groups/replaced"].items():
        assert value == pytest.approx(thrown[step] / (thrown[step] + 12))
    assert curves["temperature"] == pytest.approx({step: 0.7 - 0.01 * (step - 1) for step in steps})
    for name in ("ratio/mean", "ratio/max", "seconds/forward", "seconds/backward", "columns_p90/win", "tokens/out"):
        assert sorted(curves[name]) == steps


def test_each_rollout_is_stored_with_its_own_environment(whole: uuid.UUID) -> None:
    run, steps = run_of(whole), steps_of(whole)
    with transaction() as session:
        statement = (
            select(Rollout, (Task.version_id == run.version_id).label("is_own"), EnvironmentVersion.manifest)
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
            .where(Rollout.run_id == whole)
        )
        rows = session.execute(statement).all()
    counted = [row for row in rows if REPLACED not in row.Rollout.metrics]
    by_phase = Counter((row.Rollout.phase, row.Rollout.training_step, row.is_own) for row in counted)
    assert (by_phase[Phase.WARM_UP, None, True], by_phase[Phase.WARM_UP, None, False]) == (32, 16)
    for step in steps:
        assert (by_phase[Phase.TRAIN, step, True], by_phase[Phase.TRAIN, step, False]) == (8, 4)
    last = steps[-1]
    assert (by_phase[Phase.HELDOUT, last, True], by_phase[Phase.HELDOUT, last, False]) == (6, 3)
    for row in rows:
        weights = {each["name"]: each["weight"] for each in row.manifest["proctor"]["rewards"]}
        values = dict(zip(run.columns, row.Rollout.columns or (), strict=True))
        wanted = sum(weights.get(name, 0.0) * value for name, value in values.items())
        assert row.Rollout.reward == pytest.approx(wanted, abs=1e-5)
        assert all(value == 0 for name, value in values.items() if name not in weights)


def test_curves_heldout_evaluations_and_the_best_checkpoint_distinguish_environments(whole: uuid.UUID) -> None:
    curves, steps, checkpoints = points_of(whole), steps_of(whole), checkpoints_of(whole)
    assert sorted(curves[f"environment/{LADDER}"]) == steps
    examined = sorted({0, steps[-1], *(step for step in steps if step % 4 == 0)})
    assert sorted(curves[f"heldout/environment/{LADDER}"]) == examined
    last = checkpoints["grpo", steps[-1]].heldout
    means = {name: each["mean"] for name, each in last["environments"].items()}
    others = next(mean for name, mean in means.items() if name != LADDER)
    assert last["reward"]["mean"] == pytest.approx((others + 0.5 * means[LADDER]) / 1.5)
    [best] = [row for row in checkpoints.values() if row.is_best]
    assert best.heldout_reward == max(
        row.heldout_reward for row in checkpoints.values() if row.heldout_reward is not None
    )
