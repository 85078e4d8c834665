"""The project that a member works in, and `project` of operations, narrow every list."""

import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.projects.tables import Project
from tests.factories import make_checkpoint, make_environment, make_environment_version, make_policy, make_run


@pytest.fixture
def both(session: Session) -> tuple[str, str]:
    """Two projects, each with an environment, a policy, an evaluation and a training run with a checkpoint."""
    names = "inside", "outside"
    for name in names:
        project = Project(name=f"project {name}")
        session.add(project)
        session.flush()
        environment = make_environment(session, name=f"environment_{name}")
        environment.project_id = project.id
        version = make_environment_version(session, environment)
        policy = make_policy(session, name=f"policy {name}", kind=PolicyKind.LOCAL)
        policy.project_id = project.id
        session.flush()
        make_run(session, version, policy, name=f"evaluation {name}", status=RunStatus.RUNNING, project_id=project.id)
        run = make_run(session, version, policy, name=f"training {name}", kind=RunKind.TRAINING, project_id=project.id)
        make_checkpoint(session, policy, run)
    return names


PAGES = ("/", "/runs", "/training", "/environments", "/policies", "/checkpoints", "/leaderboards")


@pytest.mark.parametrize("path", PAGES)
def test_pages_show_what_belongs_to_the_chosen_project(
    viewer: TestClient, session: Session, both: tuple[str, str], path: str
) -> None:
    inside, outside = both
    shown = viewer.get(path).text
    assert inside in shown
    assert outside in shown
    project = session.query(Project).filter_by(name=f"project {inside}").one()
    viewer.post("/projects/choose", data={"project": str(project.id)})
    chosen = re.sub("<option.*?</option>", "", viewer.get(path).text)
    assert inside in chosen
    assert outside not in chosen


@pytest.mark.parametrize("path", ["runs", "environments", "policies", "checkpoints", "checkpoints/tree"])
def test_operations_list_a_project_by_its_name(viewer: TestClient, both: tuple[str, str], path: str) -> None:
    inside, outside = both
    answer = viewer.get(f"/api/v1/{path}", params={"project": f"project {inside}"})
    assert answer.status_code == 200, answer.text
    assert inside in answer.text
    assert outside not in answer.text
    assert viewer.get(f"/api/v1/{path}", params={"project": "nowhere"}).status_code == 404


def test_the_review_queue_takes_a_project(viewer: TestClient, both: tuple[str, str]) -> None:
    assert viewer.get("/api/v1/review/items", params={"project": f"project {both[0]}"}).json()["items"] == []
    assert viewer.get("/api/v1/review/items", params={"project": "nowhere"}).status_code == 404
