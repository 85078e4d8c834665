"""Detectors scan a stored run on demand and count new flags."""

import uuid

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.scans import newest_scan
from backend.detectors.tables import Flag
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, Queue, RunKind
from backend.runs.tables import Run
from backend.training.tables import SettingChange
from tests.factories import make_rollouts, make_run, make_step
from workers.tasks.detectors import run as look
from workers.tasks.registry import JobContext

REPEATED = "win win win win " * 20


def evaluation(session: Session, reply: str = REPEATED) -> Run:
    run = make_run(session, name="An evaluation")
    made = make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 23, steps=[make_step("<move>5</move>", {})])
    for row in made[:3]:
        row.steps = [make_step(reply, {})]
    session.flush()
    return run


@pytest.fixture
def stored(committed_database: str) -> uuid.UUID:
    with transaction() as session:
        return evaluation(session).id


def carried_out(run_id: uuid.UUID, *thresholds: str) -> Job:
    """As a worker does it."""
    arguments = {"altered": 0, "thresholds": list(thresholds)}
    with transaction() as session:
        job = enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run_id, arguments=arguments)
    look(JobContext(job.id, run_id, dict(job.arguments), 1))
    with transaction() as session:
        return session.get_one(Job, job.id)


def test_it_shows_how_many_flags_are_new_and_none_the_second_time(stored: uuid.UUID) -> None:
    carried_out(stored)
    with transaction() as session:
        first = newest_scan(session, stored)
        flagged = session.scalars(select(Flag.detector).where(Flag.run_id == stored)).all()
    assert first is not None
    assert first.is_finished
    assert (first.done, first.total) == (23, 23)
    assert first.by_detector["repeated_text"] == flagged.count("repeated_text") == 3
    assert first.new_flags == len(flagged)
    carried_out(stored)
    with transaction() as session:
        again = newest_scan(session, stored)
    assert again is not None
    assert (again.new_flags, again.done) == (0, 23)


def test_what_an_attempt_before_had_flagged_is_counted(stored: uuid.UUID) -> None:
    with transaction() as session:
        job = enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=stored, arguments={})
    look(JobContext(job.id, stored, {"progress": {"flags": {"tampering": 2}}}, 2))
    with transaction() as session:
        found = newest_scan(session, stored)
    assert found is not None
    assert found.by_detector["tampering"] == 2


def test_a_replay_is_scanned_by_its_own_rewards(stored: uuid.UUID) -> None:
    with transaction() as session:
        session.get_one(Run, stored).kind = RunKind.REPLAY
    carried_out(stored)
    with transaction() as session:
        found = newest_scan(session, stored)
    assert found is not None
    assert (found.done, found.by_detector["repeated_text"]) == (23, 3)


def flagged(run_id: uuid.UUID) -> int:
    with transaction() as session:
        statement = select(func.count()).where(Flag.run_id == run_id, Flag.detector == "repeated_text")
        return session.scalar(statement) or 0


def test_its_own_scan_may_have_thresholds(stored: uuid.UUID) -> None:
    carried_out(stored, "repeated_text.repeated_share=1", "repeated_text.zlib_ratio=0")
    with transaction() as session:
        found = newest_scan(session, stored)
    assert found is not None
    assert found.thresholds == ["repeated_text.repeated_share=1", "repeated_text.zlib_ratio=0"]
    assert flagged(stored) == 0
    carried_out(stored)
    assert flagged(stored) == 3


def test_a_training_is_scanned_with_its_own_thresholds_and_what_changed_since(committed_database: str) -> None:
    with transaction() as session:
        own = TrainingConfiguration.model_validate({"detectors": {"thresholds": "repeated_text.suspicion=1"}})
        run = make_run(session, kind=RunKind.TRAINING, configuration=own.resolved())
        for row in make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3, phase=Phase.TRAIN):
            row.steps, row.training_step = [make_step(REPEATED, {})], 1
        run_id = run.id
    carried_out(run_id)
    before = flagged(run_id)
    with transaction() as session:
        session.add(SettingChange(run_id=run_id, name="detectors.thresholds", before=[], after=[], step=2))
    carried_out(run_id)
    assert (before, flagged(run_id)) == (0, 3)
