"""Flags as rows: stored once, announced, about a rollout only when that is stored; and the job over a stored run."""

import random
import uuid
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import select

from backend.core.events import REVIEW, run_topic
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.spec import FlagDraft
from backend.domain.vocabulary import Phase, RunKind, Severity
from backend.runs.tables import Run
from tests.factories import make_rollouts, make_run, make_step
from workers.storage.detectors import (
    heldout_results_of,
    load_detector_input,
    record_flags,
    resume_scanner,
    stored_steps,
)
from workers.tasks.detectors import run
from workers.tasks.registry import JobContext

DRAFT = FlagDraft("length_shift", "shorter", Severity.WARNING, 0.6, "Half as long.", {"window": [3, 9]}, None, 9)


@pytest.fixture
def run_id(committed_database: str) -> uuid.UUID:
    """A training run of 16 steps whose replies begin to repeat themselves at step 12."""
    dice = random.Random(0)
    with transaction() as session:
        row = make_run(session, kind=RunKind.TRAINING, name="A training run")
        for step in range(1, 17):
            reply = "win win win win " * 20 if step >= 12 else f"<move>{dice.randint(1, 9)}</move>"
            rows = [[dice.choice([0.0, 0.5, 1.0]), 1.0, 0.0] for _ in range(8)]
            make_rollouts(session, row, rows, group_size=4, phase=Phase.TRAIN, step=step, steps=[make_step(reply, {})])
        return row.id


def flags_of(run_id: uuid.UUID) -> list[Flag]:
    with transaction() as session:
        return list(session.scalars(select(Flag).where(Flag.run_id == run_id).order_by(Flag.id)))


def test_a_draft_is_stored_once(run_id: uuid.UUID):
    assert record_flags(run_id, [DRAFT]).total() == 1
    assert record_flags(run_id, [DRAFT, replace(DRAFT, key="longer")]).total() == 1
    first, _ = flags_of(run_id)
    assert (first.detector, first.key, first.severity, first.training_step) == ("length_shift", "shorter", "warning", 9)
    assert first.evidence == {"window": [3, 9]}


def test_a_rollout_that_is_not_stored_leaves_a_flag_about_the_run(run_id: uuid.UUID):
    record_flags(run_id, [replace(DRAFT, rollout_id=uuid.uuid4())])
    assert flags_of(run_id)[0].rollout_id is None


def test_new_flags_are_announced_and_old_ones_are_not(run_id: uuid.UUID, committed_database: str):
    heard = []
    with psycopg.connect(committed_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("LISTEN proctor")
        for _ in range(2):
            record_flags(run_id, [DRAFT])
            heard.append({note.payload for note in connection.notifies(timeout=0.3)})
    assert heard == [{run_topic(run_id), REVIEW}, set()]


@pytest.mark.slow
def test_the_job_scans_every_step_and_may_look_again(run_id: uuid.UUID):
    for _ in range(2):
        run(JobContext(uuid.uuid4(), run_id, {}, 1))
    found = [flag for flag in flags_of(run_id) if flag.detector == "repeated_text"]
    assert {flag.training_step for flag in found} == {12, 13, 14, 15, 16}
    assert all(flag.rollout_id for flag in found)
    assert len({flag.key for flag in found}) == len(found)
    assert {flag.cluster for flag in found} == {"repeats win win win win"}


def test_a_check_is_not_judged(committed_database: str):
    with transaction() as session:
        row = make_run(session, kind=RunKind.CHECK)
        make_rollouts(session, row, [[1.0, 1.0, 0.0]], phase=Phase.CHECK)
    assert list(stored_steps(load_detector_input(row.id))) == []


def test_an_evaluation_is_one_step(committed_database: str):
    with transaction() as session:
        row = make_run(session)
        make_rollouts(session, row, [[1.0, 1.0, 0.0], None, [0.0, 1.0, 0.0]])
    [(step, rows)] = stored_steps(load_detector_input(row.id))
    assert (step, len(rows)) == (0, 2)
    assert rows[0].columns == {"win": 1.0, "format": 1.0, "invalid_move": 0.0}
    assert rows[0].replies == ("<move>4</move>",)


def test_flags_on_an_evaluation_name_no_training_step(committed_database: str):
    with transaction() as session:
        row = make_run(session)
        make_rollouts(session, row, [[0.0, 0.0, 0.0]] * 4, steps=[make_step("win win win win " * 20, {})])
    run(JobContext(uuid.uuid4(), row.id, {}, 1))
    found = flags_of(row.id)
    assert found
    assert {flag.training_step for flag in found} == {None}


@pytest.mark.slow
def test_a_resumed_watch_knows_the_steps_before(run_id: uuid.UUID):
    scanner = resume_scanner(run_id, before_step=12)
    assert [figures.step for figures in scanner.view.steps] == list(range(1, 12))
    with transaction() as session:
        assert session.get_one(Run, run_id).columns == list(scanner.view.context.columns)


def test_the_untrained_models_heldout_evaluation_belongs_to_no_step(committed_database: str):
    """It earned nothing: taken for the newest one, it would be a gap to the training reward."""
    with transaction() as session:
        row = make_run(session, kind=RunKind.TRAINING)
        make_rollouts(session, row, [[0.0, 0.0, 0.0]] * 4, phase=Phase.HELDOUT)
        for step in (0, 2):
            make_rollouts(session, row, [[1.0, 1.0, 0.0]] * 4, phase=Phase.HELDOUT, step=step)
    assert [(each.step, round(each.reward, 5)) for each in heldout_results_of(row.id)] == [(0, 1.2), (2, 1.2)]
    assert [each.step for each in resume_scanner(row.id, before_step=1).view.heldout] == [0]
