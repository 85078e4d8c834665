"""The red team's trained attacker: its oracle, and the whole job on a reward with a hole."""

from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.rollouts.rollout import Rollout, Step, task_of
from backend.domain.vocabulary import Phase, RolloutStatus, Split
from backend.environments import red_team
from backend.environments.schemas import StartAttack
from backend.environments.service import create_environment
from tests.environments.checks.bad_rewards import quiz
from tests.factories import make_manifest
from workers.tasks.registry import JobContext, find_body
from workers.training.attacker import Oracle

MANIFEST = make_manifest("game", {"win": 1.0, "oracle_column": 0.0})


def episode(index: int, cell: int, **metrics: float) -> Rollout:
    task = task_of(MANIFEST, Split.TRAIN, index)
    steps = [Step("", {"cell": cell})]
    return Rollout(task, Phase.TRAIN, 0, 0, RolloutStatus.COMPLETED, reward=1.0, metrics=metrics, steps=steps)


def test_the_environments_oracle_grades_on_the_scale_of_gold() -> None:
    gold = [episode(0, 1, oracle_points=10.0), episode(1, 2, oracle_points=8.0)]
    oracle = Oracle.of(MANIFEST, gold, [])
    assert oracle.names == ("oracle_points",)
    assert oracle.grade(episode(0, 5, oracle_points=1.0)) == pytest.approx(0.1)
    assert oracle.grade(episode(0, 5)) == 0.0


@pytest.mark.parametrize("gold_grade", [None, 0.2], ids=["none", "grades gold low"])
def test_without_an_oracle_that_agrees_with_gold_its_last_action_is_the_content(gold_grade: float | None) -> None:
    metrics: dict[str, Any] = {} if gold_grade is None else {"oracle_odd": gold_grade}
    oracle = Oracle.of(MANIFEST, [episode(0, 1, **metrics)], [])
    assert [oracle.grade(episode(index, cell)) for index, cell in ((0, 1), (0, 2), (1, 1))] == [1.0, 0.0, None]
    assert Oracle.of(MANIFEST, [], [episode(0, 1)]).grade(episode(0, 1)) is None


def any_number_is_right() -> dict[str, str]:
    """A quiz that rewards every number, with an oracle that does not."""
    files = quiz("style = float(is_right)\nis_right = text.isdigit()")
    environment = "server/quiz_environment.py"
    return files | {
        "openenv.yaml": files["openenv.yaml"].replace("style: 1.0", "oracle_right: 0.0"),
        environment: files[environment].replace('"style": style', '"oracle_right": style'),
    }


@pytest.mark.slow
def test_it_learns_what_the_reward_pays_and_the_oracle_does_not(shared_installation: None) -> None:
    with transaction() as session:
        session.add(Worker(name="w", queues=["gpu"]))
        environment = create_environment(session, None, "quiz", any_number_is_right())
        attack_id = red_team.start(session, environment, StartAttack(seconds=20, train=True)).id
        job = session.scalars(select(Job).where(Job.name == red_team.TRAIN_JOB)).one()
    find_body(job.name)(JobContext(job.id, None, job.arguments, 1))
    with transaction() as session:
        found = red_team.get(session, attack_id)
    assert found.done == 50, "the other attackers have not run"
    [note] = found.notes
    assert "GRPO steps" in note
    assert "the oracle oracle_right" in note
    assert {each.attack for each in found.exploits} == {"trained"}
    contradicted = [each for each in found.exploits if each.oracle is not None]
    assert contradicted
    for each in contradicted:
        assert each.reward == 1.0
        assert each.oracle is not None
        assert each.oracle <= 0.3
    assert any(each.low == 1.0 and each.episodes == 16 for each in found.exploits if each.oracle is None), note
