"""A foreign manifest in our words, and the adapter where one is needed."""

import tomllib

import pytest
import yaml

from backend.domain.environments.foreign import read_foreign
from backend.domain.environments.packages import PackageInvalid
from backend.environments.import_package import environment_name, make_ready
from tests.environments.importing.packages import door_package
from tests.environments.importing.test_read_a_foreign_package import VERIFIERS
from workers.environments.packages import requirements_of


def test_a_manifest_of_the_old_shape_is_understood():
    old = "name: doors\nversion: 0.1\ndescription: Doors.\naction: DoorAction\nobservation: DoorObservation\n"
    ready = make_ready(read_foreign(door_package(manifest=old)))
    assert ready.manifest["app"] == "server.app:app"
    assert ready.manifest["version"] == "0.1"
    assert any("action, observation" in note for note in ready.notes)
    assert any("names no `app`" in note for note in ready.notes)


def test_the_app_of_a_dockerfile_is_taken_where_the_manifest_names_none():
    files = door_package(manifest="name: doors\n") | {
        "server/Dockerfile": b'CMD ["uvicorn", "worlds.doors.server.app:app"]\n'
    }
    assert make_ready(read_foreign(files)).manifest["app"] == "worlds.doors.server.app:app"


@pytest.mark.parametrize(
    ("given", "name"), [("My Env!", "my_env"), ("2048", "env_2048"), ("a" * 60, "a" * 40), ("_x_", "x"), ("!!", "")]
)
def test_names_become_names_of_environments(given: str, name: str):
    assert environment_name(given) == name


def test_further_requirements_and_variables_are_written_into_the_package():
    ready = make_ready(read_foreign(door_package()), requires=["open_spiel>=1"], variables={"GAME": "catch"})
    assert "open_spiel>=1" in tomllib.loads(ready.files["pyproject.toml"])["project"]["dependencies"]
    assert yaml.safe_load(ready.files["openenv.yaml"])["variables"] == {"GAME": "catch"}


@pytest.mark.parametrize("line", ["-e .", "x\n--index-url=y", 'a"b', "--find-links=z"])
def test_a_requirement_cannot_be_an_option(line: str):
    with pytest.raises(PackageInvalid):
        make_ready(read_foreign(door_package()), requires=[line])


@pytest.mark.parametrize("manifest", ["- 1", "a: [", "name: '!!'\napp: server.app:app\n"])
def test_a_manifest_that_cannot_be_used_is_refused(manifest: str):
    with pytest.raises(PackageInvalid):
        make_ready(read_foreign(door_package(manifest=manifest)))


def test_a_verifiers_environment_carries_its_adapter_and_a_pin():
    ready = make_ready(read_foreign(VERIFIERS))
    assert ready.name == "my_env"
    assert ready.manifest["app"] == "proctor_adapter.app:app"
    assert ready.manifest["variables"]["VERIFIERS_MODULE"] == "my_env"
    assert "proctor_adapter/app.py" in ready.files
    assert "verifiers==0.3.1" in requirements_of(ready.files)


@pytest.mark.parametrize("line", ["x @ https://example.org/x.whl", "x @ git+https://example.org/x", "./x"])
def test_a_requirement_from_an_address_is_refused(line: str):
    project = f'[project]\nname = "x"\ndependencies = ["{line}"]\n'
    with pytest.raises(PackageInvalid):
        requirements_of({"pyproject.toml": project})


def test_openenv_from_its_repository_is_the_openenv_that_there_is():
    project = '[project]\ndependencies = ["openenv[core] @ git+https://example.org/OpenEnv.git", "numpy"]\n'
    assert requirements_of({"pyproject.toml": project}) == ("numpy", "openenv[core]")


def test_a_requirements_file_counts_where_the_project_reports_nothing():
    files = {"server/requirements.txt": "# server\nnumpy>=1  # arrays\n-r other.txt\n\nfastapi\n"}
    assert requirements_of(files) == ("fastapi", "numpy>=1")
