"""Whole training runs whose levels climb, that play several environments, or that have a budget."""

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from backend.db.models import EnvironmentVersion, Group, Rollout, Run, Task
from backend.db.session import transaction
from backend.domain.manifest import read_manifest
from backend.domain.training.mix import union_columns
from backend.domain.vocabulary import Phase, RunStatus
from backend.settings import get_settings
from tests.training.conftest import (
    built_in,
    checkpoints_of,
    counts_of,
    kill_and_resume,
    points_of,
    run_of,
    stored_version,
    weights_of,
)
from workers.training.assignment import read_assignment
from workers.training.planning.memory import replay
from workers.training.planning.planner import Planner
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

NewRun = Callable[..., uuid.UUID]
CLIMBING: dict[str, Any] = {
    "curriculum": {"kind": "adaptive", "window": 8, "mastery": 0.25, "collapse": 0, "success_at": 0.0},
    "grpo": {"steps": 8},
}


def levels_of(run_id: uuid.UUID) -> dict[int, Counter[int]]:
    """How many rollouts of each level every step played."""
    found: dict[int, Counter[int]] = {}
    with transaction() as session:
        for row in session.execute(
            select(Rollout.training_step, Rollout.level).where(Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN)
        ):
            found.setdefault(row.training_step, Counter())[row.level] += 1
    return found


def test_a_killed_run_with_a_climbing_window_ends_with_the_same_weights(new_run: NewRun) -> None:
    whole, cut = new_run(**CLIMBING), new_run(**CLIMBING)
    train(whole)
    kill_and_resume(cut, 4)
    assert levels_of(cut) == levels_of(whole)
    windows = [name for name in points_of(whole) if name.startswith("curriculum/")]
    assert {name: points_of(cut)[name] for name in windows} == {name: points_of(whole)[name] for name in windows}
    high = next(points_of(whole)[name] for name in windows if name.endswith("/high"))
    assert high[1] == 0
    assert high[8] > 0
    assert weights_of(checkpoints_of(cut)["grpo", 8]) == weights_of(checkpoints_of(whole)["grpo", 8])


def test_what_the_planner_knew_follows_from_the_stored_rollouts(new_run: NewRun) -> None:
    run_id = new_run(**CLIMBING)
    train(run_id)
    assignment, played = read_assignment(run_id), levels_of(run_id)
    for step in range(1, 9):
        fresh = Planner(assignment.venues, assignment.configuration)
        replay(fresh, run_id, step - 1)
        assert Counter(plan.task.level for plan in fresh.plans(step) for _ in plan.members) == played[step]


@pytest.fixture
def new_mixed_run(new_run: NewRun) -> NewRun:
    """Tic-tac-toe with half as much arithmetic beside it."""

    def make(**choices: Any) -> uuid.UUID:
        files = built_in("arithmetic_ladder")
        with transaction() as session:
            version = stored_version(session, files, name="arithmetic_ladder")
        choices = {"model": {"context": 256}, **choices}
        run_id = new_run(mix=[f"arithmetic_ladder@{version.number}=0.5"], **choices)
        with transaction() as session:
            run = session.get_one(Run, run_id)
            manifests = [read_manifest(built_in(name)["openenv.yaml"]) for name in ("tictactoe", "arithmetic_ladder")]
            columns = union_columns(manifests)
            run.columns, run.weights = [each.name for each in columns], [each.weight for each in columns]
        return run_id

    return make


def test_a_run_on_two_environments_stores_each_rollout_with_its_own(new_mixed_run: NewRun) -> None:
    run_id = new_mixed_run()
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    run, curves = run_of(run_id), points_of(run_id)
    own = Task.version_id == run.version_id
    with transaction() as session:
        statement = (
            select(Rollout, own.label("is_own"), EnvironmentVersion.manifest)
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
            .where(Rollout.run_id == run_id)
        )
        rows = session.execute(statement).all()
    by_phase = Counter((row.Rollout.phase, row.Rollout.training_step, row.is_own) for row in rows)
    assert (by_phase[Phase.WARM_UP, None, True], by_phase[Phase.WARM_UP, None, False]) == (32, 16)
    for step in range(1, 5):
        assert (by_phase[Phase.TRAIN, step, True], by_phase[Phase.TRAIN, step, False]) == (8, 4)
    assert (by_phase[Phase.HELDOUT, 4, True], by_phase[Phase.HELDOUT, 4, False]) == (6, 3)
    for row in rows:
        weights = {each["name"]: each["weight"] for each in row.manifest["proctor"]["rewards"]}
        values = dict(zip(run.columns, row.Rollout.columns or (), strict=True))
        wanted = sum(weights.get(name, 0.0) * value for name, value in values.items())
        assert row.Rollout.reward == pytest.approx(wanted, abs=1e-5)
        assert all(value == 0 for name, value in values.items() if name not in weights)
    assert sorted(curves["environment/arithmetic_ladder"]) == [1, 2, 3, 4]
    assert sorted(curves["heldout/environment/arithmetic_ladder"]) == [0, 2, 4]
    last = checkpoints_of(run_id)["grpo", 4].heldout
    means = {name: each["mean"] for name, each in last["environments"].items()}
    others = next(mean for name, mean in means.items() if name != "arithmetic_ladder")
    assert last["reward"]["mean"] == pytest.approx((others + 0.5 * means["arithmetic_ladder"]) / 1.5)
    best = [row for row in checkpoints_of(run_id).values() if row.is_best]
    examined = [row.heldout_reward for row in checkpoints_of(run_id).values() if row.heldout_reward is not None]
    assert best[0].heldout_reward == max(examined)


def test_a_killed_run_on_two_environments_ends_with_the_same_weights(new_mixed_run: NewRun) -> None:
    longer = {"grpo": {"steps": 6}}
    whole, cut = new_mixed_run(**longer), new_mixed_run(**longer)
    train(whole)
    kill_and_resume(cut, 2)
    assert counts_of(cut) == counts_of(whole)
    assert weights_of(checkpoints_of(cut)["grpo", 6]) == weights_of(checkpoints_of(whole)["grpo", 6])


def test_a_run_ends_with_an_examination_when_its_rollouts_are_used_up(new_run: NewRun) -> None:
    run_id = new_run(budget={"rollouts": 30})
    outcome = train(run_id)
    assert outcome.status is RunStatus.COMPLETED
    assert "The budget of 30 rollouts is used up." in (run_of(run_id).reason or "")
    assert list(checkpoints_of(run_id)) == [("untrained", 0), ("sft", 12), ("grpo", 2), ("grpo", 3)]
    assert checkpoints_of(run_id)["grpo", 3].heldout
    assert run_of(run_id).summary["budget"]["rollouts"] == {"used": 36, "limit": 30, "left": 0}


def test_a_resumed_run_counts_what_it_used_before(new_run: NewRun) -> None:
    choices = {"budget": {"rollouts": 70, "tokens": 10_000_000}, "grpo": {"steps": 40}}
    whole, cut = new_run(**choices), new_run(**choices)
    train(whole)
    kill_and_resume(cut, 2)
    assert run_of(cut).reason == run_of(whole).reason
    assert "70 rollouts" in (run_of(whole).reason or "")
    assert counts_of(cut) == counts_of(whole)
    assert run_of(cut).summary["budget"] == run_of(whole).summary["budget"]


def test_minutes_are_counted_over_all_attempts_and_stages(new_run: NewRun) -> None:
    run_id = new_run(budget={"minutes": 5.0})
    folder = get_settings().data / "training" / str(run_id)
    folder.mkdir(parents=True)
    (folder / "minutes.txt").write_text("4.9999")
    assert train(run_id).status is RunStatus.COMPLETED
    assert "The budget of 5 minutes is used up." in (run_of(run_id).reason or "")
    assert list(checkpoints_of(run_id)) == [("untrained", 0), ("sft", 1)]
    assert checkpoints_of(run_id)["sft", 1].heldout
    assert run_of(run_id).summary["best"]
