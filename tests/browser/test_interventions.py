"""Detector actions and a scan on demand, in a real browser: all of it fits a phone."""

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.detectors.spec import Action
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, Phase, RunKind, RunStatus
from backend.training.tables import Alarm, Intervention
from tests import factories

pytestmark = pytest.mark.browser


def test_a_phone_shows_all_of_it(page: Page, address: str) -> None:
    with transaction() as session:
        configuration = TrainingConfiguration().resolved()
        values = {"kind": RunKind.TRAINING, "status": RunStatus.PAUSED, "configuration": configuration}
        run = factories.make_run(session, **values)
        factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 4, phase=Phase.TRAIN, step=1)
        evidence = {"onset": 1, "detector": "paid_exit", "condition": "intervention/paid_exit"}
        alarm = Alarm(
            run_id=run.id,
            name="intervention",
            step=2,
            sentence="Left early and was paid: four rollouts of this step ended by a reply that cannot be read.",
            action=AlarmAction.PAUSE,
            evidence=evidence,
        )
        session.add(alarm)
        told = {"action": Action.SCREEN, "rollouts": 6, "sentence": "6 of 64 rollouts."}
        session.add(Intervention(run_id=run.id, step=1, detector="paid_exit", **told))
    page.set_viewport_size({"width": 390, "height": 844})
    for path in (f"/runs/{run.id}", f"/runs/{run.id}/alarms", f"/runs/{run.id}/flags", f"/runs/{run.id}/safeguards"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.goto(f"/runs/{run.id}/alarms")
    expect(page.get_by_text("6 of 64 rollouts.")).to_be_visible()
    page.goto(f"/runs/{run.id}/flags")
    expect(page.get_by_role("button", name="Start scan")).to_be_visible()
