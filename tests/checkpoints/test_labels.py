"""Tags, notes and pins of checkpoints and environments."""

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.environments.tables import EnvironmentDraft
from tests.checkpoints.conftest import TrainedRun
from tests.factories import make_environment_version


def test_a_checkpoint_is_tagged_pinned_and_found(
    trainer: TestClient, author: TestClient, viewer: TestClient, trained: TrainedRun
) -> None:
    _, saved = trained(name="older run")
    trained(name="newer run")
    checkpoint = saved["grpo 20"]
    body = {"tags": ["release"], "note": "The one in the paper.", "is_pinned": True}
    assert author.patch(f"/api/v1/checkpoints/{checkpoint.id}", json=body).status_code == 403
    assert trainer.patch(f"/api/v1/checkpoints/{checkpoint.id}", json={"tags": ["x" * 10_000]}).status_code == 422
    before = viewer.get("/checkpoints").text
    assert before.index("newer run") < before.index("older run")
    changed = trainer.patch(f"/api/v1/checkpoints/{checkpoint.id}", json=body).json()
    assert {name: changed[name] for name in body} == body
    page = viewer.get("/checkpoints").text
    assert page.index("older run") < page.index("newer run")
    assert "The one in the paper." in page
    assert "newer run" not in viewer.get("/checkpoints?tag=release").text
    found = viewer.get("/api/v1/checkpoints", params={"tag": "release"}).json()["items"]
    assert [each["id"] for each in found] == [str(checkpoint.id)]
    form = {"tags": "a, b", "note": ""}
    assert trainer.post(f"/checkpoints/{checkpoint.id}/edit", data=form).status_code == 303
    assert (checkpoint.tags, checkpoint.note, checkpoint.is_pinned) == (["a", "b"], "", True)


def test_an_environment_is_tagged_pinned_and_found(author: TestClient, viewer: TestClient, session: Session) -> None:
    environments = [make_environment_version(session).environment for _ in range(2)]
    session.add_all(EnvironmentDraft(environment_id=each.id, files={}) for each in environments)
    session.flush()
    names = [each.name for each in environments]
    last = sorted(names)[-1]
    path = f"/environments/{last}/labels"
    assert viewer.patch(f"/api/v1{path}", json={"is_pinned": True}).status_code == 403
    form = {"tags": "games, <b>bold</b>", "note": "Needs a map."}
    assert author.post(f"{path}/edit", data=form).status_code == 303
    assert author.post(f"{path}/edit", data={"is_pinned": "true"}).status_code == 303
    page = viewer.get("/environments").text
    assert page.index(f"/environments/{last}") < page.index(f"/environments/{min(names)}")
    assert "&lt;b&gt;bold" in page
    assert min(names) not in viewer.get("/environments?tag=games").text
    assert "Needs a map." in viewer.get(f"/environments/{last}").text
    listed = viewer.get("/api/v1/environments", params={"tag": "games"}).json()["items"]
    assert [(each["name"], each["note"], each["is_pinned"]) for each in listed] == [(last, "Needs a map.", True)]
