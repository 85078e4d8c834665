"""`proctor run detect` and `run interventions`: what they ask for, and what they say."""

import uuid

import pytest
from sqlalchemy import select

from backend.db.models import Intervention, Job
from backend.db.session import transaction
from backend.domain.detectors.face import Action
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind
from backend.judging.detection import newest_detection
from backend.queue import JUDGING_JOB
from tests.factories import make_run
from tests.judging.test_detect_on_demand import evaluation
from tests.ops.commands import Command, proctor, server
from workers.jobs.judging import run as look
from workers.jobs.registry import JobContext

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


def test_a_look_is_asked_for_and_says_how_many_flags_are_new(proctor: Command) -> None:
    with transaction() as session:
        run_id = evaluation(session).id
    asked = proctor("run", "detect", str(run_id), "--altered", "2", "--no-wait", "--json").json
    assert (asked["status"], asked["altered"], asked["new_flags"]) == ("queued", 2, None)
    with transaction() as session:
        job = session.scalars(select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB)).one()
    look(JobContext(job.id, run_id, {"altered": 0}, 1))
    with transaction() as session:
        found = newest_detection(session, run_id)
    assert found is not None
    assert found.by_detector["repeated_text"] == 3
    again = proctor("run", "detect", str(run_id), "--no-wait", "--json").json
    assert again["id"] != asked["id"], "the first look is over: another one is queued"
    assert proctor("run", "detect", str(uuid.uuid4())).status == 2


def test_what_detectors_did_is_a_table_or_that_they_did_nothing(proctor: Command) -> None:
    with transaction() as session:
        configuration = TrainingConfiguration().resolved()
        run = make_run(session, kind=RunKind.TRAINING, name="Trained", configuration=configuration)
        run_id = run.id
    assert "no detector stepped in" in proctor("run", "interventions", str(run_id)).out
    with transaction() as session:
        told = {"action": Action.SCREEN, "rollouts": 6, "sentence": "6 of 64 rollouts."}
        session.add(Intervention(run_id=run_id, step=3, detector="paid_exit", **told))
    assert "6 of 64 rollouts." in proctor("run", "interventions", str(run_id)).out
    found = proctor("run", "interventions", str(run_id), "--json").json
    assert (found["items"][0]["step"], found["actions"]["tampering"]["action"]) == (3, "screen")
