"""Creating an environment."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.environments.queries import get_draft
from backend.environments.service import NameIsTaken, create_environment
from backend.errors import InvalidInput
from backend.team.tables import AuditEvent
from tests.environments.packages import make_files
from tests.factories import make_member


def test_it_begins_with_a_draft_and_no_version(session: Session):
    author = make_member(session)
    environment = create_environment(session, author, "guess", make_files())
    draft = get_draft(session, environment)
    assert (draft.revision, draft.files) == (1, make_files())
    assert environment.description == "Guess a cell."
    [event] = session.scalars(select(AuditEvent).where(AuditEvent.person_id == author.person_id))
    assert (event.action, event.person_id) == ("environment.create", author.person_id)


def test_it_refuses_a_name_that_is_taken(session: Session):
    create_environment(session, None, "guess", make_files())
    with pytest.raises(NameIsTaken, match="guess already"):
        create_environment(session, None, "guess", make_files())


def test_it_refuses_a_word_that_is_a_page(session: Session):
    with pytest.raises(InvalidInput) as caught:
        create_environment(session, None, "new", make_files("new"))
    assert "name" in caught.value.fields


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up.py", "a//b", "a b.py", "con\x00.py", "x" * 200, "é.py", "<script>.py"]
)
def test_it_refuses_a_hostile_file_name(session: Session, path: str):
    with pytest.raises(InvalidInput, match="plain relative path"):
        create_environment(session, None, "guess", make_files() | {path: ""})


def test_it_refuses_a_huge_file(session: Session):
    with pytest.raises(InvalidInput, match=r"at most 1,000,000"):
        create_environment(session, None, "guess", make_files() | {"big.txt": "x" * 1_000_001})


def test_it_refuses_too_many_files(session: Session):
    with pytest.raises(InvalidInput, match="at most 200"):
        create_environment(session, None, "guess", make_files() | {f"f{n}.txt": "" for n in range(200)})
