"""Publishing: immutable, numbered without gaps, never the same content twice."""

import threading

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.environments.packages import content_hash
from backend.environments.drafts import DraftChanged, save_draft
from backend.environments.queries import get_environment, get_version
from backend.environments.service import (
    NothingToPublish,
    PackageHasProblems,
    create_environment,
    publish_version,
)
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict
from tests.environments.packages import make_files
from tests.factories import Member, make_member, make_person


def test_it_makes_version_1_of_the_draft(session: Session):
    author = make_member(session)
    environment = create_environment(session, author, "guess", make_files())
    version = publish_version(session, author, environment, notes=" First. ", revision=1)
    assert (version.number, version.content_hash, version.notes) == (1, content_hash(make_files()), "First.")
    assert version.manifest["proctor"]["rewards"][0]["name"] == "win"


def test_it_refuses_the_same_content_again_and_names_who_published_it(session: Session):
    ada = make_person(session, name="Ada")
    environment = create_environment(session, None, "guess", make_files())
    publish_version(session, Member(ada.id, ada.role), environment, revision=1)
    with pytest.raises(NothingToPublish, match="Version 1, published by Ada"):
        publish_version(session, None, environment, revision=1)


def test_it_refuses_problems_and_names_the_first(session: Session):
    broken = make_files() | {"server/app.py": "app = (\n"}
    environment = create_environment(session, None, "guess", broken)
    with pytest.raises(PackageHasProblems, match=r"server/app\.py line 1: not Python"):
        publish_version(session, None, environment, revision=1)


def test_it_refuses_to_publish_what_the_publisher_did_not_see(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    save_draft(session, None, environment, make_files() | {"README.md": "new"}, 1)
    with pytest.raises(DraftChanged, match="at revision 2, you saw 1"):
        publish_version(session, None, environment, revision=1)


@pytest.mark.parametrize("change", ["notes = 'other'", "files = '{}'", "number = 7", "content_hash = 'x'"])
def test_a_published_version_never_changes(session: Session, change: str):
    environment = create_environment(session, None, "guess", make_files())
    publish_version(session, None, environment, revision=1)
    with pytest.raises(DBAPIError, match="never changes"), session.begin_nested():
        session.execute(text(f"UPDATE environment_versions SET {change}"))


def test_a_later_draft_leaves_the_version_as_it_was(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    publish_version(session, None, environment, revision=1)
    save_draft(session, None, environment, make_files() | {"README.md": "new"}, 1)
    publish_version(session, None, environment, revision=2)
    session.expire_all()
    assert get_version(session, environment, 1, with_files=True).files == make_files()
    assert get_version(session, environment).number == 2


@pytest.fixture
def committed(committed_database: str) -> str:
    """An environment that other connections see."""
    name = "two_publishers"
    with transaction() as session:
        create_environment(session, None, name, make_files(name))
    return name


def test_of_two_people_publishing_at_once_one_is_reported(committed: str):
    ready = threading.Barrier(2)
    outcomes: list[str] = []

    def publish() -> None:
        with transaction() as session:
            environment = get_environment(session, committed)
            ready.wait()
            try:
                outcomes.append(f"version {publish_version(session, None, environment, revision=1).number}")
            except Conflict as error:
                outcomes.append(error.message)

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Version 1, has exactly this content. Nothing was published.", "version 1"]


def test_many_saving_and_publishing_at_once_get_numbers_without_gaps(committed: str):
    def edit_and_publish(who: int) -> None:
        for _ in range(50):
            try:
                with transaction() as session:
                    environment = get_environment(session, committed)
                    files = make_files(committed) | {"README.md": f"{who}\n"}
                    draft = save_draft(session, None, environment, files, revision=published(session) + 1)
                    publish_version(session, None, environment, revision=draft.revision)
                return
            except Conflict:
                continue

    def published(session: Session) -> int:
        return len(
            session.scalars(select(EnvironmentVersion.id).join(Environment).where(Environment.name == committed)).all()
        )

    threads = [threading.Thread(target=edit_and_publish, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with transaction() as session:
        environment = get_environment(session, committed)
        rows = session.scalars(
            select(EnvironmentVersion.number)
            .where(EnvironmentVersion.environment_id == environment.id)
            .order_by(EnvironmentVersion.number)
        ).all()
    assert rows == [1, 2, 3, 4]
