"""Detectors in a training run: shown, chosen between steps, answered by one click, and by whom."""

import uuid
from typing import Any

from sqlalchemy.orm import Session

from backend.detectors.tables import DetectorSetting
from backend.domain.detectors.spec import Action
from backend.domain.vocabulary import AlarmAction, Phase, Role, RunStatus
from backend.runs.tables import Run
from backend.training.tables import Alarm, Intervention
from tests.factories import make_environment_version, make_rollouts
from tests.training.pages.test_steer_a_run import ask, changes_of, post, training
from tests.web_fixtures import ClientFor


def stepped_in(session: Session, run: Run, checkpoint_id: uuid.UUID | None = None) -> Alarm:
    """`paid_exit` screened in step 3 and stopped the run after step 45."""
    prepared = {"checkpoint_id": str(checkpoint_id), "stage": "grpo", "step": 20} if checkpoint_id else None
    row = Alarm(
        run_id=run.id,
        name="intervention",
        step=45,
        sentence="Left early and was paid: four rollouts.",
        action=AlarmAction.STOP,
        evidence={"onset": 40, "detector": "paid_exit", "condition": "intervention/paid_exit", "branch": prepared},
    )
    session.add(row)
    session.flush()
    told: dict[str, Any] = {"run_id": run.id, "detector": "paid_exit"}
    session.add(Intervention(**told, step=3, action=Action.SCREEN, rollouts=6, sentence="6 of 64 rollouts."))
    ended = {"action": Action.STOP_AND_ROLL_BACK, "sentence": row.sentence, "alarm_id": row.id}
    session.add(Intervention(**told, step=45, rollouts=4, **ended))
    session.flush()
    return row


def test_the_tab_shows_what_detectors_did_and_what_a_flag_leads_to(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    empty = client_for(Role.VIEWER).get(f"/runs/{run.id}/alarms").text
    assert "No interventions yet" in empty
    assert "<select" not in empty.split("Detector actions")[1], "a viewer chooses nothing"
    stepped_in(session, run)
    page = client_for(Role.TRAINER).get(f"/runs/{run.id}/alarms").text
    for shown in ("6 of 64 rollouts.", "Left early and was paid: four rollouts.", 'name="detectors.paid_exit"'):
        assert shown in page
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 4, phase=Phase.TRAIN, step=3)
    overview = client_for(Role.VIEWER).get(f"/runs/{run.id}").text
    assert "Left early and was paid: four rollouts." in overview, "an open alarm is on the overview"
    assert "flagged and kept out of the gradient until judged" in overview


def test_an_action_is_chosen_by_page_and_json_and_recorded(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    client = client_for(Role.TRAINER)
    assert post(client, f"/runs/{run.id}/settings", **{"detectors.paid_exit": "pause"}).status_code == 303
    body = {"changes": {"detectors.gibberish": "screen", "detectors.start_branch": "true"}}
    assert [row["after"] for row in ask(client, f"/runs/{run.id}/settings", body).json()["items"]] == ["screen", True]
    assert changes_of(session, run)[0] == ("detectors.paid_exit", "as_set", "pause")
    told = client.get(f"/api/v1/runs/{run.id}/interventions").json()["actions"]
    assert told["paid_exit"] == {"wanted": "pause", "action": "pause", "is_enabled": True, "thresholds": {}}
    assert told["tampering"]["action"] == "screen"
    refused = ask(client, f"/runs/{run.id}/settings", {"changes": {"detectors.paid_exit": "shout"}})
    assert refused.status_code == 422


def test_thresholds_of_the_run_are_given_by_page_and_json_and_taken_away(
    session: Session, client_for: ClientFor
) -> None:
    run = training(session, detectors={"thresholds": ["paid_exit.turns=0.3"]})
    client = client_for(Role.TRAINER)
    assert (
        'name="detectors.thresholds" type="text" value="paid_exit.turns=0.3"'
        in client.get(f"/runs/{run.id}/alarms").text
    )
    after = "paid_exit.reward=0.6, gibberish.suspicion=0.7"
    assert post(client, f"/runs/{run.id}/settings", **{"detectors.thresholds": after}).status_code == 303
    assert changes_of(session, run)[0] == ("detectors.thresholds", ["paid_exit.turns=0.3"], after.split(", "))
    page = client.get(f"/runs/{run.id}/alarms").text
    assert f'value="{after}"' in page
    assert "reward 0.6" in page
    told = client.get(f"/api/v1/runs/{run.id}/interventions").json()["actions"]
    assert (told["paid_exit"]["thresholds"], told["tampering"]["thresholds"]) == ({"reward": 0.6}, {})
    refused = ask(client, f"/runs/{run.id}/settings", {"changes": {"detectors.thresholds": "paid_exit.rewards=1"}})
    assert (refused.status_code, "paid_exit has no threshold rewards" in refused.text) == (422, True)
    assert post(client, f"/runs/{run.id}/settings", **{"detectors.thresholds": ""}).status_code == 303
    assert "reward 0.6" not in client.get(f"/runs/{run.id}/alarms").text.split("Detector actions")[1]


def test_the_environments_action_holds_where_the_run_has_none(session: Session, client_for: ClientFor) -> None:
    run = training(session, detectors={"gibberish": "note"})
    for detector in ("gibberish", "paid_exit"):
        place = run.version.environment_id
        session.add(DetectorSetting(environment_id=place, detector=detector, action=Action.PAUSE))
    session.flush()
    told = client_for(Role.VIEWER).get(f"/api/v1/runs/{run.id}/interventions").json()["actions"]
    assert (told["gibberish"]["action"], told["paid_exit"]["action"]) == ("note", "pause")


def test_only_who_trains_may_change_what_a_flag_leads_to(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    for role in (Role.VIEWER, Role.REVIEWER, Role.AUTHOR):
        body = {"changes": {"detectors.tampering": "note"}}
        assert ask(client_for(role), f"/runs/{run.id}/settings", body).status_code == 403
    assert changes_of(session, run) == []


def test_one_click_starts_the_branch_that_was_prepared(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.STOPPED)
    client = client_for(Role.TRAINER)
    rows = client.get(f"/api/v1/checkpoints?run_id={run.id}").json()["items"]
    [honest] = [uuid.UUID(row["id"]) for row in rows if row["step"] == 20]
    seen = stepped_in(session, run, honest)
    page = client.get(f"/runs/{run.id}").text
    assert "Roll back to grpo step 20" in page
    assert f"/review?run={run.id}&amp;detector=paid_exit" in page
    answer = ask(client, f"/runs/{run.id}/alarms/{seen.id}", {"answer": "roll_back"})
    branch = session.get_one(Run, uuid.UUID(answer.json()["branch_run_id"]))
    assert (branch.checkpoint_id, branch.branch_step) == (honest, 20)


def test_the_report_sums_up_what_was_screened(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    stepped_in(session, run)
    told = client_for(Role.VIEWER).get(f"/api/v1/runs/{run.id}/safeguards").json()["interventions"]
    assert [(row["step"], row["name"], row["action"]) for row in told] == [
        (3, "paid_exit", "screen"),
        (45, "intervention", "stop"),
    ]
    assert "6 rollouts of steps 3 to 3" in client_for(Role.VIEWER).get(f"/runs/{run.id}/safeguards").text


def test_a_run_is_launched_with_an_action(session: Session, client_for: ClientFor) -> None:
    version = make_environment_version(session)
    page = client_for(Role.TRAINER).get(f"/training/new?version_id={version.id}").text
    assert 'name="detectors.tampering"' in page
    assert "Detectors" in page
