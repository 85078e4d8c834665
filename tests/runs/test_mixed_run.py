"""A training run on several environments: its pages show each rollout with the environment that it was played in."""

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from backend.domain.vocabulary import Phase, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.results.comparison import compare
from backend.results.scores import side_of
from backend.rollouts.tables import Rollout
from backend.runs.queries import get_run
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_group, make_rollout, make_run, make_step, make_task

OTHERS = {"solved": 2.0, "format": 0.5}


@pytest.fixture
def other(session: Session) -> EnvironmentVersion:
    return make_environment_version(session, weights=OTHERS)


@pytest.fixture
def run(session: Session, other: EnvironmentVersion) -> Run:
    return mixed_run(session, other)


def mixed_run(session: Session, other: EnvironmentVersion, like: Run | None = None) -> Run:
    """The columns of both: win, format and invalid_move, then what the other adds."""
    return make_run(
        session,
        like.version if like else None,
        kind=RunKind.TRAINING,
        columns=["win", "format", "invalid_move", "solved"],
        weights=[1.0, 0.2, -0.1, 2.0],
        configuration={"mix": [f"{other.environment.name}@1=0.5"]},
    )


def own_rollout(session: Session, run: Run, index: int = 0, win: float = 1.0) -> Rollout:
    group = make_group(session, run, index=index, phase=Phase.HELDOUT, step=0)
    return make_rollout(session, run, group, [win, 1.0, 0.0, 0.0], reward=win + 0.2)


def foreign_rollout(session: Session, run: Run, other: EnvironmentVersion, index: int = 0) -> Rollout:
    """On the task of the same split, number and seed, in the other environment."""
    group = make_group(session, run, index=1000 + index, phase=Phase.HELDOUT, step=0)
    group.task = make_task(session, other.id, group.task.split, index)
    group.task_id = group.task.id
    steps = [make_step("<move>4</move>", {"solved": 1.0, "format": 1.0})]
    return make_rollout(session, run, group, [0.0, 1.0, 0.0, 1.0], reward=2.5, steps=steps)


def test_a_rollouts_page_has_the_environment_and_the_weights_of_its_task(
    session: Session, viewer: TestClient, run: Run, other: EnvironmentVersion
) -> None:
    rollout = foreign_rollout(session, run, other)
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert f"/environments/{other.environment.name}/versions/1" in html
    assert "× 0.50" in html
    assert "× 0.20" not in html
    assert "invalid_move" not in html
    own = viewer.get(f"/rollouts/{own_rollout(session, run).id}").text
    assert f"/environments/{run.version.environment.name}/versions/1" in own
    assert "× 0.20" in own


def test_lists_groups_and_filters_take_both(
    session: Session, viewer: TestClient, run: Run, other: EnvironmentVersion
) -> None:
    own_rollout(session, run)
    foreign_rollout(session, run, other)
    for address in ("", "/rollouts", "/rollouts?where=solved = 1", "/groups", "/configuration"):
        assert viewer.get(f"/runs/{run.id}{address}").status_code == 200
    found = viewer.get("/api/v1/rollouts", params={"run_id": str(run.id), "where": "solved = 1"}).json()
    assert len(found["items"]) == 1


def test_rollouts_can_be_requested_by_environment(
    session: Session, viewer: TestClient, run: Run, other: EnvironmentVersion
) -> None:
    own, foreign = own_rollout(session, run), foreign_rollout(session, run, other)
    for version, rollout in ((run.version, own), (other, foreign)):
        asked = {"run_id": str(run.id), "where": f"environment = {version.environment.name}"}
        found = viewer.get("/api/v1/rollouts", params=asked).json()
        assert [item["id"] for item in found["items"]] == [str(rollout.id)]
        assert found["items"][0]["version_id"] == str(version.id)


def test_figures_are_reported_by_environment_and_its_levels(
    session: Session, viewer: TestClient, run: Run, other: EnvironmentVersion
) -> None:
    for index in range(4):
        own_rollout(session, run, index=index, win=float(index % 2))
        foreign_rollout(session, run, other, index=index)
    found = viewer.get(f"/api/v1/runs/{run.id}/figures").json()
    assert found["levels"] == []
    own, foreign = found["environments"]
    assert [each["name"] for each in (own, foreign)] == [run.version.environment.name, other.environment.name]
    assert {each["name"]: (each["weight"], each["mean"]) for each in foreign["columns"]} == {
        "reward": (None, 2.5),
        "format": (0.5, 1.0),
        "solved": (2.0, 1.0),
    }
    assert [each["reward"]["mean"] for each in own["levels"]] == pytest.approx([0.2, 1.2, 0.2, 1.2])
    assert [each["success"]["mean"] for each in own["levels"]] == [0, 1, 0, 1]
    assert (own["success"]["column"], foreign["success"]["column"]) == ("win", "solved")
    assert (own["success"]["rate"]["mean"], foreign["success"]["rate"]["mean"]) == (0.5, 1.0)
    assert (found["success"]["column"], found["success"]["rate"]["mean"]) == ("win", 0.5)
    columns = {each["name"]: each for each in found["columns"]}
    assert (columns["solved"]["mean"], columns["solved"]["tasks"]) == (1.0, 4)
    assert (columns["win"]["mean"], columns["reward"]["tasks"]) == (0.5, 8)
    html = viewer.get(f"/runs/{run.id}").text
    assert "By environment" in html
    assert f"and+environment+%3D+{other.environment.name}+and+level+%3D+1" in html


def test_tasks_of_different_environments_are_never_compared(
    session: Session, run: Run, other: EnvironmentVersion
) -> None:
    second = mixed_run(session, other, like=run)
    own_rollout(session, run)
    foreign_rollout(session, run, other)
    own_rollout(session, second, win=0.0)
    found = compare(session, [side_of(session, get_run(session, each.id)) for each in (run, second)])
    assert [key.environment for key in found.shared] == [run.version.environment_id]


def test_a_run_on_several_environments_is_not_scored_again(
    session: Session, author: TestClient, run: Run, other: EnvironmentVersion
) -> None:
    own_rollout(session, run)
    asked = {"run_ids": [str(run.id)], "weights": {"win": 2.0}}
    answer = author.post("/api/v1/rescores", json=asked)
    assert answer.status_code == 422
    assert "used several environments" in answer.text
