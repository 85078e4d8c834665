"""Automatic scans: everything that evaluations stored, and rollouts regraded by another version."""

import uuid

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.vocabulary import JobStatus, Phase, RunKind, RunStatus
from backend.rollouts.tables import Rollout
from backend.runs.service import finish_run
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_rollouts, make_run
from workers.tasks.detectors import run as look
from workers.tasks.registry import JobContext

WON = [1.0, 1.0, 0.0]
LOST = [0.0, 1.0, 0.0]


def looks_at(session: Session, run: Run) -> list[JobStatus]:
    statement = select(Job.status).where(Job.run_id == run.id, Job.name == JUDGING_JOB).order_by(Job.id)
    return list(session.scalars(statement))


@pytest.mark.parametrize("status", [RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED])
def test_an_evaluation_that_ends_early_is_scanned_where_it_stored_rollouts(session: Session, status: RunStatus) -> None:
    for rows, expected in (([None], []), ([None, WON], [JobStatus.QUEUED])):
        run = make_run(session, status=RunStatus.RUNNING)
        make_rollouts(session, run, rows)
        finish_run(session, run, status)
        assert looks_at(session, run) == expected


@pytest.mark.parametrize("kind", [RunKind.RESCORE, RunKind.REPLAY])
def test_what_another_version_scored_is_scanned_once(session: Session, kind: RunKind) -> None:
    source = make_run(session)
    make_rollouts(session, source, [WON])
    for _ in range(2):
        copy = scored_again(session, source, [WON], kind=kind, status=RunStatus.RUNNING)
        finish_run(session, copy, RunStatus.FAILED)
        assert len(looks_at(session, source)) <= 1
        finish_run(session, copy, RunStatus.COMPLETED)
        assert looks_at(session, source) == [JobStatus.QUEUED]
    session.scalars(select(Job).where(Job.run_id == source.id)).one().status = JobStatus.LEASED
    finish_run(session, copy, RunStatus.COMPLETED)
    assert looks_at(session, source) == [JobStatus.LEASED, JobStatus.QUEUED], "one that began may not have seen it"


def test_other_weights_are_no_second_verifier(session: Session) -> None:
    source = make_run(session)
    finish_run(
        session, make_run(session, source.version, kind=RunKind.RESCORE, source_run_id=source.id), RunStatus.COMPLETED
    )
    assert looks_at(session, source) == []


@pytest.mark.parametrize(("kind", "phase"), [(RunKind.EVALUATION, Phase.EVALUATION), (RunKind.TRAINING, Phase.TRAIN)])
def test_two_verifiers_are_held_against_each_other(committed_database: str, kind: RunKind, phase: Phase) -> None:
    """The success of this reward is the column `win`."""
    with transaction() as session:
        source = make_run(session, kind=kind)
        step = 1 if kind is RunKind.TRAINING else None
        make_rollouts(session, source, [WON] * 60, group_size=4, phase=phase, step=step)
        scored_again(session, source, [LOST] * 6 + [WON] * 54)
    look(JobContext(uuid.uuid4(), source.id, {}, 1))
    with transaction() as session:
        mine = Flag.run_id == source.id, Flag.detector == "second_verifier"
        [flag] = session.scalars(select(Flag).where(*mine))
    assert flag.evidence["passes by this one only"] == 6
    assert len(flag.evidence["rollouts"]) == 5
    assert flag.training_step == step
    assert " v2 disagree about 10.0% of 60 rollouts" in flag.sentence


def scored_again(session: Session, source: Run, rows: list[list[float]], **fields: object) -> Run:
    """Its rollouts by the next version of its environment."""
    kept = session.scalars(select(Rollout).where(Rollout.run_id == source.id).order_by(Rollout.seq)).all()
    version = make_environment_version(session, number=2)
    values = {"kind": RunKind.RESCORE, "source_run_id": source.id, **fields}
    copy = make_run(session, version, **values)
    for original, other in zip(kept, make_rollouts(session, copy, rows), strict=True):
        other.source_id = original.id
    session.flush()
    return copy
