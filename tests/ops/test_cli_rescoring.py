"""`proctor rescore` and `proctor replay`: what they say and how they end."""

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import select
from sqlalchemy.orm import joinedload

from backend.core.session import transaction
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from tests.ops.commands import Command, proctor, repeated, server
from tests.rollouts.regrading.conftest import World, world
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as carry_out

__all__ = ["proctor", "server", "world"]

pytestmark = pytest.mark.slow

TIDIER = 'observation.metadata["rewards"]["tidy"] = 1.0'


@pytest.fixture(autouse=True)
def worker(server: str) -> Iterator[None]:
    """Run the queued jobs."""

    def work() -> None:
        with transaction() as session:
            queued = select(Run.id).where(Run.kind.in_([RunKind.RESCORE, RunKind.REPLAY]))
            waiting = session.scalars(queued.where(Run.status == RunStatus.QUEUED)).all()
        for run_id in waiting:
            carry_out(JobContext(uuid.uuid4(), run_id, {}, 1))

    with repeated(work):
        yield


def test_weights_are_tried_and_then_stored(proctor: Command, world: World) -> None:
    source = str(world.played(world.version()))
    tried = proctor("rescore", source, "--weights", "tidy=2", "--dry-run", "--json")
    assert (tried.status, tried.json["preview"]["after"]["mean"]) == (0, 6.0)
    stored = proctor("rescore", source, "--weights", "tidy=2", "--json")
    assert stored.status == 0, stored.err
    (found,) = stored.json
    assert (found["changed"], found["run"]["weights"]) == (4, [1.0, 2.0])
    assert "mean reward" in proctor("rescore", source, "--weights", "tidy=2", "--dry-run").out


def test_another_versions_rewards(proctor: Command, world: World) -> None:
    source = str(world.played(world.version()))
    world.version(TIDIER)
    done = proctor("rescore", source, "--version", "2")
    assert done.status == 0, done.err
    assert "4 of 4 sampled rollouts gave the stored rewards" in done.out


def test_a_refused_one_ends_with_1(proctor: Command, world: World) -> None:
    by_chance = 'import random\nobservation.metadata["rewards"]["tidy"] = random.random()'
    source = str(world.played(world.version(by_chance)))
    world.version()
    refused = proctor("rescore", source, "--version", "2")
    assert refused.status == 1
    assert "it would not be faithful" in refused.out


def test_a_replay_ends_with_1_when_anything_diverges(proctor: Command, world: World) -> None:
    own = world.version()
    source = str(world.played(own))
    with transaction() as session:
        assert session.get_one(EnvironmentVersion, own).number == 1
    world.version(TIDIER)
    assert proctor("replay", source, "--version", "1").status == 0
    other = proctor("replay", source, "--version", "2")
    assert other.status == 1
    assert "first at step 1: 4" in other.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--version", "1", "--weights", "tidy=1"],
        ["--weights", "tidy"],
        ["--weights", "tidy=much"],
        ["--weights", ""],
    ],
)
def test_wrong_usage_ends_with_2(proctor: Command, world: World, arguments: list[str]) -> None:
    source = str(world.played(world.version()))
    assert proctor("rescore", source, *arguments).status == 2


def test_a_history_is_graded_again_and_reported(proctor: Command, world: World) -> None:
    """A policy that adds 1 was above one that adds 3; the repaired reward turns them."""
    first = world.version()
    for reply in ("1", "3"):
        world.played(first, reply)
    world.version('observation.metadata["rewards"]["tidy"] = 4.0 if action.amount >= 3 else 0.0')
    with transaction() as session:
        own = session.get_one(EnvironmentVersion, first, options=[joinedload(EnvironmentVersion.environment)])
        environment = f"{own.environment.name}@2"
    told = proctor("env", "history", environment, "--json")
    assert (told.status, told.json["version"], told.json["missing"]) == (0, 2, 2)
    graded = proctor("env", "history", environment, "--regrade")
    assert graded.status == 0, graded.err
    assert "2 of 2 graded" in graded.out
    assert "reversed:" in graded.out
    (ranking,) = proctor("env", "history", environment, "--json").json["conclusions"]["rankings"]
    assert (ranking["rank_correlation"], ranking["turned_count"]) == (-1.0, 1)
