"""`proctor run effort`: a study is started, stopped, resumed and shown."""

import pytest

from backend.core.session import transaction
from tests.ops.commands import Command, proctor, server
from tests.studies.worlds import make_training

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


def test_a_score_is_requested_stopped_and_shown(proctor: Command) -> None:
    with transaction() as session:
        run = str(make_training(session, (10, 20)).id)
    assert "No studies yet" in proctor("run", "effort", run).out
    asked = ("run", "effort", run, "--start", "--step", "10", "--cuts", "5", "--tasks", "4", "--no-wait", "--json")
    score = proctor(*asked).json
    assert (score["status"], score["fractions"]) == ("queued", [0, 0.25, 0.5, 0.75, 1])
    assert proctor("run", "effort", run, "--stop", "--json").json["status"] == "stopped"
    assert proctor("run", "effort", run, "--stop").status == 2
    assert proctor("run", "effort", run, "--resume", "--no-wait").status == 0
    assert "step 10: no result yet (queued)" in proctor("run", "effort", run).out
    refused = proctor("run", "effort", run, "--start", "--step", "11", "--no-wait")
    assert (refused.status, "Available: step 20, step 10" in refused.err) == (2, True)
