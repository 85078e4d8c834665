"""`proctor run detect`, `run interventions` and `detectors`: what they ask for, what they set, and what they say."""

import uuid

import pytest
from sqlalchemy import select

from backend.core.queue import JUDGING_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.scans import newest_scan
from backend.domain.detectors.spec import Action
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind
from backend.training.tables import Intervention
from tests.detectors.test_detect_on_demand import evaluation
from tests.factories import make_run
from tests.ops.commands import Command, proctor, server
from workers.tasks.detectors import run as look
from workers.tasks.registry import JobContext

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


def test_a_scan_is_requested_and_shows_how_many_flags_are_new(proctor: Command) -> None:
    with transaction() as session:
        run_id = evaluation(session).id
    asked = proctor("run", "detect", str(run_id), "--altered", "2", "--no-wait", "--json").json
    assert (asked["status"], asked["altered"], asked["new_flags"]) == ("queued", 2, None)
    with transaction() as session:
        job = session.scalars(select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB)).one()
    look(JobContext(job.id, run_id, {"altered": 0}, 1))
    with transaction() as session:
        found = newest_scan(session, run_id)
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
    assert "No detector has intervened" in proctor("run", "interventions", str(run_id)).out
    with transaction() as session:
        told = {"action": Action.SCREEN, "rollouts": 6, "sentence": "6 of 64 rollouts."}
        session.add(Intervention(run_id=run_id, step=3, detector="paid_exit", **told))
    assert "6 of 64 rollouts." in proctor("run", "interventions", str(run_id)).out
    found = proctor("run", "interventions", str(run_id), "--json").json
    assert (found["items"][0]["step"], found["actions"]["tampering"]["action"]) == (3, "screen")


def test_a_scan_may_have_thresholds(proctor: Command) -> None:
    with transaction() as session:
        run_id = evaluation(session).id
    given = ["repeated_text.suspicion=0.7", "paid_exit.reward=0.6"]
    options = [each for threshold in given for each in ("--threshold", threshold)]
    assert proctor("run", "detect", str(run_id), *options, "--no-wait", "--json").json["thresholds"] == given
    refused = proctor("run", "detect", str(run_id), "--threshold", "paid_exit=1", "--no-wait")
    assert (refused.status, "write a threshold as" in refused.err) == (2, True)


def test_a_detector_is_shown_and_set_for_an_environment(proctor: Command) -> None:
    assert "paid_exit" in {each["id"] for each in proctor("detectors", "--environment", "tictactoe", "--json").json}
    assert "paid_exit" in proctor("detectors").out
    told = proctor("detectors", "show", "reward_outlier").out
    assert ("a matrix product per batch" in told, "suspicion 0" in told) == (True, True)
    first = proctor("detectors", "set", "paid_exit", "tictactoe", "reward=0.6", "suspicion=0.7", "--json").json
    assert first["thresholds"] == {"turns": 0.5, "reward": 0.6, "suspicion": 0.7}
    said = proctor("detectors", "set", "paid_exit", "tictactoe", "reward=", "--off", "--action", "pause").out
    assert "off, pause, turns 0.5, reward 0.5, suspicion 0.7" in said
    assert "settings for tictactoe: off, pause" in proctor("detectors", "show", "paid_exit").out
    assert proctor("detectors", "set", "paid_exit", "tictactoe").status == 2
    assert proctor("detectors", "set", "paid_exit", "tictactoe", "--suggested").status == 1
    assert proctor("detectors", "set", "paid_exit", "tictactoe", "rewards=1").status == 2
    assert proctor("detectors", "set", "paid_exit", "tictactoe", "--default", "--json").json["enabled"] is True
    assert proctor("detectors", "show", "paid_exit", "--json").json["settings"] == {}
    assert "No rollout has a verdict yet" in proctor("detectors", "learned").out
    assert "10 more hacks (0 of 10)" in proctor("detectors", "train", "tictactoe").err
