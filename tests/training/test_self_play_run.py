"""A whole self-play run on the duel, another that was killed in the middle, and its checkpoints as opponents."""

import uuid

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout
from backend.training.league import league_of
from tests.factories import make_policy, make_queued_evaluation
from tests.training.conftest import built_in, checkpoints_of, kill_and_resume, make_run, points_of, run_of, weights_of
from workers.tasks import evaluations
from workers.tasks.children import must_run_child
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All tests share the run."""


@pytest.fixture(scope="module")
def whole(installation: None) -> uuid.UUID:
    run_id = duel()
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_id


def duel() -> uuid.UUID:
    return make_run(
        built_in("tictactoe_duel"),
        grpo={"steps": 5, "tasks_per_step": 4},
        sft={"episodes": 60, "steps": 40},
        self_play={"every": 2, "opponents": 2},
        checkpoints={"every": 1, "keep_last": 1},
    )


def games_of(run_id: uuid.UUID) -> list[tuple[int, int, int, str, str, list[str]]]:
    """Step, group, member, seat, opponent and all replies of each training episode."""
    statement = (
        select(Rollout, Group.ordinal)
        .join(Group, Group.id == Rollout.group_id)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN)
        .options(undefer(Rollout.seats), undefer(Rollout.steps), undefer(Rollout.tokens))
        .order_by(Rollout.training_step, Group.ordinal, Rollout.member)
    )
    games = []
    with transaction() as session:
        for row, ordinal in session.execute(statement):
            assert row.seats is not None, row.error_message
            [other] = row.seats["others"]
            assert other["tokens"] is None or sum(other["tokens"]["mask"]) == other["tokens_out"]
            if row.tokens is not None:  # the policy's own tokens only
                assert sum(row.tokens["mask"]) == row.tokens_out
            replies = [step["reply"] for step in (*row.steps, *other["steps"])]
            games.append((row.training_step, ordinal, row.member, row.seat, other["policy"], replies))
    return games


def test_it_plays_past_checkpoints_that_it_keeps(whole: uuid.UUID) -> None:
    games = games_of(whole)
    assert len(games) == 5 * 4 * 4
    assert {opponent for step, *_, opponent, _ in games if step <= 2} == {"sft 40"}
    assert {opponent for *_, opponent, _ in games} - {"sft 40"}
    by_group: dict[tuple[int, int], set[tuple[str, str]]] = {}
    for step, ordinal, _, seat, opponent, _ in games:
        by_group.setdefault((step, ordinal), set()).add((seat, opponent))
    assert all(len(found) == 1 for found in by_group.values())  # members are compared with each other
    assert {seat for found in by_group.values() for seat, _ in found} == {"x", "o"}
    with transaction() as session:
        league = league_of(session, whole)
    assert league is not None
    assert [member.name for member in league.members] == ["sft 40", "grpo 4"]  # grpo 2 left
    assert checkpoints_of(whole)["grpo", 4].pruned_at is None  # although only the last one is kept


def test_it_resumes_bit_by_bit(whole: uuid.UUID) -> None:
    cut = duel()
    kill_and_resume(cut, 3)
    assert games_of(cut) == games_of(whole)
    curves, expected = points_of(cut), points_of(whole)
    names = [name for name in expected if name.startswith("league/")]
    assert {name: curves[name] for name in names} == {name: expected[name] for name in names}
    assert weights_of(checkpoints_of(cut)["grpo", 5]) == weights_of(checkpoints_of(whole)["grpo", 5])


@pytest.mark.parametrize("is_scripted", [False, True])
def test_its_checkpoints_are_opponents_in_evaluations(whole: uuid.UUID, is_scripted: bool) -> None:
    rival = checkpoints_of(whole)["sft", 40]
    opponent = {"policy_id": str(rival.policy_id), "checkpoint_id": str(rival.id), "name": "before GRPO"}
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, run_of(whole).version_id)
        policy = session.get_one(Policy, rival.policy_id)
        if is_scripted:
            policy = make_policy(session, configuration={"script": "gold"})
        plan = {"tasks": 4, "group_size": 2, "concurrency": 8, "opponent": opponent}
        run = make_queued_evaluation(session, version, policy, **plan)
        run.checkpoint_id = None if is_scripted else checkpoints_of(whole)["grpo", 5].id
        run_id = run.id
    must_run_child(evaluations.LOCAL_MODULE, [str(run_id)], run_id=run_id)
    match = run_of(run_id).summary["match"]
    assert isinstance(match, dict)
    assert match["opponent"] == "before GRPO"
    assert {each["seat"] for each in match["seats"]} == {"x", "o"}
