"""Validation names each mistake with its file and line, and runs no code."""

import threading

import pytest

from backend.domain.environments.manifest import FileProblem
from backend.environments.validation import validate_package
from tests.environments.packages import MANIFEST, make_files


def problems(files: dict[str, str], name: str = "guess") -> list[FileProblem]:
    return validate_package(files, name).problems


def bent(old: str, new: str) -> dict[str, str]:
    manifest = MANIFEST.format(name="guess")
    assert old in manifest
    return make_files() | {"openenv.yaml": manifest.replace(old, new)}


def test_it_finds_nothing_in_a_sound_package():
    validation = validate_package(make_files(), "guess")
    assert validation.is_publishable, validation.problems
    assert validation.manifest.column_names == ["win", "format"]


def test_it_never_runs_the_code(tmp_path):
    trace = tmp_path / "ran"
    code = f"open({str(trace)!r}, 'w').write('x')\napp = 1\n"
    validate_package(make_files(server__app_dot_py=code), "guess")
    assert not trace.exists()


def test_it_names_the_line_of_python_that_does_not_compile():
    [problem] = problems(make_files() | {"server/rewards.py": "a = 1\ndef broken(:\n    pass\n"})
    assert (problem.path, problem.line) == ("server/rewards.py", 2)
    assert "not Python" in problem.message


@pytest.mark.parametrize("text", ["(" * 5000, "-" * 200_000 + "1", "1" + "+1" * 200_000, "a." * 300_000 + "b", "\x00"])
def test_it_survives_python_that_is_nested_too_deeply(text: str):
    found: list[FileProblem] = []
    worker = threading.Thread(target=lambda: found.extend(problems(make_files() | {"deep.py": text})))
    worker.start()
    worker.join()
    assert "deep.py" in {problem.path for problem in found} | {problem.message.split()[0] for problem in found}


def test_it_names_an_action_field_that_the_class_lacks():
    [problem] = problems(bent("field: cell", "field: square"))
    assert (problem.path, problem.line, problem.key) == ("openenv.yaml", 9, "proctor.agent.action.field")
    assert "no field `square` (it has `cell`)" in problem.message


def test_it_names_a_template_field_that_the_observation_lacks():
    [problem] = problems(bent("{{ message }}", "{{ message }} {% for m in moves %}{{ m }}{% endfor %}"))
    assert (problem.line, problem.key) == (8, "proctor.agent.observation")
    assert "no field `moves`" in problem.message


def test_it_names_choices_that_the_observation_lacks():
    [problem] = problems(bent("choices: legal", "choices: moves"))
    assert problem.key == "proctor.agent.action.choices"


def test_it_allows_the_whole_observation_in_a_template():
    assert not problems(bent("{{ message }}", "{{ observation | tojson }} {{ range(3) | list }}"))


def test_it_reports_nothing_about_models_it_cannot_read():
    files = bent("field: cell", "field: square") | {
        "models.py": "from elsewhere import Base\nclass A(Base, Action): ...\n"
    }
    assert not [problem for problem in problems(files) if problem.key.endswith("field")]


def test_it_names_an_app_that_is_not_there():
    [problem] = problems(bent("server.app:app", "server.main:app"))
    assert "no file `server/main.py`" in problem.message
    [problem] = problems(bent("server.app:app", "server.app:application"))
    assert "`server/app.py` does not define" in problem.message


def test_it_allows_an_app_named_from_the_parent_folder():
    assert not problems(bent("server.app:app", "guess.server.app:app"))


def test_it_wants_the_name_of_the_environment():
    [problem] = problems(make_files("other"))
    assert (problem.line, problem.key) == (2, "name")
    assert "called `guess`" in problem.message


def test_it_names_a_missing_manifest():
    files = make_files()
    del files["openenv.yaml"]
    validation = validate_package(files, "guess")
    assert validation.manifest is None
    assert "`openenv.yaml` is missing" in validation.problems[0].message
