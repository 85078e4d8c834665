"""The built-in packages and the templates as data: complete and valid."""

from typing import get_type_hints

import pytest

from backend.cli import environments
from backend.domain.environments.fixtures import read_fixtures
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import check_files
from backend.environments.library import TEMPLATES, library_names, load_package, render_template
from backend.environments.validation import validate_package

NEEDED = {
    "openenv.yaml",
    "README.md",
    "__init__.py",
    "client.py",
    "models.py",
    "pyproject.toml",
    "server/Dockerfile",
    "server/__init__.py",
    "server/app.py",
    "server/requirements.txt",
    "server/rewards.py",
}


def test_it_lists_the_built_in_environments():
    assert set(library_names()) >= {
        "arithmetic_ladder",
        "connect_four",
        "double_check",
        "number_guess",
        "reverse_text",
        "silver_words",
        "sloppy_guess",
        "support_triage",
        "tictactoe",
        "wordle",
    }


@pytest.mark.parametrize("name", library_names())
def test_a_package_is_complete_and_publishable(name: str):
    files = load_package(name)
    check_files(files)
    assert files.keys() >= NEEDED | {f"server/{name}_environment.py"}
    assert read_manifest(files["openenv.yaml"]).name == name
    assert validate_package(files, name).is_publishable


@pytest.mark.parametrize("name", library_names())
def test_every_declared_column_is_in_the_readme(name: str):
    files = load_package(name)
    for column in read_manifest(files["openenv.yaml"]).columns:
        assert f"| `{column.name}` | {column.weight} |" in files["README.md"]


@pytest.mark.parametrize("template", [template.name for template in TEMPLATES])
def test_a_template_becomes_a_publishable_package(template: str):
    files = render_template(template, "my_new_game")
    assert files.keys() >= NEEDED | {"server/my_new_game_environment.py"}
    assert validate_package(files, "my_new_game").is_publishable
    assert not [path for path, text in files.items() if "__NAME__" in path + text or "__CLASS__" in text]
    assert "class MyNewGameEnvironment(RewardedEnvironment)" in files["server/my_new_game_environment.py"]


@pytest.mark.parametrize("name", [*library_names(), *(f"template {template.name}" for template in TEMPLATES)])
def test_a_package_has_fixtures_that_its_manifest_understands(name: str):
    is_template = name.startswith("template ")
    files = render_template(name.removeprefix("template "), "fresh") if is_template else load_package(name)
    manifest = read_manifest(files["openenv.yaml"])
    fixtures, problems = read_fixtures(files, manifest)
    assert problems == []
    assert len(fixtures) >= 3
    assert {"gold", "wrong"} <= set(manifest.proctor.scripts)


def test_the_command_line_names_every_template():
    option = get_type_hints(environments.init, include_extras=True)["template"].__metadata__[0]
    assert option.help == f"{', '.join(t.name for t in TEMPLATES[:-1])} or {TEMPLATES[-1].name}."


def test_unknown_names_are_refused():
    with pytest.raises(KeyError):
        load_package("../secrets")
    with pytest.raises(KeyError):
        render_template("no_such_template", "game")
