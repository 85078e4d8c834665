"""The environments that come with Proctor."""

import pytest
from sqlalchemy.orm import Session

from backend.environments.drafts import save_draft
from backend.environments.library import library_names
from backend.environments.queries import get_draft, get_environment, versions_of
from backend.environments.service import import_builtins, import_package
from tests.environments.packages import make_files


@pytest.mark.slow
def test_it_publishes_each_once(session: Session):
    first = import_builtins(session)
    assert first == [f"{name} v1" for name in library_names()]
    assert first
    assert import_builtins(session) == []


def test_it_publishes_a_new_version_when_the_content_changed(session: Session):
    import_package(session, "guess", make_files())
    changed = make_files() | {"README.md": "new"}
    assert import_package(session, "guess", changed).number == 2
    environment = get_environment(session, "guess")
    assert environment.is_built_in
    assert get_draft(session, environment).files == changed
    assert [row.number for row in versions_of(session, environment)] == [2, 1]


def test_it_leaves_a_draft_that_people_changed(session: Session):
    import_package(session, "guess", make_files())
    environment = get_environment(session, "guess")
    mine = make_files() | {"README.md": "mine"}
    save_draft(session, None, environment, mine, 1)
    import_package(session, "guess", make_files() | {"README.md": "theirs"})
    assert get_draft(session, environment).files == mine
