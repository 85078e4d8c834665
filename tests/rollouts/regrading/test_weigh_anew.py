"""Other weights over stored columns: nothing is played, and what the new run holds is a run like any other."""

import math
import uuid

import pytest
from sqlalchemy import delete, update

from backend.core.session import transaction
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.vocabulary import ErrorKind, GradeStatus, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.graders.tables import Grade, Grader
from backend.rollouts.regrading.schemas import StartRegrading
from backend.rollouts.regrading.service import StillPlaying, start_regrading
from backend.rollouts.regrading.weights import ReasoningInReward
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import make_group, make_policy, make_rollout, make_run
from tests.rollouts.regrading.conftest import World, rollouts_of, run_of
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as carry_out


@pytest.fixture
def source_id(world: World) -> uuid.UUID:
    """Six rollouts in three groups with the columns `gain` and `tidy` (weights 1 and 0.5), the last one failed."""
    version_id = world.version()
    rows = [(1.0, 0.5), (3.0, 0.5), (2.0, 1.0), (2.0, 0.0), (3.0, 1.0), None]
    with transaction() as session:
        run = make_run(session, session.get_one(EnvironmentVersion, version_id))
        for number in range(3):
            group = make_group(session, run, index=number)
            for member in range(2):
                make_rollout(session, run, group, rows[2 * number + member], member=member, metrics={"effort": member})
        return run.id


def judged(source_id: uuid.UUID) -> uuid.UUID:
    """A judge that gave the first rollout a score, and none to the second."""
    stored = rollouts_of(source_id)
    with transaction() as session:
        judge = Grader(name="strict", kind=GraderKind.JUDGE, policy_id=make_policy(session).id)
        session.add(judge)
        session.flush()
        for rollout, score in zip(stored[:2], [0.25, None], strict=True):
            status = GradeStatus.COMPLETED if score is not None else GradeStatus.FAILED
            found = {"grader_id": judge.id, "run_id": source_id, "rollout_id": rollout.id}
            session.add(Grade(id=new_id(), score=score, status=status, **found))
        return judge.id


def show_thoughts(judge_id: uuid.UUID) -> None:
    """As if it had been shown them from the beginning."""
    with transaction() as session:
        session.get_one(Grader, judge_id).settings = {"shows_reasoning": True}


def test_rewards_follow_the_new_weights_and_all_else_stays(world: World, source_id: uuid.UUID) -> None:
    run = world.rescore(source_id, weights={"tidy": 4.0})
    assert (run.kind, run.status, run.source_run_id) == (RunKind.RESCORE, RunStatus.COMPLETED, source_id)
    assert (run.columns, run.weights) == (["gain", "tidy"], [1.0, 4.0])
    before, after = rollouts_of(source_id), rollouts_of(run.id)
    assert [rollout.reward for rollout in after] == [3.0, 5.0, 6.0, 2.0, 7.0, None]
    assert [rollout.source_id for rollout in after] == [rollout.id for rollout in before]
    assert [rollout.messages for rollout in after] == [rollout.messages for rollout in before]
    assert [rollout.columns for rollout in after] == [rollout.columns for rollout in before]
    assert (after[0].stop_reason, after[0].tokens_out) == (before[0].stop_reason, before[0].tokens_out)


def test_what_had_failed_stays_failed_and_states_why(world: World, source_id: uuid.UUID) -> None:
    run = world.rescore(source_id, weights={"gain": 2.0})
    failed = rollouts_of(run.id)[-1]
    assert (failed.status, failed.reward, failed.error_kind) == (RolloutStatus.FAILED, None, ErrorKind.ENVIRONMENT)
    assert failed.error_message == "The source rollout failed: step: RuntimeError: the board is on fire"
    assert (run.summary["completed"], run.summary["failed"]) == (5, 1)


@pytest.mark.slow
def test_a_metric_becomes_a_column_when_it_is_given_a_weight(world: World, source_id: uuid.UUID) -> None:
    run = world.rescore(source_id, weights={"effort": -1.0})
    assert run.columns == ["gain", "tidy", "effort"]
    assert [rollout.reward for rollout in rollouts_of(run.id)][:2] == [1.25, 2.25]


def test_a_judges_score_counts_and_is_never_a_zero_where_it_is_missing(world: World, source_id: uuid.UUID) -> None:
    judged(source_id)
    run = world.rescore(source_id, weights={"gain": 0.0, "tidy": 0.0, "judge.strict": 2.0})
    assert run.columns == ["gain", "tidy", "judge.strict"]
    after = rollouts_of(run.id)
    assert [rollout.reward for rollout in after] == [0.5] + [None] * 5
    assert (after[1].error_kind, after[1].error_message) == (
        ErrorKind.JUDGE,
        "No score of judge.strict for this rollout.",
    )


def test_who_was_shown_the_thoughts_has_no_weight(world: World, source_id: uuid.UUID) -> None:
    judge_id = judged(source_id)
    weights = {"gain": 0.0, "judge.strict": 2.0}
    with transaction() as session:
        request = StartRegrading(run_ids=[source_id], weights=weights)
        [queued] = start_regrading(session, world.actor, request).runs
    first = world.rescore(source_id, weights=weights)
    show_thoughts(judge_id)
    with pytest.raises(ReasoningInReward, match="learns to hide"):
        carry_out(JobContext(uuid.uuid4(), queued.id, {}, 1))
    assert rollouts_of(queued.id) == []
    with pytest.raises(ReasoningInReward):
        world.rescore(source_id, weights=weights)
    with pytest.raises(ReasoningInReward):  # nor under the column that it had become
        world.rescore(first.id, weights={"gain": 1.0})
    assert world.rescore(first.id, weights={"judge.strict": 0.0, "gain": 1.0}).status is RunStatus.COMPLETED


def test_a_re_score_can_be_scored_again(world: World, source_id: uuid.UUID) -> None:
    first = world.rescore(source_id, weights={"gain": 0.0})
    second = world.rescore(first.id, weights={"gain": 1.0})
    assert [rollout.reward for rollout in rollouts_of(second.id)] == [
        rollout.reward for rollout in rollouts_of(source_id)
    ]


def test_it_continues_where_the_rows_stand(world: World, source_id: uuid.UUID) -> None:
    run = world.rescore(source_id, weights={"tidy": 4.0})
    kept, lost = rollouts_of(run.id)[0], rollouts_of(run.id)[1]
    with transaction() as session:
        session.execute(delete(Rollout).where(Rollout.id == lost.id))
        session.execute(update(Run).where(Run.id == run.id).values(status=RunStatus.QUEUED))
    carry_out(JobContext(uuid.uuid4(), run.id, {}, 2))
    again = rollouts_of(run.id)
    assert [rollout.id for rollout in again[:2]] == [kept.id, lost.id]
    assert (again[0].seq, len(again), run_of(run.id).summary["completed"]) == (kept.seq, 6, 5)


def test_only_a_part_is_taken_where_one_is_named(world: World, source_id: uuid.UUID) -> None:
    wanted = rollouts_of(source_id)[2].id
    run = world.rescore(source_id, weights={"gain": 1.0}, rollout_ids=[wanted])
    assert [rollout.source_id for rollout in rollouts_of(run.id)] == [wanted]


@pytest.mark.parametrize("weights", [{"nothing": 1.0}, {"gain'; DROP TABLE rollouts; --": 1.0}, {"judge.nobody": 1.0}])
def test_a_column_that_is_not_there_is_refused(world: World, source_id: uuid.UUID, weights: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.rescore(source_id, weights=weights)
    assert "gain, tidy, effort" in refused.value.fields["weights"]


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1e7])
def test_a_weight_is_a_number_of_some_size(world: World, source_id: uuid.UUID, weight: float) -> None:
    with pytest.raises(ValueError, match="weights"):
        world.rescore(source_id, weights={"gain": weight})


def test_a_run_that_is_still_playing_is_refused(world: World, source_id: uuid.UUID) -> None:
    with transaction() as session:
        session.execute(update(Run).where(Run.id == source_id).values(status=RunStatus.RUNNING))
    with pytest.raises(StillPlaying, match="is running"):
        world.rescore(source_id, weights={"gain": 2.0})
