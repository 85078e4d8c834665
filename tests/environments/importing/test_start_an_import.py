"""Uploading a package by page and by JSON: accepted files, refusals, and stored rows."""

import base64
import json

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.environments.import_report import Breakdown, ImportReport
from backend.domain.environments.proposals import propose
from backend.domain.vocabulary import Role, RunStatus
from backend.environments.queries import get_draft, get_environment
from backend.environments.tables import Environment, EnvironmentImport
from backend.team.tables import AuditEvent
from tests.environments.importing.packages import door_package, zipped
from tests.environments.importing.test_propose_a_block import DOOR
from tests.web_fixtures import ClientFor


def _send(client: TestClient, data: bytes, **fields: str):
    return client.post("/imports", data={"kind": "zip", **fields}, files={"package": ("doors.zip", data)})


def _finished(session: Session) -> EnvironmentImport:
    """An import as the worker leaves it."""
    row = session.scalars(select(EnvironmentImport)).one()
    opening = {"prompt": "Which?", "legal_doors": [1], "parts": {}}
    parts = Breakdown(path="parts", names=["hit", "tidy"], adds_up=True)
    report = ImportReport(starts=True, name="doors", action_schema=DOOR, opening=opening, breakdowns=[parts])
    row.status, row.report, row.block = RunStatus.COMPLETED, report.model_dump(mode="json"), propose(report)
    session.flush()
    return row


def test_a_zip_becomes_a_queued_import(session: Session, client_for: ClientFor):
    answer = _send(client_for(Role.AUTHOR), zipped(door_package(), "doors"), variables="A=1\nB = 2")
    row = session.scalars(select(EnvironmentImport)).one()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/imports/{row.id}")
    assert (row.name, row.kind, row.status) == ("doors", "openenv", RunStatus.QUEUED)
    assert row.manifest["variables"] == {"A": "1", "B": "2"}
    [job] = session.scalars(select(Job).where(Job.name == "environments.import"))
    assert job.arguments["import_id"] == str(row.id)
    assert session.scalars(select(AuditEvent).where(AuditEvent.action == "import.start")).one()


def test_a_bad_zip_leaves_nothing(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    climbing = zipped({"../evil.py": b"x", **door_package()})
    for data in (b"not a zip", zipped({"README.md": b"x"}), climbing):
        answer = _send(author, data)
        assert answer.status_code == 422
    assert "It holds" not in answer.text
    assert author.post("/imports", data={"kind": "zip"}).status_code == 422
    assert session.scalars(select(EnvironmentImport)).all() == []


@pytest.mark.parametrize("archive", ["UEsDB", "Maße", "\ud800"])
def test_an_archive_that_is_no_base64_is_refused(author: TestClient, archive: str) -> None:
    body = json.dumps({"kind": "zip", "archive": archive, "source": "doors.zip"})
    answer = author.post("/api/v1/imports", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "not valid Base64" in answer.json()["fields"]["archive"]


def test_only_authors_import(client_for: ClientFor):
    data = zipped(door_package())
    assert _send(client_for(Role.VIEWER), data).status_code == 403
    assert client_for(Role.VIEWER).get("/imports/new").status_code == 403
    assert client_for(Role.VIEWER).get("/imports").status_code == 200


def test_an_address_must_be_one(client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    for url in ("", "file:///etc", "ssh://x/y", "https://u:p@example.org/x", "https://example.org/x y"):
        for kind in ("git", "remote"):
            assert author.post("/imports", data={"kind": kind, "url": url}).status_code == 422, url


def test_json_does_the_same(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    archive = base64.b64encode(zipped(door_package(), "doors")).decode()
    sent = author.post("/api/v1/imports", json={"archive": archive, "source": "doors", "name": "gates"})
    assert sent.status_code == 201
    assert author.get(f"/api/v1/imports/{sent.json()['id']}").json()["name"] == "gates"
    assert [item["name"] for item in author.get("/api/v1/imports").json()["items"]] == ["gates"]
    assert author.post("/api/v1/imports", json={"archive": "%%%"}).status_code == 422
    assert author.post("/api/v1/imports", json={}).status_code == 422


def test_the_report_shows_a_prompt_and_maps_a_dictionary_by_a_click(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    _send(author, zipped(door_package()))
    row = _finished(session)
    shown = author.get(f"/imports/{row.id}").text
    assert "Use as columns" in shown
    assert "prompt: Which?" in shown
    assert author.post(f"/imports/{row.id}/columns/edit", data={"columns_from": "nothing"}).status_code == 422
    assert author.post(f"/imports/{row.id}/columns/edit", data={"columns_from": "parts"}).status_code == 303
    session.refresh(row)
    assert "columns_from: parts" in row.block
    assert "hit: 1.0" in row.block


def test_a_block_that_is_wrong_shows_where(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    _send(author, zipped(door_package()))
    row = _finished(session)
    broken = row.block.replace("format: tag", "format: tags")
    assert author.post(f"/imports/{row.id}/block", data={"block": broken}).status_code == 303
    shown = author.get(f"/api/v1/imports/{row.id}").json()
    line = broken.splitlines().index("      format: tags") + 1
    assert shown["problems"][0].startswith(f"line {line}: proctor.agent.action.format")


def test_it_becomes_an_environment_once(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    _send(author, zipped(door_package()))
    row = _finished(session)
    answer = author.post(f"/imports/{row.id}/block", data={"block": row.block, "name": "gates", "then": "create"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/environments/gates/edit")
    files = get_draft(session, get_environment(session, "gates")).files
    assert files["models.py"] == door_package()["models.py"].decode()
    assert "name: gates" in files["openenv.yaml"]
    again = author.post(f"/imports/{row.id}/block", data={"block": row.block, "then": "create"})
    assert again.status_code == 409
    manifest = {"path": "openenv.yaml", "text": files["openenv.yaml"], "revision": 1, "then": "publish"}
    assert (
        author.post("/environments/gates/edit", data=manifest).headers["location"] == "/environments/gates/versions/1"
    )


def test_json_makes_the_environment_too(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    _send(author, zipped(door_package()))
    address = f"/api/v1/imports/{_finished(session).id}"
    session.expunge_all()  # as in another process
    assert author.put(f"{address}/columns", json={"columns_from": "parts"}).json()["columns_from"] == "parts"
    made = author.post(f"{address}/environment", json={})
    assert (made.status_code, made.json()["environment"]) == (201, "doors")
    assert author.post(f"{address}/environment", json={}).status_code == 409
    assert author.put(f"{address}/block", json={"block": ""}).status_code == 409


def test_an_import_that_was_not_scanned_becomes_nothing(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    _send(author, zipped(door_package()))
    row = session.scalars(select(EnvironmentImport)).one()
    answer = author.post(f"/imports/{row.id}/block", data={"block": "proctor: {}", "then": "create"})
    assert answer.status_code == 409
    assert session.scalars(select(Environment)).all() == []


def test_hostile_text_is_shown_as_text(session: Session, client_for: ClientFor):
    author = client_for(Role.AUTHOR)
    _send(author, zipped(door_package()))
    row = _finished(session)
    evil = "<script>alert(1)</script>"
    row.report = {**row.report, "why_not": evil, "notes": [evil], "opening": {"prompt": evil}, "state_fields": [evil]}
    row.build_log = row.source = evil
    session.flush()
    shown = author.get(f"/imports/{row.id}").text
    assert evil not in shown
    assert "&lt;script&gt;" in shown
