"""Adding, saving, renaming and deleting single files of a draft."""

import pytest
from sqlalchemy.orm import Session

from backend.environments.drafts import DraftChanged, add_file, delete_file, rename_file, save_file, text_mark
from backend.environments.queries import get_draft
from backend.environments.service import create_environment
from backend.environments.tables import Environment
from backend.errors import InvalidInput, NotFound
from tests.environments.packages import make_files

README = make_files()["README.md"]


@pytest.fixture
def environment(session: Session) -> Environment:
    return create_environment(session, None, "guess", make_files())


def files(session: Session, environment: Environment) -> dict[str, str]:
    return get_draft(session, environment).files


def test_two_tabs_may_save_two_files(session: Session, environment: Environment):
    save_file(session, None, environment, "README.md", "mine", mark=text_mark(README))
    save_file(session, None, environment, "server/__init__.py", "# theirs", mark=text_mark(""))
    assert files(session, environment)["README.md"] == "mine"
    assert files(session, environment)["server/__init__.py"] == "# theirs"


def test_the_second_save_of_one_file_is_reported(session: Session, environment: Environment):
    save_file(session, None, environment, "README.md", "first", mark=text_mark(README))
    with pytest.raises(DraftChanged, match=r"README\.md was saved"):
        save_file(session, None, environment, "README.md", "second", mark=text_mark(README))
    assert files(session, environment)["README.md"] == "first"
    save_file(session, None, environment, "README.md", "second", mark="", overwrite=True)
    assert files(session, environment)["README.md"] == "second"


def test_a_save_sent_twice_is_one_save(session: Session, environment: Environment):
    for _ in range(2):
        draft = save_file(session, None, environment, "README.md", "mine", mark=text_mark(README))
    assert draft.revision == 2


def test_a_save_of_a_deleted_file_is_reported(session: Session, environment: Environment):
    delete_file(session, None, environment, "README.md", mark=text_mark(README))
    with pytest.raises(DraftChanged, match=r"README\.md was deleted or renamed"):
        save_file(session, None, environment, "README.md", "mine", mark=text_mark(README))


def test_it_adds_an_empty_file_once(session: Session, environment: Environment):
    add_file(session, None, environment, "server/rewards.py")
    assert files(session, environment)["server/rewards.py"] == ""
    with pytest.raises(InvalidInput):
        add_file(session, None, environment, "server/rewards.py")


@pytest.mark.parametrize("path", ["../x.py", "/x", "a b", "models.py/x.py", "server", "x\n"])
def test_it_refuses_a_hostile_name(session: Session, environment: Environment, path: str):
    with pytest.raises(InvalidInput):
        add_file(session, None, environment, path)
    with pytest.raises(InvalidInput):
        rename_file(session, None, environment, "README.md", path)


def test_it_renames_and_keeps_the_order(session: Session, environment: Environment):
    rename_file(session, None, environment, "README.md", "ABOUT.md")
    assert files(session, environment)["ABOUT.md"] == README
    assert "README.md" not in files(session, environment)


def test_it_does_not_rename_over_another_file(session: Session, environment: Environment):
    with pytest.raises(InvalidInput) as caught:
        rename_file(session, None, environment, "README.md", "models.py")
    assert "new_path" in caught.value.fields


def test_the_manifest_stays(session: Session, environment: Environment):
    manifest = make_files()["openenv.yaml"]
    with pytest.raises(InvalidInput):
        rename_file(session, None, environment, "openenv.yaml", "other.yaml")
    with pytest.raises(InvalidInput):
        delete_file(session, None, environment, "openenv.yaml", mark=text_mark(manifest))


def test_it_does_not_delete_what_someone_changed(session: Session, environment: Environment):
    save_file(session, None, environment, "README.md", "new", mark=text_mark(README))
    with pytest.raises(DraftChanged, match="Nothing was deleted"):
        delete_file(session, None, environment, "README.md", mark=text_mark(README))


def test_it_states_when_the_file_is_gone(session: Session, environment: Environment):
    with pytest.raises(NotFound):
        delete_file(session, None, environment, "gone.py", mark="")
    with pytest.raises(NotFound):
        rename_file(session, None, environment, "gone.py", "new.py")
