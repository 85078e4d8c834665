"""Comments on items, mentions, and the notices that one person gets."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.notifications.tables import Notice
from backend.projects.tables import Project, ProjectMember
from backend.review.service import is_mentioned
from backend.review.tables import ReviewItem
from backend.runs.tables import Run
from backend.team.tables import Person
from tests import factories
from tests.web_fixtures import ClientFor


@pytest.fixture
def item(session: Session) -> uuid.UUID:
    run = factories.make_run(session)
    (rollout,) = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]])
    factories.make_flag(session, run, rollout, detector="a", score=0.8)
    return rollout.id


def notices(session: Session) -> list[tuple[str, uuid.UUID | None]]:
    session.expire_all()
    return [(notice.kind, notice.person_id) for notice in session.scalars(select(Notice).order_by(Notice.id))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("look, @Ann Lee!", True),
        ("@ann lee", True),
        ("@ann@example.org, please", True),
        ("@Ann Leeward", False),
        ("Ann Lee", False),
        ("@Ann", False),
        ("@Ann Lee_", False),
    ],
)
def test_a_mention_is_a_whole_name(text: str, expected: bool) -> None:
    assert is_mentioned(text, "Ann Lee", "ann@example.org") is expected


def test_who_is_mentioned_is_notified_and_nobody_else(session: Session, client_for: ClientFor, item: uuid.UUID) -> None:
    reviewer, other = client_for(Role.REVIEWER), client_for(Role.TRAINER)
    ann = factories.make_person(session, Role.REVIEWER, "Ann Lee")
    said = "@Ann Lee is this <b>a hack</b>?"
    answer = reviewer.post(f"/review/{item}/comments", data={"text": said})
    assert answer.headers["location"].endswith("#thread")
    assert notices(session) == [("mentioned", ann.id)]
    page = reviewer.get(f"/review/{item}?evidence=1").text
    assert "is this &lt;b&gt;a hack&lt;/b&gt;?" in page

    # Others neither see the notice nor get it by its id.
    notice = session.scalars(select(Notice)).one()
    assert "mentioned you" not in other.get("/notices").text
    assert other.get("/api/v1/notices").json()["items"] == []
    assert other.post(f"/notices/{notice.id}/open").status_code == 404
    assert other.post(f"/api/v1/notices/{notice.id}/read").status_code == 404
    assert other.post("/api/v1/notices/read", json={"notice": str(notice.id)}).status_code == 404


def test_a_mention_tells_nothing_to_whoever_does_not_see_the_item(
    session: Session, admin: TestClient, item: uuid.UUID
) -> None:
    project = Project(name="Secret", is_restricted=True)
    stranger, member = (factories.make_person(session, Role.AUTHOR, name) for name in ("Ann Lee", "Bo Diaz"))
    session.add(project)
    session.flush()
    session.add(ProjectMember(project_id=project.id, person_id=member.id, role=Role.REVIEWER))
    session.get_one(Run, session.get_one(ReviewItem, item).run_id).project_id = project.id
    session.flush()
    admin.post(f"/review/{item}/comments", data={"text": f"@{stranger.name} and @{member.name}"})
    assert notices(session) == [("mentioned", member.id)]


def test_the_recipient_finds_it_in_the_bell(session: Session, client_for: ClientFor, item: uuid.UUID) -> None:
    ann, reviewer = client_for(Role.TRAINER), client_for(Role.REVIEWER)
    person = session.scalars(select(Person).where(Person.role == Role.TRAINER)).one()
    reviewer.post(f"/api/v1/review/items/{item}/comments", json={"text": f"@{person.email} look"})
    assert 'id="bell" class="unread"' in ann.get("/review").text
    assert 'id="bell" class="unread"' not in reviewer.get("/review").text
    notice = session.scalars(select(Notice)).one()
    assert ann.post(f"/notices/{notice.id}/open").headers["location"] == f"/review/{item}?evidence=1#thread"
    assert ann.get("/notices?unread=true").text.count("mentioned you") == 0


def test_the_thread_is_hidden_from_whoever_reviews_blind(client_for: ClientFor, item: uuid.UUID) -> None:
    first, second = client_for(Role.REVIEWER), client_for(Role.AUTHOR)
    first.post(f"/review/{item}/comments", data={"text": "surely a hack"})
    assert "surely a hack" not in second.get(f"/review/{item}?order=suspicion").text
    assert "surely a hack" in second.get(f"/review/{item}?evidence=1").text
    second.post(f"/review/{item}", data={"verdict": "hack"})
    assert "surely a hack" in second.get(f"/review/{item}").text


def test_a_comment_is_deleted_by_its_author_or_an_administrator(client_for: ClientFor, item: uuid.UUID) -> None:
    author, other, admin = client_for(Role.REVIEWER), client_for(Role.AUTHOR), client_for(Role.ADMIN)
    address = f"/api/v1/review/items/{item}/comments"
    ids = [author.post(address, json={"text": text}).json()["id"] for text in ("one", "two")]
    assert other.delete(f"{address}/{ids[0]}").status_code == 403
    assert author.delete(f"{address}/{ids[0]}").status_code == 204
    assert author.delete(f"{address}/{ids[0]}").status_code == 404
    assert admin.delete(f"{address}/{ids[1]}").status_code == 204
    assert author.get(address).json()["items"] == []


def test_an_empty_or_endless_comment_is_refused(reviewer: TestClient, viewer: TestClient, item: uuid.UUID) -> None:
    address = f"/api/v1/review/items/{item}/comments"
    for text in ("", " \n ", "x" * 4001):
        assert reviewer.post(address, json={"text": text}).status_code == 422
    assert viewer.post(address, json={"text": "hello"}).status_code == 403
    assert reviewer.post(f"/api/v1/review/items/{uuid.uuid4()}/comments", json={"text": "hello"}).status_code == 404


def test_an_assignment_is_announced_once_and_not_to_oneself(
    session: Session, client_for: ClientFor, item: uuid.UUID
) -> None:
    reviewer = client_for(Role.REVIEWER)
    me = session.scalars(select(Person).where(Person.role == Role.REVIEWER)).one()
    other = factories.make_person(session, Role.REVIEWER, "Ann Lee")
    for person in (me, other, other):
        reviewer.post(f"/review/{item}/assign", data={"person": str(person.id)})
    assert notices(session) == [("assigned", other.id)]
    assert session.scalars(select(Notice)).one().path == f"/review/{item}"


def test_the_page_shows_what_each_verdict_means_and_causes(reviewer: TestClient, item: uuid.UUID) -> None:
    page = reviewer.get(f"/review/{item}").text
    for text in ("The reward was tricked out of the environment.", "Every later certificate replays it"):
        assert f"{text}" in page.split('class="verdicts explained"')[1].split("</div>")[0]
