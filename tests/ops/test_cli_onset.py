"""`proctor run onset`: patterns, a search that is started, stopped and shown, and a roll back."""

import uuid

import pytest

from backend.core.session import transaction
from backend.runs.tables import Run
from tests.ops.commands import Command, proctor, server
from tests.studies.worlds import CLUSTER, Laboratory, judged, make_training

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


@pytest.fixture
def training(proctor: Command) -> str:
    with transaction() as session:
        run = make_training(session)
        judged(session, run, (55, 70))
        return str(run.id)


def test_an_onset_is_searched_for_shown_and_rolled_back_from(proctor: Command, training: str) -> None:
    assert CLUSTER in proctor("run", "onset", training).out
    ask = (
        "run",
        "onset",
        training,
        "--detector",
        "judge_directed",
        "--tasks",
        "16",
        "--group-size",
        "1",
        "--no-wait",
        "--json",
    )
    search = proctor(*ask).json
    assert (search["status"], search["settings"]["tasks"]) == ("queued", 16)
    assert proctor("run", "onset", training, "--stop", "--json").json["status"] == "stopped"
    assert proctor("run", "onset", training, "--stop").status == 2
    assert proctor("run", "onset", training, "--resume", "--no-wait").status == 0
    Laboratory(lambda step: 0.0 if step < 50 else 0.5).finish(uuid.UUID(search["id"]))
    shown = proctor("run", "onset", training).out
    assert "between step 40 and step 50" in shown
    assert "8 of 16" in shown
    assert "last honest checkpoint: step 40" in shown
    refused = proctor("run", "onset", training, "--roll-back", "--version", "99", "--no-wait")
    assert (refused.status, "v99" in refused.err) == (2, True)
    branch = proctor("run", "onset", training, "--roll-back", "--no-wait", "--json").json
    with transaction() as session:
        run = session.get_one(Run, uuid.UUID(branch["id"]))
        assert (run.source_run_id, run.branch_step) == (uuid.UUID(training), 40)


def test_what_is_not_confirmed_is_wrong_usage(proctor: Command, training: str) -> None:
    refused = proctor("run", "onset", training, "--detector", "tampering", "--no-wait")
    assert (refused.status, "No rollout with this flag" in refused.err) == (2, True)
