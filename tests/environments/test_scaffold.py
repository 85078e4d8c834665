"""Standard files that are generated: who gets them, how an author replaces them, and what a version contains."""

import io
import zipfile

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash, pack, unpack
from backend.environments.drafts import text_mark
from backend.environments.export import complete_package
from backend.environments.library import PACKAGES, TEMPLATES, library_names, load_package, render_template
from backend.environments.queries import get_draft, get_environment, get_version
from backend.environments.scaffold import generated_files, with_generated, without_generated
from backend.environments.service import create_environment, import_builtins, import_package, publish_version
from backend.environments.tables import Environment
from tests.environments.packages import make_files

STANDARD = {
    ".dockerignore",
    "__init__.py",
    "client.py",
    "pyproject.toml",
    "server/Dockerfile",
    "server/__init__.py",
    "server/app.py",
    "server/requirements.txt",
    "server/rewards.py",
}
SHARED = {"server/submissions.py", "server/inspection.py"}
NAME = "lamp_game"
PACKAGE = render_template("single_turn", NAME)
OWN = without_generated(PACKAGE)


@pytest.fixture
def environment(session: Session) -> Environment:
    """A draft of a template."""
    return create_environment(session, None, NAME, PACKAGE)


# Which files are generated


def test_the_library_stores_no_generated_file():
    stored = [path for path in PACKAGES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    inside = {path.relative_to(PACKAGES).as_posix() for path in stored} - {"__init__.py"}
    assert [
        path for path in inside if not path.startswith("scaffold/") and path.endswith(tuple(STANDARD | SHARED))
    ] == []


@pytest.mark.parametrize("name", [*library_names(), *(f"template {each.name}" for each in TEMPLATES)])
def test_a_complete_package_is_its_own_files_and_the_generated_ones(name: str):
    is_template = name.startswith("template ")
    files = render_template(name.removeprefix("template "), NAME) if is_template else load_package(name)
    own = without_generated(files)
    assert STANDARD <= generated_files(own).keys() <= STANDARD | SHARED
    assert with_generated(own) == files
    assert generated_files(files) == {}
    assert not [
        path for path, text in files.items() if "__NAME__" in text or "__CLASS__" in text or "__TITLE__" in text
    ]


def test_a_shared_module_is_generated_only_if_the_server_imports_it():
    assert generated_files(OWN).keys() == STANDARD
    scored = OWN | {"server/scoring.py": "from .submissions import call\n"}
    assert generated_files(scored).keys() == STANDARD | {"server/submissions.py"}


def test_an_app_elsewhere_is_not_doubled():
    files = OWN | {MANIFEST_PATH: OWN[MANIFEST_PATH].replace("app: server.app:app", "app: main:app")}
    assert generated_files(files).keys() == STANDARD - {"server/app.py"}


def test_requirements_follow_a_pyproject_of_the_authors_own():
    project = '[project]\nname = "lamps"\ndependencies = ["numpy>=2"]\n'
    assert with_generated(OWN | {"pyproject.toml": project})["server/requirements.txt"] == (
        "numpy>=2\nopenenv>=0.10,<0.11\n"
    )


@pytest.mark.parametrize(
    "files",
    [
        make_files(),
        {},
        {MANIFEST_PATH: "name: [\n"},
        {**OWN, "models.py": "class Other: ...\n"},
        {**OWN, f"server/{NAME}_environment.py": "class LampGameEnvironment: ...\n"},
        {**OWN, MANIFEST_PATH: OWN[MANIFEST_PATH].replace(f"name: {NAME}", "name: ../../lamp_game")},
        {**OWN, MANIFEST_PATH: OWN[MANIFEST_PATH].replace(f"name: {NAME}", 'name: lamp_game"; import os; "')},
    ],
    ids=["another layout", "nothing", "a broken manifest", "no action", "no rewards", "a path as name", "code as name"],
)
def test_a_package_with_another_layout_stays_as_it_is(files: dict[str, str]):
    assert generated_files(files) == {}
    assert with_generated(files) == without_generated(files) == files


# Drafts and versions


def test_a_draft_stores_the_authors_files_and_publishes_all(session: Session, environment: Environment):
    draft = get_draft(session, environment)
    assert draft.files == OWN
    version = publish_version(session, None, environment, revision=1)
    assert version.files == PACKAGE
    assert version.content_hash == content_hash(PACKAGE)


def test_the_built_in_environments_keep_their_hashes(session: Session):
    assert import_builtins(session)
    assert import_builtins(session) == []
    tictactoe = get_environment(session, "tictactoe")
    assert get_version(session, tictactoe, 1).content_hash == content_hash(load_package("tictactoe"))
    assert "server/app.py" not in get_draft(session, tictactoe).files


def test_a_downloaded_version_is_complete_and_comes_back_with_the_same_hash(
    session: Session, environment: Environment, author: TestClient
):
    version = publish_version(session, None, environment, revision=1)
    archive = author.get(f"/api/v1/environments/{NAME}/versions/1/files").content
    with zipfile.ZipFile(io.BytesIO(archive)) as package:
        assert set(package.namelist()) >= STANDARD
    files = unpack(archive)
    author.put(f"/api/v1/environments/{NAME}/draft", json={"files": files})
    again = author.post(f"/api/v1/environments/{NAME}/publish", json={})
    assert (again.status_code, "has exactly this content" in again.text) == (409, True)
    assert content_hash(files) == version.content_hash


@pytest.mark.parametrize("name", library_names())
def test_a_package_that_was_packed_is_imported_as_the_same_version(session: Session, name: str):
    version = import_package(session, name, unpack(pack(load_package(name))))
    assert version is not None
    assert version.content_hash == content_hash(load_package(name))
    assert import_package(session, name, load_package(name)) is None


def test_an_export_adds_to_the_package_and_is_stable():
    exported = complete_package(PACKAGE, read_manifest(PACKAGE[MANIFEST_PATH]))
    assert {path: exported[path] for path in STANDARD} == {path: PACKAGE[path] for path in STANDARD}
    assert with_generated(exported) == exported


# In the editor and by API


def test_the_editor_lists_generated_files_apart_and_shows_them(author: TestClient, environment: Environment):
    page = author.get(f"/environments/{NAME}/edit?file=client.py").text
    assert "Generated files" in page
    assert "class LampGameEnv(EnvClient" in page
    assert "Proctor generates this file" in page
    assert "Delete this file" not in page
    assert "Proctor generates this file" not in author.get(f"/environments/{NAME}/edit?file=models.py").text


def test_an_author_replaces_a_generated_file_by_saving_it_and_deleting_brings_it_back(
    session: Session, author: TestClient, environment: Environment
):
    generated = PACKAGE["client.py"]
    form = {"path": "client.py", "mark": text_mark(generated), "revision": 1}
    author.post(f"/environments/{NAME}/edit", data={**form, "text": generated})
    draft = get_draft(session, environment)
    session.refresh(draft)
    assert (draft.revision, draft.files) == (1, OWN), "an unchanged text is not stored"

    author.post(f"/environments/{NAME}/edit", data={**form, "text": "# mine\n"})
    session.refresh(draft)
    assert draft.files == OWN | {"client.py": "# mine\n"}
    assert "Delete this file" in author.get(f"/environments/{NAME}/edit?file=client.py").text

    deleted = {"path": "client.py", "mark": text_mark("# mine\n")}
    author.post(f"/environments/{NAME}/files/delete", data=deleted)
    session.refresh(draft)
    assert draft.files == OWN
    assert "class LampGameEnv(EnvClient" in author.get(f"/environments/{NAME}/edit?file=client.py").text


def test_two_authors_who_replace_the_same_generated_file_see_each_other(
    session: Session, author: TestClient, environment: Environment
):
    form = {"path": "client.py", "mark": text_mark(PACKAGE["client.py"]), "revision": 1}
    author.post(f"/environments/{NAME}/edit", data={**form, "text": "# mine\n"})
    refused = author.post(f"/environments/{NAME}/edit", data={**form, "text": "# theirs\n"})
    assert refused.status_code == 409
    assert get_draft(session, environment).files["client.py"] == "# mine\n"


def test_a_generated_file_is_not_added_a_second_time(author: TestClient, environment: Environment):
    assert author.post(f"/environments/{NAME}/files", data={"path": "client.py"}).status_code == 422


def test_a_draft_by_api_is_complete_and_names_what_is_generated(author: TestClient, environment: Environment):
    draft = author.get(f"/api/v1/environments/{NAME}/draft").json()
    assert draft["files"] == PACKAGE
    assert set(draft["generated"]) == STANDARD
    assert draft["validation"]["content_hash"] == content_hash(PACKAGE)
    sent = author.put(f"/api/v1/environments/{NAME}/draft", json={"files": draft["files"]}).json()
    assert sent["revision"] == draft["revision"]
    bare = author.post("/api/v1/environments/validate", json={"files": OWN, "name": NAME}).json()
    assert bare == draft["validation"]


def test_a_draft_that_was_published_does_not_differ_from_its_version(
    session: Session, author: TestClient, environment: Environment
):
    publish_version(session, None, environment, revision=1)
    session.commit()
    assert author.get(f"/api/v1/environments/{NAME}").json()["is_draft_published"] is True
    assert "client.py" not in author.get(f"/environments/{NAME}/diff").text
