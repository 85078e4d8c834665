"""Both branches of a training run on one chart."""

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import RunKind
from tests.factories import make_points, make_run


def test_a_branch_shows_the_curves_of_the_run_that_it_continues_from(session: Session, viewer: TestClient) -> None:
    root = make_run(session, kind=RunKind.TRAINING)
    make_points(session, root, "reward", {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.1})
    source = make_run(session, kind=RunKind.TRAINING, source_run_id=root.id, branch_step=3)
    make_points(session, source, "reward", {4: 0.4, 5: 0.5, 6: 0.2})
    branch = make_run(session, kind=RunKind.TRAINING, source_run_id=source.id, branch_step=5)
    make_points(session, branch, "reward", {6: 0.6, 7: 0.7})

    answer = viewer.get(f"/runs/{branch.id}/points.json?chart=reward").json()
    assert answer["x"] == [1, 2, 3, 4, 5, 6, 7]
    own, before = (
        next(each for each in answer["series"] if each["label"] == name) for name in ("train", "train, before")
    )
    assert own["values"] == [None] * 5 + [0.6, 0.7]
    assert before["values"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.2, None], "beyond the branching too"
    assert before["of"] == answer["series"].index(own)
    assert answer["cursor"] == "7"

    news = viewer.get(f"/runs/{branch.id}/points.json?chart=reward&after=7").json()
    assert (news["x"], news["cursor"]) == ([7], "7")
    plain = viewer.get(f"/runs/{root.id}/points.json?chart=reward").json()
    assert all("of" not in each for each in plain["series"])


def test_a_branch_without_points_waits_for_its_first_step(session: Session, viewer: TestClient) -> None:
    source = make_run(session, kind=RunKind.TRAINING)
    make_points(session, source, "reward", {1: 0.1, 2: 0.2})
    branch = make_run(session, kind=RunKind.TRAINING, source_run_id=source.id, branch_step=1)
    answer = viewer.get(f"/runs/{branch.id}/points.json?chart=reward").json()
    assert (answer["x"], answer["cursor"]) == ([1, 2], "")
