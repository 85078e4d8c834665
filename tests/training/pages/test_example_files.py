"""Uploaded conversations: taken in whole or not at all, shown, deleted and taken back."""

import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.domain.training.example_lines import MAX_LINE_BYTES
from backend.domain.vocabulary import RunKind, RunStatus
from backend.training import example_files as files
from backend.training.tables import ExampleFile
from tests.factories import make_run

API = "/api/v1/training/examples"


def line(asked: str, reply: str = "<move>4</move>", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}], **more}


def sent(*rows: Any) -> dict[str, Any]:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    return {"file": ("games.jsonl", text.encode(), "application/x-ndjson")}


def uploaded(trainer: TestClient, *rows: Any) -> dict[str, Any]:
    answer = trainer.post(API, files=sent(*rows))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_file_is_stored_as_it_was_checked(trainer: TestClient, session: Session) -> None:
    found = uploaded(trainer, line("a", reward=1.0, level=2, task="train/2"), "", line("b"), line("b"))
    assert (found["name"], found["conversations"]) == ("games.jsonl", 2)
    assert found["statistics"]["repeats"] == 1
    assert found["statistics"]["tasks_by_level"] == {"2": 1}
    with artifacts.open_file(session.get_one(ExampleFile, uuid.UUID(found["id"])).artifact) as stored:
        assert len(stored.read().splitlines()) == 2
    shown = trainer.get(f"{API}/{found['id']}").json()
    assert shown["examples"][0]["messages"] == line("a")["messages"]
    assert len(trainer.get(f"{API}/{found['id']}/file").content.splitlines()) == 2


def test_every_wrong_line_is_named_and_nothing_is_stored(trainer: TestClient, session: Session) -> None:
    answer = trainer.post(API, files=sent(line("a"), line("b", reply=""), {"mesages": []}))
    assert answer.status_code == 422
    assert "Line 2: message 2 is an empty reply." in answer.text
    assert "Line 3: the line has the unknown field 'mesages'" in answer.text
    assert "Nothing was stored." in answer.text
    assert session.query(ExampleFile).count() == 0


def test_reading_ends_after_some_wrong_lines(trainer: TestClient) -> None:
    answer = trainer.post(API, files=sent(*["{"] * 100))
    assert "Line 5" in answer.text
    assert "Line 6" not in answer.text


def test_an_empty_file_is_refused(trainer: TestClient) -> None:
    assert "contains no conversations" in trainer.post(API, files=sent("")).text


def test_too_much_is_refused(trainer: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_CONVERSATIONS", 2)
    assert "At most 2 conversations" in trainer.post(API, files=sent(*(line(str(n)) for n in range(3)))).text
    monkeypatch.setattr(files, "MAX_UPLOAD_BYTES", 50)
    assert trainer.post(API, files=sent(line("a"))).status_code == 422


def test_a_line_that_is_too_long_is_named_whatever_fills_it(trainer: TestClient) -> None:
    whole = json.dumps(line("a"))
    long = whole + " " * (MAX_LINE_BYTES + 10 - len(whole))
    answer = trainer.post(API, files=sent(line("b"), long, line("c")))
    assert "Line 2: is longer than 2 MiB." in answer.text
    fitting = whole + " " * (MAX_LINE_BYTES - len(whole))
    assert uploaded(trainer, fitting, line("c"))["conversations"] == 2


def test_the_same_file_is_not_taken_twice(trainer: TestClient) -> None:
    uploaded(trainer, line("a"))
    answer = trainer.post(API, files=sent(line("a")))
    assert answer.status_code == 409
    assert "was already uploaded" in answer.text


def test_a_deleted_file_is_hidden_and_can_be_taken_back(trainer: TestClient) -> None:
    file_id = uploaded(trainer, line("a"))["id"]
    assert trainer.delete(f"{API}/{file_id}").status_code == 204
    assert trainer.get(API).json()["items"] == []
    assert trainer.get(f"{API}/{file_id}").json()["deleted_at"]
    assert trainer.post(f"{API}/{file_id}/restore").json()["deleted_at"] is None
    assert [row["id"] for row in trainer.get(API).json()["items"]] == [file_id]


def test_what_was_deleted_long_ago_goes_for_good(trainer: TestClient, session: Session) -> None:
    file_id = uploaded(trainer, line("a"))["id"]
    row = session.get_one(ExampleFile, uuid.UUID(file_id))
    row.statistics = {**row.statistics, "deleted_at": "2020-01-01T00:00:00+00:00"}
    session.flush()
    uploaded(trainer, line("b"))
    assert trainer.get(f"{API}/{file_id}").status_code == 404
    with pytest.raises(FileNotFoundError):
        artifacts.open_file(f"lessons/{file_id}.jsonl")


def test_a_file_that_is_being_learned_from_is_not_deleted(trainer: TestClient, session: Session) -> None:
    file_id = uploaded(trainer, line("a"))["id"]
    run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, configuration={"sft": {"file": file_id}})
    assert trainer.delete(f"{API}/{file_id}").status_code == 409
    run.status = RunStatus.COMPLETED
    session.flush()
    assert run.name in trainer.get(f"/training/examples/{file_id}").text
    assert trainer.delete(f"{API}/{file_id}").status_code == 204


def test_the_pages_show_upload_and_undo(trainer: TestClient) -> None:
    assert "No uploaded conversations" in trainer.get("/training/examples").text
    answer = trainer.post("/training/examples", files=sent(line("<script>alert(1)</script>"), line("b")))
    assert answer.status_code == 303
    page = trainer.get(answer.headers["location"])
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "games.jsonl" in trainer.get("/training/examples").text
    gone = trainer.post(f"{answer.headers['location']}/delete")
    assert "Undo" in trainer.get(gone.headers["location"]).text
    assert trainer.post(f"{answer.headers['location']}/restore").status_code == 303


def test_a_refused_upload_states_why_at_the_field(trainer: TestClient) -> None:
    answer = trainer.post("/training/examples", files=sent("{"))
    assert answer.status_code == 422
    assert "Line 1: is not JSON" in answer.text


def test_uploading_needs_a_trainer(author: TestClient, viewer: TestClient) -> None:
    assert author.post(API, files=sent(line("a"))).status_code == 403
    assert viewer.get(API).status_code == 200
    assert "Upload</button>" not in viewer.get("/training/examples").text
