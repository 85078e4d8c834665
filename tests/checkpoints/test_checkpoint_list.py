"""The list of checkpoints: filter, order, columns and saved views."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.checkpoints.fields import CHECKPOINT_FIELDS
from backend.domain.vocabulary import RunKind
from tests.checkpoints.conftest import TrainedRun
from tests.factories import make_run


def listed(client: TestClient, **query: Any) -> list[str]:
    page = client.get("/checkpoints/list", params=query).text
    return [" ".join(name.split()) for name in re.findall(r'#checkpoint-[0-9a-f-]+">([^<]+)</a>', page)]


def test_it_is_filtered_by_the_fields_of_checkpoints(session: Session, viewer: TestClient, trained: TrainedRun) -> None:
    run, saved = trained(name="older run", rewards=(0.5, 0.7))
    trained(name="newer run", steps=(), rewards=())
    saved["sft"].tags = ["warm"]
    make_run(session, run.version, run.policy, kind=RunKind.EVALUATION, checkpoint_id=saved["grpo 40"].id)
    session.flush()
    older = 'run = "older run"'
    found = {
        f"{older} and best": ["grpo 40"],
        f"{older} and heldout > 0.2 and not best": ["grpo 20"],
        "tag = warm": ["sft 100"],
        "evaluations = 1": ["grpo 40"],
        f"{older} and stage = grpo and step >= 40": ["grpo 60", "grpo 40"],
        "stored = no": [],
    }
    for where, names in found.items():
        assert listed(viewer, where=where) == names, where
    assert listed(viewer, where=older, sort="-heldout")[:2] == ["grpo 40", "grpo 20"]
    assert "There is no field" in viewer.get("/checkpoints/list?where=reward%3D1").text


@pytest.mark.slow
def test_every_column_is_shown_and_sorts_both_ways(viewer: TestClient, trained: TrainedRun) -> None:
    trained(steps=(20,), rewards=(0.5,))
    columns = [name for name, field in CHECKPOINT_FIELDS.declared.items() if field.is_column]
    page = viewer.get("/checkpoints/list", params={"columns": ",".join(columns)}).text
    assert "There is no column" not in page
    assert "0.500" in page
    for name in (name for name in columns if CHECKPOINT_FIELDS.declared[name].is_sortable):
        for sort in (name, f"-{name}"):
            first = viewer.get("/checkpoints/list", params={"sort": sort, "limit": 2})
            after = re.search(r"after=([\w-]+)", first.text)
            assert after, sort
            both = listed(viewer, sort=sort, limit=2) + listed(viewer, sort=sort, limit=2, after=after[1])
            assert sorted(both) == ["grpo 20", "sft 100", "untrained 0"], sort


def test_a_view_of_it_is_saved(viewer: TestClient, trained: TrainedRun) -> None:
    form = {"name": "best ones", "filter": "best", "sort": "-heldout", "listing": "checkpoints"}
    assert viewer.post("/views", data=form).headers["location"] == "/checkpoints/list?where=best&sort=-heldout"
    page = viewer.get("/checkpoints/list").text
    assert "best ones" in page
    assert "No checkpoints yet" in page
    assert 'href="/checkpoints/list"' in viewer.get("/checkpoints").text
