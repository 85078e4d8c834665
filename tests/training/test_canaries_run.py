"""A whole training run on two environments with impossible tasks, some of which can be passed all the same."""

import uuid
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Phase, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.rollouts.tables import Group, Rollout, Task
from tests.environments.checks.bent import WIN, bent_game
from tests.training.conftest import counts_of, points_of, run_of, stored_version
from workers.training.grpo_batch import MASKED
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def leaky() -> dict[str, str]:
    """Tic-tac-toe that ignores `canary` and rewards every move: impossible games are passed."""
    files = bent_game(WIN, "return 1.0")
    manifest = files["openenv.yaml"].replace("levels: 3}", "levels: 3, canaries: 0.2}")
    return files | {"openenv.yaml": manifest.replace("max_tokens_per_turn: 32", "max_tokens_per_turn: 6")}


def canaries_of(run_id: uuid.UUID) -> dict[str, set[int]]:
    """In each environment the steps that played some."""
    statement = (
        select(Environment.name, Group.training_step)
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Task, Task.version_id == EnvironmentVersion.id)
        .join(Group, Group.task_id == Task.id)
        .where(Group.run_id == run_id, Group.phase == Phase.CANARY)
    )
    found: dict[str, set[int]] = {}
    with transaction() as session:
        for name, step in session.execute(statement):
            found.setdefault(name, set()).add(step)
    return found


def test_its_canaries_are_played_apart_and_give_a_live_rate(new_run: Callable[..., uuid.UUID]) -> None:
    with transaction() as session:
        other = stored_version(session, leaky() | {"NOTES.md": "Other boards."}, name="boards")
    run_id = new_run(leaky(), mix=[f"boards@{other.number}=1"], grpo={"steps": 6}, sft={"episodes": 60, "steps": 24})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    counts, curves = counts_of(run_id), points_of(run_id)
    trapped = {step: count for (phase, step), count in counts.items() if phase is Phase.CANARY}
    assert trapped
    for step in range(1, 7):
        assert counts.get((Phase.TRAIN, step), 0) + trapped.get(step, 0) == 12
    assert counts[Phase.HELDOUT, 6] == 9  # an examination has none
    assert set(curves["cheat_rate"]) == set(trapped)
    assert {step: int(value or 0) for step, value in curves["canaries/played"].items()} == trapped
    by_environment = canaries_of(run_id)
    assert len(by_environment) == 2
    for name, steps in by_environment.items():
        assert set(curves[f"environment_cheat_rate/{name}"]) == steps
    with transaction() as session:
        of_canaries = select(Rollout).where(Rollout.run_id == run_id, Rollout.phase == Phase.CANARY)
        rollouts = session.scalars(of_canaries).all()
        won = [rollout for rollout in rollouts if rollout.columns and rollout.columns[0] >= 1]
        assert won
        assert all(MASKED in rollout.metrics for rollout in rollouts)
        assert sum(value or 0 for value in curves["canaries/passed"].values()) == len(won)
        flagged = session.scalars(select(Flag.rollout_id).where(Flag.run_id == run_id, Flag.detector == "canary")).all()
        assert set(flagged) == {rollout.id for rollout in won}
        for step, count in trapped.items():
            of_step = (Rollout.run_id == run_id, Rollout.training_step == step, Rollout.phase == Phase.TRAIN)
            mean = session.scalar(select(func.avg(Rollout.reward)).where(*of_step))
            if count < 12:
                assert curves["reward"][step] == pytest.approx(mean, abs=1e-5)
