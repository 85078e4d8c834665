"""The transfer report on pages and in JSON: choosing environments, reading the matrix, stopping."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.queue import TRANSFER_JOB
from backend.core.tables import Job
from backend.domain.checkpoints.transfer import TransferStatus
from backend.domain.vocabulary import ExportStatus, PolicyKind, Role, RunKind
from tests.checkpoints.transfer_worlds import finished_report
from tests.factories import make_checkpoint, make_environment, make_environment_version, make_policy, make_run
from tests.web_fixtures import ClientFor

TRAPPED = {"tasks": {"train": 10, "heldout": 200, "levels": 1, "canaries": 0.1}}


@pytest.fixture
def checkpoint(session: Session) -> Checkpoint:
    """After GRPO, of a run that also has its untrained checkpoint; two more environments, one with traps."""
    version = make_environment_version(session, make_environment(session, "trained"))
    make_environment_version(session, make_environment(session, "trapped"), **TRAPPED)
    make_environment_version(session, make_environment(session, "plain"))
    policy = make_policy(session, "tiny", PolicyKind.LOCAL)
    run = make_run(session, version, policy, kind=RunKind.TRAINING)
    make_checkpoint(session, policy, run, stage="untrained", step=0)
    return make_checkpoint(session, policy, run, stage="grpo", step=20)


def finished(session: Session, checkpoint: Checkpoint, **fields: object) -> Export:
    assert checkpoint.run_id is not None
    evaluations = [make_run(session, checkpoint_id=checkpoint.id).id for _ in range(2)]
    export = Export(checkpoint_id=checkpoint.id, run_id=checkpoint.run_id, status=ExportStatus.RUNNING)
    export.transfer = finished_report(*evaluations, **fields).model_dump(mode="json")
    session.add(export)
    session.flush()
    return export


def test_the_form_offers_environments_with_traps_first(checkpoint: Checkpoint, client_for: ClientFor):
    page = client_for(Role.TRAINER).get(f"/exports/new?checkpoint_id={checkpoint.id}").text
    assert 'value="trained@1" checked> trained v1' in page
    assert 'value="trapped@1" checked> trapped v1' in page
    assert 'value="plain@1"> plain v1' in page
    assert page.index("trapped@1") < page.index("plain@1")
    assert 'name="max_rollouts" type="number" value="2000"' in page


def test_the_form_starts_an_export_with_a_report(session: Session, checkpoint: Checkpoint, client_for: ClientFor):
    client = client_for(Role.TRAINER)
    sent = {"checkpoint_id": str(checkpoint.id), "environments": ["plain@1", "trapped@1"], "max_rollouts": "100"}
    answer = client.post("/exports", data={**sent, "has_transfer": "true", "detect": "0.2", "max_minutes": ""})
    export = session.scalars(select(Export)).one()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/exports/{export.id}")
    report = export.transfer_report
    assert report is not None
    assert [each.name for each in report.environments] == ["plain", "trapped"]
    assert (report.detect, report.max_rollouts, report.max_minutes) == (0.2, 100, None)
    assert [job.name for job in session.scalars(select(Job))] == [TRANSFER_JOB]
    assert "Stop the report" in client.get(f"/exports/{export.id}").text


def test_without_the_box_there_is_no_report(session: Session, checkpoint: Checkpoint, client_for: ClientFor):
    sent = {"checkpoint_id": str(checkpoint.id), "environments": ["plain@1"], "max_rollouts": "100"}
    client_for(Role.TRAINER).post("/exports", data=sent)
    assert session.scalars(select(Export)).one().transfer is None


def test_json_requests_reads_and_stops_a_report(session: Session, checkpoint: Checkpoint, client_for: ClientFor):
    client = client_for(Role.TRAINER)
    asked = {"checkpoint_id": str(checkpoint.id), "transfer": {"environments": ["plain"]}}
    started = client.post("/api/v1/exports", json=asked).json()
    assert started["transfer"]["environments"][0]["tasks"] == 20
    assert (started["transfer"]["status"], started["is_finished"]) == ("queued", False)
    stop = f"/api/v1/exports/{started['id']}/transfer/stop"
    assert client_for(Role.AUTHOR).post(stop).status_code == 403
    assert client_for(Role.TRAINER).post(stop).json()["transfer"]["stop_requested"] is True
    unknown = {**asked, "transfer": {"environments": ["nowhere"]}}
    refused = client_for(Role.TRAINER).post("/api/v1/exports", json=unknown)
    assert (refused.status_code, "no environment" in refused.text) == (422, True)
    for wrong in ({"detect": 0}, {"max_rollouts": 2}, {"environments": ["plain"] * 17}, {"max_minutes": 0}):
        bad = {**asked, "transfer": wrong}
        assert client_for(Role.TRAINER).post("/api/v1/exports", json=bad).status_code == 422


def test_the_page_shows_the_matrix_and_links_each_side(session: Session, checkpoint: Checkpoint, client_for: ClientFor):
    export = finished(session, checkpoint)
    report = export.transfer_report
    assert report is not None
    page = client_for(Role.TRAINER).get(f"/exports/{export.id}").text
    for shown in (
        "tiny grpo 20 compared with tiny untrained 0",
        "The checkpoint got worse on game_0 v1: reward -0.200",
        "The checkpoint passes impossible tasks of game_0 v1",
        "<b>−0.20</b>",
        "passed an impossible task",
        "<b>+18.8</b>",
        "<b>game_1 v1</b>: The budget of 80 rollouts leaves fewer than two tasks.",
        "not played",
    ):
        assert shown in page
    first = report.environments[0]
    assert f'<a href="/runs/{first.before_runs[0]}">pilot</a>' in page
    assert f'href="/runs/{first.after_runs[0]}/rollouts?phase=canary"' in page
    assert "Stop the report" not in page, "it is over"
    viewer = client_for(Role.VIEWER)
    running = finished(session, checkpoint, status=TransferStatus.RUNNING)
    assert "Stop the report" not in viewer.get(f"/exports/{running.id}").text
