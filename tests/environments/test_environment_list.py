"""The list of environments: filter, order, columns and saved views, with the parts that the list of runs has."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.environments.fields import ENVIRONMENT_FIELDS
from backend.environments.tables import Environment
from tests.factories import make_environment, make_environment_version, make_run


@pytest.fixture
def three(session: Session) -> list[Environment]:
    """One with two versions and a run, one with a version, one that is a draft."""
    maze, nim, draft = (make_environment(session, name) for name in ("maze", "nim", "draft"))
    maze.description, nim.tags, draft.note = "Find the way out", ["games"], "to be finished"
    make_environment_version(session, maze)
    make_run(session, make_environment_version(session, maze, number=2))
    make_environment_version(session, nim)
    session.flush()
    return [maze, nim, draft]


def listed(client: TestClient, **query: Any) -> list[str]:
    return re.findall(r'<tr data-href="/environments/(\w+)"', client.get("/environments", params=query).text)


def test_it_is_filtered_by_the_fields_of_environments(viewer: TestClient, three: object) -> None:
    found = {
        "version = 2": ["maze"],
        "not has version": ["draft"],
        "has last_run and runs = 1": ["maze"],
        "tag = games or description ~ WAY": ["maze", "nim"],
        "note ~ finished": ["draft"],
        "built_in = yes": [],
        "created > 2020-01-01 and not pinned": ["draft", "maze", "nim"],
    }
    for where, names in found.items():
        assert listed(viewer, where=where) == names, where
    assert listed(viewer, where="version >= 1", tag="games") == ["nim"]
    wrong = viewer.get("/environments", params={"where": "versoin = 1"}).text
    assert "There is no field `versoin`. Did you mean" in wrong


@pytest.mark.slow
def test_every_column_is_shown_and_sorts_both_ways(viewer: TestClient, three: object) -> None:
    columns = [name for name, field in ENVIRONMENT_FIELDS.declared.items() if field.is_column]
    page = viewer.get("/environments", params={"columns": ",".join(columns)}).text
    assert "There is no column" not in page
    assert "to be finished" in page
    for name in (name for name in columns if ENVIRONMENT_FIELDS.declared[name].is_sortable):
        for sort in (name, f"-{name}"):
            first = viewer.get("/environments", params={"sort": sort, "limit": 2})
            assert 'role="alert"' not in first.text, sort
            after = re.search(r"after=([\w-]+)", first.text)
            assert after, sort
            rest = listed(viewer, sort=sort, limit=2, after=after[1])
            assert sorted(listed(viewer, sort=sort, limit=2) + rest) == ["draft", "maze", "nim"], sort
    assert listed(viewer, sort="-version") == ["maze", "nim", "draft"]
    assert listed(viewer, sort="version") == ["nim", "maze", "draft"]
    assert "There is no column `removed`." in viewer.get("/environments?columns=removed").text


def test_pinned_environments_come_first_and_a_view_is_saved(
    author: TestClient, session: Session, three: list[Environment]
) -> None:
    three[1].is_pinned = True
    session.flush()
    assert listed(author) == ["nim", "draft", "maze"]
    form = {"name": "drafts", "filter": "not has version", "columns": "owner,note", "listing": "environments"}
    address = author.post("/views", data=form).headers["location"]
    assert address.startswith("/environments?where=not+has+version")
    assert listed(author, where="not has version", columns="owner,note") == ["draft"]
    assert "drafts" in author.get("/environments").text
    assert "drafts" not in author.get("/runs").text
    assert author.post("/views", data=form | {"filter": "rewards = 1"}).status_code == 422
    assert author.post("/views", data=form | {"listing": "rollouts"}).status_code == 422
