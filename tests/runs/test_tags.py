"""Names, tags and notes that people give runs."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from tests.factories import make_run


def test_a_tag_is_shown_and_finds_its_runs(author: TestClient, viewer: TestClient, session: Session) -> None:
    run, other = make_run(session, name="tagged"), make_run(session, name="without")
    form = {"name": "renamed", "tags": "paper v2,  seed 3, paper v2", "note": "Use this one."}
    assert author.post(f"/runs/{run.id}/edit", data=form).status_code == 303
    assert (run.name, run.tags, run.note) == ("renamed", ["paper v2", "seed 3"], "Use this one.")
    assert "Use this one." in viewer.get(f"/runs/{run.id}/configuration").text
    listed = viewer.get("/runs?tag=paper+v2").text
    assert "renamed" in listed
    assert other.name not in listed
    found = viewer.get("/api/v1/runs", params={"tag": "seed 3"}).json()["items"]
    assert [each["id"] for each in found] == [str(run.id)]
    assert viewer.patch(f"/api/v1/runs/{run.id}", json={"tags": []}).status_code == 403
    assert author.patch(f"/api/v1/runs/{run.id}", json={"tags": []}).json()["tags"] == []
    assert run.note == "Use this one."


def test_selected_runs_are_tagged_and_stay_selected(author: TestClient, session: Session) -> None:
    first, second = make_run(session, tags=["old"]), make_run(session)
    chosen = {"run": [str(first.id), str(second.id)], "query": "kind=evaluation"}
    answer = author.post("/runs/bulk", data=chosen | {"choice": "tag", "tag": "paper, new"})
    assert answer.status_code == 303, answer.text
    assert (first.tags, second.tags) == (["old", "paper", "new"], ["paper", "new"])
    address = answer.headers["location"]
    assert address.startswith("/runs?kind=evaluation&selected=")
    assert author.get(address).text.count(" checked></label>") == 2
    assert author.post("/runs/bulk", data=chosen | {"choice": "untag", "tag": "old"}).status_code == 303
    assert first.tags == ["paper", "new"]
    compared = author.post("/runs/bulk", data=chosen | {"choice": "compare"}).headers["location"]
    assert compared == f"/compare?run={first.id}&run={second.id}"
    assert author.post("/runs/bulk", data=chosen | {"choice": "tag"}).status_code == 422
    assert author.post("/runs/bulk", data={"choice": "stop"}).status_code == 422
    missing = author.post("/api/v1/runs/tags", json={"runs": [str(first.id), str(uuid.uuid4())], "add": ["x"]})
    assert missing.status_code == 404
    assert "x" not in first.tags


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["x" * 10_000], "at most 64 characters; xxxxxxxxxxxxxxxxxxxx… has 10,000"),
        ([str(number) for number in range(21)], "at most 20 tags; these are 21"),
    ],
    ids=["long", "many"],
)
def test_bad_tags_are_clear_errors(author: TestClient, session: Session, tags: list[str], message: str) -> None:
    run = make_run(session)
    answer = author.patch(f"/api/v1/runs/{run.id}", json={"tags": tags})
    assert answer.status_code == 422
    assert message in answer.text
    assert run.tags == []
