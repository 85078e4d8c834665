"""Commands that come from the API's description, against a server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from backend.cli import derived
from backend.policies.tables import Policy
from backend.web.api_description import describe
from proctor import Client


@pytest.fixture
def program(served: str, token: str, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Iterator[typer.Typer]:
    program, labels = typer.Typer(), typer.Typer()
    program.add_typer(labels, name="label")
    document = describe(app)
    paths = {path: methods for path, methods in document["paths"].items() if "label" in path}
    derived.add_commands(program, {"label": labels}, document | {"paths": paths})
    with Client(served, token) as client:
        monkeypatch.setattr(derived, "connect", lambda: client)
        yield program


def run(program: typer.Typer, *arguments: str) -> Result:
    return CliRunner().invoke(program, ["label", *arguments])


def test_a_command_takes_rows_as_arguments_and_fields_as_options(program: typer.Typer, policy: Policy) -> None:
    done = run(program, "create", "tidy", "good", "--weight", "0.5", "--shared")
    assert (done.exit_code, done.output) == (0, "The label good was created.\n")
    assert policy.description == "good"


def test_json_is_the_answer_itself(program: typer.Typer, policy: Policy) -> None:
    done = run(program, "create", "tidy", "good", "--json")
    assert json.loads(done.output) == {"id": str(policy.id), "name": "good", "weight": 1.0}


def test_a_change_that_returns_a_list_is_sent_once(program: typer.Typer, policy: Policy) -> None:
    done = run(program, "copy", "tidy", "--json")
    assert [label["name"] for label in json.loads(done.output)["items"]] == ["copy"]
    assert policy.description == "copied"


def test_a_list_is_a_table_of_the_columns_that_the_response_names(program: typer.Typer) -> None:
    done = run(program, "list", "--at-least", "1")
    assert [line.split() for line in done.output.splitlines()] == [
        ["name", "weight"],
        ["label2", "1"],
        ["label3", "1.5"],
    ]
    assert len(json.loads(run(program, "list", "--limit", "2", "--json").output)) == 2


def test_help_shows_descriptions_and_limits(program: typer.Typer) -> None:
    text = " ".join(run(program, "create", "--help").output.split())
    assert "Create a label." in text
    assert "Name or id of a policy." in text
    assert "Its weight." in text
    assert "0<=x<=2" in text.replace(" ", "") or "0.0<=x<=2.0" in text.replace(" ", "")
    assert "--shared" in text


def test_wrong_usage_ends_with_2_and_calls_nothing(program: typer.Typer, policy: Policy) -> None:
    assert run(program, "create", "tidy").exit_code == 2
    assert run(program, "create", "tidy", "good", "--weight", "7").exit_code == 2
    assert policy.description == ""


def test_deleting_answers_nothing(program: typer.Typer, policy: Policy, token: str) -> None:
    done = run(program, "delete", "tidy", "3")
    assert done.exit_code == 1  # a trainer's token, and only an administrator may
    assert "needs the role admin" in str(done.exception)


def test_a_job_that_is_not_waited_for_is_shown(program: typer.Typer, policy: Policy) -> None:
    done = run(program, "run", "tidy", "--no-wait")
    assert done.exit_code == 0
    assert "queued" in done.output


def test_a_file_is_downloaded_and_uploaded(program: typer.Typer, tmp_path: Path) -> None:
    assert run(program, "export", "--out", str(tmp_path)).output.endswith("28 bytes\n")
    file = tmp_path / "labels.txt"
    assert file.read_text() == "label0\nlabel1\nlabel2\nlabel3\n"
    done = run(program, "import", str(file), "--separator", "1", "--json")
    assert json.loads(done.output)["name"] == "label0\nlabel"
    assert [each.name for each in tmp_path.iterdir()] == ["labels.txt"]
