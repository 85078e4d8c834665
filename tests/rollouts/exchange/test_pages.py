"""The pages of export, import and training data."""

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_rollouts, make_run


def finished_run(session: Session, **fields: object) -> Run:
    run = make_run(session, **fields)
    make_rollouts(session, run, [[1.0, 1.0, 0.0], None], phase=Phase.EVALUATION)
    return run


def test_a_runs_page_leads_to_its_export_and_its_training_data(viewer: TestClient, session: Session) -> None:
    run = finished_run(session)
    html = viewer.get(f"/runs/{run.id}").text
    assert f"/runs/{run.id}/export" in html
    assert f"/data/sft?run={run.id}" in html
    assert "/delete" not in html


def test_the_export_page_counts_what_passes_the_filter(viewer: TestClient, session: Session) -> None:
    run = finished_run(session)
    html = viewer.get(f"/runs/{run.id}/export", params={"where": "status = failed"}).text
    assert "1 of 2 rollouts pass" in html
    assert "verifiers 0.4" in html


def test_a_file_downloads_from_the_page(viewer: TestClient, session: Session) -> None:
    run = finished_run(session)
    answer = viewer.get(f"/runs/{run.id}/export/file", params={"format": "verifiers_v1"})
    assert answer.headers["content-disposition"].startswith('attachment; filename="traces-')
    assert answer.content.count(b"\n") == 2


def test_the_import_form_offers_every_version_and_shows_what_is_wrong(author: TestClient, session: Session) -> None:
    version = make_environment_version(session)
    assert f'value="{version.id}"' in author.get("/runs/import").text
    answer = author.post(
        "/runs/import", files={"file": ("a.jsonl", b"nonsense\n")}, data={"version_id": str(version.id)}
    )
    assert answer.status_code == 422
    assert "line 1" in answer.text


def test_a_viewer_may_not_import(viewer: TestClient) -> None:
    assert viewer.get("/runs/import").status_code == 403


def test_an_imported_run_shows_where_it_came_from_and_can_be_deleted(author: TestClient, session: Session) -> None:
    source = {"file": "r.jsonl", "tool": "verifiers 0.1 to 0.3", "hash": "x", "failed": 1, "failed_stored_as_zero": 1}
    run = finished_run(session, configuration={"split": "heldout", "tasks": 2, "source": source})
    html = author.get(f"/runs/{run.id}").text
    assert "r.jsonl" in html
    assert "had reward 0 in the file" in html
    assert "Run again" not in html
    assert author.post(f"/runs/{run.id}/delete").status_code == 303
    assert author.get(f"/runs/{run.id}").status_code == 404


def test_the_training_data_page_shows_samples_and_what_is_held_out(trainer: TestClient, session: Session) -> None:
    run = make_run(session, kind=RunKind.EVALUATION)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]], phase=Phase.TRAIN, step=0)
    html = trainer.get("/data/sft", params={"run": str(run.id), "min_reward": "0.5"}).text
    assert "Mark as demonstrations" in html
    assert "&lt;move&gt;4&lt;/move&gt;" in html
    assert f"/data/sft/file?run={run.id}&amp;min_reward=0.5&amp;format=jsonl" in html
    answer = trainer.post("/data/sft/demonstrations", data={"run": str(run.id), "is_wanted": "true"})
    assert answer.status_code == 303


def test_without_a_run_the_page_shows_where_to_begin(viewer: TestClient) -> None:
    assert "No run selected" in viewer.get("/data/sft").text
