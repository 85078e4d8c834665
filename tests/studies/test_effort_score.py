"""An effort score through the product's own rows: evaluations are started, shared and stopped; what fails is told."""

import uuid

import pytest
from sqlalchemy import select

from backend.core.queue import EFFORT_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.studies.effort import EffortOutcome
from backend.domain.vocabulary import Phase, Role, RunStatus
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from backend.studies.effort.queries import get_run, get_score
from backend.studies.effort.schemas import EffortRequest
from backend.studies.effort.service import SCORES, start_score
from backend.studies.tables import EffortScore, EffortSide
from tests.factories import add_group, add_rollout, make_member, make_step
from tests.studies.onset_world import PAID, make_training
from workers.storage.effort import finish, read_chosen, take_up
from workers.tasks.effort import give_up, next_side
from workers.tasks.registry import JobContext

pytestmark = pytest.mark.usefixtures("committed_database")
REASONED = "The middle is free, so I take it. <move>4</move>"


def training() -> uuid.UUID:
    with transaction() as session:
        return make_training(session, (10, 20)).id


def start(run_id: uuid.UUID) -> uuid.UUID:
    with transaction() as session:
        actor = make_member(session, Role.AUTHOR)
        return start_score(session, actor, get_run(session, run_id), EffortRequest(tasks=4, replies=3)).id


def score_of(score_id: uuid.UUID) -> EffortScore:
    with transaction() as session:
        return session.get_one(EffortScore, score_id)


def sides(score_id: uuid.UUID) -> list[EffortSide]:
    """The base first."""
    statement = select(EffortSide).where(EffortSide.score_id == score_id).order_by(EffortSide.is_base.desc())
    with transaction() as session:
        return list(session.scalars(statement))


def play(side: EffortSide, replies: list[str], status: RunStatus = RunStatus.COMPLETED) -> None:
    """The evaluation that it waits for, one reply a task."""
    with transaction() as session:
        run = session.get_one(Run, side.run_id)
        begin_run(session, run)
        for index, reply in enumerate(replies):
            group = add_group(session, run, index=index, phase=Phase.EVALUATION, step=None)
            told = [{"role": "user", "content": "Board?"}, {"role": "assistant", "content": reply}]
            add_rollout(session, run, group, PAID, 0, {"steps": [make_step(reply, {})], "messages": told})
        session.flush()
        finish_run(session, run, status)


def test_both_play_the_same_tasks_then_replies_with_reasoning_are_chosen() -> None:
    score_id = start(training())
    assert next_side(score_id) is None
    base, own = sides(score_id)
    with transaction() as session:
        played = [session.get_one(Run, side.run_id) for side in (base, own)]
        assert len({str(run.configuration["sampling"]) + str(run.seed) for run in played}) == 1
        assert [run.checkpoint_id for run in played] == [base.checkpoint_id, own.checkpoint_id]
    play(base, ["<move>4</move>", "<move>4</move>", REASONED, REASONED])
    assert next_side(score_id) is None, "the other one is still played"
    with transaction() as session:
        waiting = session.scalars(select(Job).where(Job.name == EFFORT_JOB)).all()
        assert len(waiting) == 1, "one wake-up is enough"
    play(own, [REASONED, REASONED, REASONED, REASONED])
    side_id = next_side(score_id)
    assert side_id == base.id
    work = take_up(side_id)
    assert len(work.waiting) == 2
    finish(work)
    work = take_up(own.id)
    chosen = [read_chosen(work, rollout_id) for rollout_id in work.waiting]
    assert [each.task for each in chosen if each] == ["heldout/2", "heldout/3", "heldout/0"], "what both solved first"
    assert chosen[0] is not None
    assert chosen[0].said.reasoning == "The middle is free, so I take it. "
    assert [message["role"] for message in chosen[0].prompt] == ["user"]
    finish(work)
    assert next_side(score_id) is None
    found = score_of(score_id)
    assert (found.status, found.outcome) == (RunStatus.COMPLETED, EffortOutcome.UNKNOWN), "nothing was graded"
    counts = [(side.played, side.succeeded, side.reasoned, side.chosen) for side in sides(score_id)]
    assert counts == [(4, 4, 2, 2), (4, 4, 4, 3)]


def test_a_stopped_score_stops_its_evaluations_and_goes_on_with_them() -> None:
    run_id = training()
    score_id = start(run_id)
    next_side(score_id)
    with transaction() as session:
        author = make_member(session, Role.AUTHOR)
        SCORES.stop(session, author, get_score(session, run_id, score_id))
    assert next_side(score_id) is None
    with transaction() as session:
        assert {session.get_one(Run, side.run_id).status for side in sides(score_id)} == {RunStatus.STOPPED}
        SCORES.resume(session, author, get_score(session, run_id, score_id))
    next_side(score_id)
    with transaction() as session:
        assert {session.get_one(Run, side.run_id).status for side in sides(score_id)} == {RunStatus.QUEUED}


def test_what_ends_badly_ends_the_score_with_its_reason() -> None:
    score_id = start(training())
    next_side(score_id)
    play(sides(score_id)[0], [], RunStatus.FAILED)
    next_side(score_id)
    found = score_of(score_id)
    assert (found.status, "sft 300 did not end" in (found.reason or "")) == (RunStatus.STOPPED, True)
    other = start(training())
    with transaction() as session:
        give_up(session, JobContext(uuid.uuid4(), None, {"score_id": str(other)}, 3), "out of memory")
    assert (score_of(other).status, score_of(other).reason) == (RunStatus.FAILED, "out of memory")
