"""The complete OpenEnv package: what the author wrote, and what that lacks."""

import io
import json
import zipfile

import pytest
import yaml
from fastapi.testclient import TestClient

from backend.domain.environments.manifest import read_manifest
from backend.environments.export import complete_package, for_space
from backend.environments.library import library_names, load_package
from backend.environments.tables import EnvironmentVersion
from tests.environments.packages import make_files


def complete(files: dict[str, str]) -> dict[str, str]:
    return complete_package(files, read_manifest(files["openenv.yaml"]))


def test_a_bare_package_gets_all_that_openenv_wants():
    files = complete(make_files())
    wanted = {
        "inference.py",
        "inference_words.py",
        "client.py",
        "README.md",
        "pyproject.toml",
        "server/Dockerfile",
        "server/requirements.txt",
    }
    assert wanted | {"server/requirements.txt"} <= files.keys()
    assert "class GuessEnv(GenericEnvClient)" in files["client.py"]
    assert files["README.md"].startswith("---\ntitle: Guess\nsdk: docker\napp_port: 8000\n")
    assert "# Guess" in files["README.md"]


def test_the_manifest_gets_a_validation_block_and_stays_readable():
    files = complete(make_files())
    assert files["openenv.yaml"].startswith(make_files()["openenv.yaml"])
    written = yaml.safe_load(files["openenv.yaml"])["validation"]
    assert written["capabilities"]["declared_task_count"] == {"train": 10, "heldout": 5}
    assert read_manifest(files["openenv.yaml"]).name == "guess"


@pytest.mark.parametrize("name", library_names())
def test_a_built_in_package_only_gains_files(name: str):
    before = load_package(name)
    after = complete(before)
    changed = {path for path in before if before[path] != after[path]}
    assert changed <= {"README.md", "openenv.yaml"}
    assert "inference.py" in after


def test_an_inference_of_the_authors_own_stays():
    assert complete(make_files(inference_dot_py="print(1)\n"))["inference.py"] == "print(1)\n"


def test_an_app_elsewhere_is_found_under_server_too():
    files = make_files(main_dot_py="application = object()\n")
    files["openenv.yaml"] = files["openenv.yaml"].replace("app: server.app:app", "app: main:application")
    del files["server/app.py"]
    assert "from main import application as app" in complete(files)["server/app.py"]


def test_requirements_come_from_the_pyproject():
    project = '[project]\nname = "x"\ndependencies = ["numpy>=2"]\n'
    files = complete(make_files(pyproject_dot_toml=project))
    assert files["server/requirements.txt"] == "numpy>=2\nopenenv>=0.10,<0.11\n"


def test_the_sandbox_travels_with_code_that_runs_programs():
    assert not any(path.startswith("proctor_sandbox/") for path in complete(make_files()))
    files = complete(make_files(server__run_dot_py="from proctor_sandbox import execute\n"))
    assert "proctor_sandbox/__init__.py" in files


def test_a_space_has_its_dockerfile_at_the_top():
    files = make_files()
    assert "CMD" in for_space(files, read_manifest(files["openenv.yaml"]))["Dockerfile"]


def test_the_page_and_the_api_give_the_same_package(viewer: TestClient, version: EnvironmentVersion):
    page = viewer.get("/environments/guess/versions/1/export.zip")
    told = viewer.get("/api/v1/environments/guess/versions/1/export").json()
    with zipfile.ZipFile(io.BytesIO(page.content)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == told["files"]
    assert "inference.py" in told["added"]
    assert "models.py" not in told["added"]
    assert json.dumps(told["content_hash"]) == json.dumps(version.content_hash)
