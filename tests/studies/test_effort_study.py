"""An effort study in the product's own rows: evaluations are started, shared and stopped; failures end it."""

import uuid

import pytest
from sqlalchemy import select

from backend.core.queue import STUDY_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.studies.effort import EffortOutcome
from backend.domain.vocabulary import Phase, Role, RunStatus
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from backend.studies.queries import get_studied_run
from backend.studies.schemas import StartEffort
from backend.studies.service import resume_study, start_effort, stop_study
from backend.studies.tables import Study, StudyCheckpoint
from tests.factories import add_group, add_rollout, make_member, make_step
from tests.studies.worlds import PAID, make_training
from workers.tasks.effort_cuts import SideWork, load_side_work, read_reply
from workers.tasks.registry import JobContext
from workers.tasks.studies import advance, advance_effort, give_up

pytestmark = pytest.mark.usefixtures("committed_database")
REASONED = "The middle is free, so I take it. <move>4</move>"


def training() -> uuid.UUID:
    with transaction() as session:
        return make_training(session, (10, 20)).id


def start(run_id: uuid.UUID) -> uuid.UUID:
    with transaction() as session:
        actor = make_member(session, Role.AUTHOR)
        return start_effort(session, actor, get_studied_run(session, run_id), StartEffort(tasks=4, replies=3)).id


def next_side(study_id: uuid.UUID) -> uuid.UUID | None:
    return advance(study_id, advance_effort)


def finish_side(work: SideWork) -> None:
    with transaction() as session:
        session.get_one(StudyCheckpoint, work.side.id).is_done = True


def read_study(study_id: uuid.UUID) -> Study:
    with transaction() as session:
        return session.get_one(Study, study_id)


def sides(study_id: uuid.UUID) -> list[StudyCheckpoint]:
    """The base first."""
    statement = (
        select(StudyCheckpoint).where(StudyCheckpoint.study_id == study_id).order_by(StudyCheckpoint.is_base.desc())
    )
    with transaction() as session:
        return list(session.scalars(statement))


def play(side: StudyCheckpoint, replies: list[str], status: RunStatus = RunStatus.COMPLETED) -> None:
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
    study_id = start(training())
    assert next_side(study_id) is None
    base, own = sides(study_id)
    with transaction() as session:
        played = [session.get_one(Run, side.run_id) for side in (base, own)]
        assert len({str(run.configuration["sampling"]) + str(run.seed) for run in played}) == 1
        assert [run.checkpoint_id for run in played] == [base.checkpoint_id, own.checkpoint_id]
    play(base, ["<move>4</move>", "<move>4</move>", REASONED, REASONED])
    assert next_side(study_id) is None, "the other one is still played"
    with transaction() as session:
        waiting = session.scalars(select(Job).where(Job.name == STUDY_JOB)).all()
        assert len(waiting) == 1, "one wake-up is enough"
    play(own, [REASONED, REASONED, REASONED, REASONED])
    side_id = next_side(study_id)
    assert side_id == base.id
    work = load_side_work(side_id)
    assert len(work.waiting) == 2
    finish_side(work)
    work = load_side_work(own.id)
    chosen = [read_reply(work, rollout_id) for rollout_id in work.waiting]
    assert [each.task.key for each in chosen if each] == ["heldout/2", "heldout/3", "heldout/0"], (
        "what both solved first"
    )
    assert chosen[0] is not None
    assert chosen[0].reply.reasoning == "The middle is free, so I take it. "
    assert [message["role"] for message in chosen[0].prompt] == ["user"]
    finish_side(work)
    assert next_side(study_id) is None
    found = read_study(study_id)
    assert found.effort_result is not None
    assert (found.status, found.effort_result.outcome) == (RunStatus.COMPLETED, EffortOutcome.UNKNOWN), "nothing graded"
    counts = [(side.rollouts, side.succeeded, side.reasoned, side.chosen) for side in sides(study_id)]
    assert counts == [(4, 4, 2, 2), (4, 4, 4, 3)]


def test_a_stopped_score_stops_its_evaluations_and_continues_with_them() -> None:
    study_id = start(training())
    next_side(study_id)
    with transaction() as session:
        stop_study(session, session.get_one(Study, study_id))
    assert next_side(study_id) is None
    with transaction() as session:
        assert {session.get_one(Run, side.run_id).status for side in sides(study_id)} == {RunStatus.STOPPED}
        resume_study(session, session.get_one(Study, study_id))
    next_side(study_id)
    with transaction() as session:
        assert {session.get_one(Run, side.run_id).status for side in sides(study_id)} == {RunStatus.QUEUED}


def test_what_ends_badly_ends_the_score_with_its_reason() -> None:
    study_id = start(training())
    next_side(study_id)
    play(sides(study_id)[0], [], RunStatus.FAILED)
    next_side(study_id)
    found = read_study(study_id)
    assert (found.status, "sft 300 did not complete" in (found.reason or "")) == (RunStatus.STOPPED, True)
    other = start(training())
    with transaction() as session:
        give_up(session, JobContext(uuid.uuid4(), None, {"study_id": str(other)}, 3), "out of memory")
    assert (read_study(other).status, read_study(other).reason) == (RunStatus.FAILED, "out of memory")
