"""Read-only links: who creates them, what they show, and when they stop."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from backend.core.only_rows import only_rows
from backend.domain.vocabulary import Role
from backend.errors import NotAllowed
from backend.projects.tables import Project
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.shares.schemas import SharedItem
from backend.shares.subjects import find_subject
from backend.shares.tables import Share
from backend.team.tables import AuditEvent, Person
from backend.web.identity import hash_secret
from tests.factories import make_environment_version, make_policy, make_rollouts, make_run, random_rows
from tests.shares.documents import link_to, make_pair, make_training, refuse_anything_active

GONE = "This link is not available."


@pytest.mark.parametrize("kind", ["run", "comparison", "environment", "leaderboard", "safeguards", "training"])
def test_a_link_shows_the_item_to_a_signed_out_visitor(
    session: Session, author: TestClient, stranger: TestClient, kind: str
) -> None:
    if kind == "training":
        run = make_training(session)
        path = link_to(author, "run", run.id)
    else:
        before, after = make_pair(session)
        items = {"comparison": [before.id, after.id], "run": [after.id], "safeguards": [after.id]}
        path = link_to(author, kind, *items.get(kind, [after.version.environment.name]))
    answer = stranger.get(path)
    assert answer.status_code == 200, answer.text[:300]
    refuse_anything_active(answer.text)
    assert "Read-only, shared by Author until" in answer.text
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-robots-tag"] == "noindex, nofollow"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "set-cookie" not in answer.headers


def test_the_secret_is_stored_only_as_a_hash_and_uses_are_listed(
    session: Session, author: TestClient, stranger: TestClient
) -> None:
    run, _ = make_pair(session)
    path = link_to(author, "run", run.id, days=3)
    secret = path.rsplit("/", 1)[1]
    assert session.scalar(select(Share.token_hash)) == hash_secret(secret)
    stranger.get(path)
    listed = author.get("/api/v1/shares").text
    assert secret not in listed
    (item,) = author.get("/api/v1/shares").json()["items"]
    assert (item["creator"], item["state"], item["views"]) == ("Author", "active", 1)
    assert item["used_at"] is not None
    lifetime = datetime.fromisoformat(item["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=2.9) < lifetime < timedelta(days=3)
    events = session.scalars(select(AuditEvent).where(AuditEvent.action == "share.create")).all()
    assert [secret in str(event.detail) for event in events] == [False]


@pytest.mark.slow
def test_a_link_that_ended_answers_like_one_that_never_was(
    session: Session, author: TestClient, stranger: TestClient
) -> None:
    unknown = stranger.get("/shared/never-was")
    assert unknown.status_code == 404
    assert GONE in unknown.text
    run, other = make_pair(session)
    run_id, other_id = run.id, other.id
    paths = {name: link_to(author, "run", run_id) for name in ("expired", "revoked", "disabled", "demoted", "deleted")}
    by_hash = {share.token_hash: share.id for share in session.scalars(select(Share))}
    ids = {name: by_hash[hash_secret(path.removeprefix("/shared/"))] for name, path in paths.items()}
    past = datetime.now(UTC) - timedelta(seconds=1)
    session.execute(update(Share).where(Share.id == ids["expired"]).values(expires_at=past))
    assert author.delete(f"/api/v1/shares/{ids['revoked']}").status_code == 200
    for name in ("expired", "revoked"):
        answer = stranger.get(paths[name])
        assert (answer.status_code, answer.text) == (404, unknown.text), name
    creator = select(Share.created_by).where(Share.id == ids["disabled"]).scalar_subquery()
    for change, back in (
        ({"disabled_at": past}, {"disabled_at": None}),
        ({"role": Role.VIEWER}, {"role": Role.AUTHOR}),
    ):
        session.execute(update(Person).where(Person.id == creator).values(change))
        assert stranger.get(paths["disabled"]).text == unknown.text, change
        session.execute(update(Person).where(Person.id == creator).values(back))
        assert stranger.get(paths["disabled"]).status_code == 200
    pair = link_to(author, "comparison", run_id, other_id)
    session.execute(delete(Rollout).where(Rollout.run_id == run_id))
    session.execute(delete(Run).where(Run.id == run_id))
    session.expunge_all()
    for path in (paths["deleted"], pair):
        assert stranger.get(path).text == unknown.text


def test_a_link_stops_when_its_creator_no_longer_sees_the_item(
    session: Session, author: TestClient, stranger: TestClient
) -> None:
    run, _ = make_pair(session)
    run_id = run.id
    path = link_to(author, "run", run_id)
    project = Project(name="Secret", is_restricted=True)
    session.add(project)
    session.flush()
    session.execute(update(Run).where(Run.id == run_id).values(project_id=project.id))
    session.expunge_all()
    answer = stranger.get(path)
    assert (answer.status_code, GONE in answer.text) == (404, True)
    assert author.get("/api/v1/shares").json()["items"] == []
    assert author.post("/api/v1/shares", json={"kind": "run", "item": [str(run_id)]}).status_code == 404


def test_a_shared_session_reads_nothing_else_and_changes_nothing(session: Session) -> None:
    shared, other = make_pair(session)
    other_id, shared_id = other.id, shared.id
    foreign = make_run(session, make_environment_version(session), make_policy(session))
    make_rollouts(session, foreign, random_rows(2))
    everything = session.scalars(select(Rollout.run_id).distinct()).all()
    assert len(everything) == 3
    subject = find_subject(session, SharedItem(kind="run", item=[str(shared_id)]))
    with only_rows(session, subject.rows):
        assert session.scalars(select(Run.id)).all() == [shared_id]
        assert session.scalars(select(Rollout.run_id).distinct()).all() == [shared_id]
        assert session.get(Run, other_id) is None
        with pytest.raises(NotAllowed):
            session.execute(update(Run).values(name="x"))
        with pytest.raises(NotAllowed):
            session.execute(delete(Rollout))
        run = session.get(Run, shared_id)
        assert run
        run.name = "changed"
        with pytest.raises(NotAllowed):
            session.flush()
    assert session.scalar(select(Run.name).where(Run.id == shared_id)) == "base model"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_link_takes_no_changes(session: Session, author: TestClient, stranger: TestClient, method: str) -> None:
    run, _ = make_pair(session)
    path = link_to(author, "run", run.id)
    assert stranger.request(method, path).status_code == 405
    secret = path.rsplit("/", 1)[1]
    for address in (f"/runs/{run.id}", f"/api/v1/runs/{run.id}", "/shares"):
        headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json"}
        assert stranger.get(address, headers=headers).status_code == 401


def test_guesses_and_views_are_limited(session: Session, author: TestClient, stranger: TestClient) -> None:
    run, _ = make_pair(session)
    path = link_to(author, "safeguards", run.id)
    answers = [stranger.get(f"/shared/guess-{number}").status_code for number in range(61)]
    assert set(answers[:60]) == {404}
    assert answers[60] == 429
    refused = stranger.get(path)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert "noindex" in refused.headers["x-robots-tag"]


@pytest.mark.parametrize(
    ("kind", "items", "status"),
    [
        ("run", [str(uuid.uuid4())], 404),
        ("run", ["a", "b"], 422),
        ("comparison", ["{run}"], 422),
        ("environment", ["no_such"], 404),
        ("leaderboard", ["x" * 500], 422),
        ("run", [], 422),
    ],
)
def test_what_cannot_be_shared_is_refused(
    session: Session, author: TestClient, kind: str, items: list[str], status: int
) -> None:
    run, _ = make_pair(session)
    sent = [item.format(run=run.id) for item in items]
    answer = author.post("/api/v1/shares", json={"kind": kind, "item": sent})
    assert answer.status_code == status, answer.text


def test_only_authors_share_and_only_the_creator_or_an_administrator_revokes(
    app: FastAPI, session: Session, author: TestClient, viewer: TestClient, trainer: TestClient, admin: TestClient
) -> None:
    run, _ = make_pair(session)
    run_id = run.id
    assert viewer.post("/api/v1/shares", json={"kind": "run", "item": [str(run_id)]}).status_code == 403
    link_to(author, "run", run_id)
    share_id = session.scalar(select(Share.id))
    assert trainer.delete(f"/api/v1/shares/{share_id}").status_code == 403
    assert admin.post(f"/shares/{share_id}/delete").status_code == 303
    assert author.get("/api/v1/shares", params={"active": "true"}).json()["items"] == []
    assert "revoked" in author.get("/shares").text


def test_the_page_creates_a_link_that_it_shows_once(session: Session, author: TestClient, viewer: TestClient) -> None:
    run, _ = make_pair(session)
    run_id = run.id
    address = f"/shares?kind=run&item={run_id}"
    assert f'href="{address.replace("&", "&amp;")}"' in author.get(f"/runs/{run_id}").text
    assert "Create link" in author.get(address).text
    for query in (f"{address}&version=0", f"/shares?kind=run&item={'x' * 500}", "/shares?kind=x"):
        assert author.get(query).status_code == 422
    assert "Create link" not in viewer.get(address).text
    made = author.post("/shares", data={"kind": "run", "item": str(run_id), "days": "1"})
    assert made.status_code == 200, made.text[:500]
    assert "/shared/" in made.text
    assert "/shared/" not in author.get("/shares").text
