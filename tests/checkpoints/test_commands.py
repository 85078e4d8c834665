"""`proctor checkpoints`: list, show, keep and prune, as text and as JSON, with their exit codes."""

import json

import pytest
import typer
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from typer.testing import CliRunner, Result

from backend.cli import checkpoints, derived
from backend.domain.vocabulary import Role
from backend.web.api_description import describe
from proctor import Client, ProctorError
from tests.checkpoints.conftest import TrainedRun
from tests.web_fixtures import ClientFor


@pytest.fixture
def proctor(app: FastAPI, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch):
    """`proctor("list", "--json")` as a trainer; requests reach the application without a network."""
    trainer = client_for(Role.TRAINER)
    client = Client("http://testserver", "unused")
    client._http = TestClient(app, base_url="http://testserver/api/v1", headers=dict(trainer.headers))  # type: ignore[assignment]
    client._http.cookies = trainer.cookies
    program = typer.Typer()
    document = describe(app)
    paths = {path: methods for path, methods in document["paths"].items() if "/checkpoints" in path}
    derived.add_commands(program, {"checkpoints": program}, document | {"paths": paths})
    program.command("prune")(checkpoints.prune)
    for module in (checkpoints, derived):
        monkeypatch.setattr(module, "connect", lambda: client)

    def run(*arguments: str, **more: str) -> Result:
        return CliRunner().invoke(program, list(arguments), **more)

    return run


def test_the_tree_with_a_message_and_in_json(proctor, trained: TrainedRun):
    run, _ = trained(name="learner", rewards=(0.5, 0.6, 0.4))
    trained(name="branch", source_run_id=run.id, branch_step=40)
    shown = proctor("list").output
    for part in ("learner", "   branch", "0.600 [0.560, 0.640]", "0.100 above step 20", "best, branched"):
        assert part in shown
    found = json.loads(proctor("list", "--json").output)
    assert found["trees"][0]["checkpoints"][3]["branches"][0]["name"] == "branch"
    assert found["disk"]["checkpoints"] == 10


def test_show_and_keep(proctor, session: Session, trained: TrainedRun):
    _, saved = trained()
    name = saved["grpo 20"].id.hex[-8:]
    assert "the retention rule of its run may delete it" in proctor("show", name).output
    assert json.loads(proctor("keep", name, "--json").output)["kept_by"] == ["marked"]
    assert json.loads(proctor("keep", name, "--release", "--json").output)["kept_by"] == []


def test_a_dry_run_deletes_nothing(proctor, session: Session, trained: TrainedRun):
    _, saved = trained()
    plan = proctor("prune", "--dry-run", "--json")
    assert plan.exit_code == 0
    assert [each["step"] for each in json.loads(plan.output)["pruned"]] == [20, 40]
    session.refresh(saved["grpo 20"])
    assert saved["grpo 20"].pruned_at is None


def test_it_asks_before_it_deletes(proctor, session: Session, trained: TrainedRun):
    _, saved = trained()
    assert proctor("prune", input="n\n").exit_code == 1
    session.refresh(saved["grpo 20"])
    assert saved["grpo 20"].pruned_at is None
    assert "0.0 MB freed" in proctor("prune", input="y\n").output
    session.refresh(saved["grpo 20"])
    assert saved["grpo 20"].pruned_at is not None
    assert "Nothing to prune" in proctor("prune", "--yes").output


def test_in_json_nobody_is_asked_and_so_yes_must_be_said(proctor, trained: TrainedRun):
    trained()
    assert proctor("prune", "--json").exit_code == 2
    assert json.loads(proctor("prune", "--json", "--yes").output)["freed_bytes"] == 16


def test_what_is_held_ends_with_1(proctor, session: Session, trained: TrainedRun):
    _, saved = trained()
    saved["grpo 20"].is_kept = True
    session.flush()
    held = proctor("prune", saved["grpo 20"].id.hex, "--yes")
    assert held.exit_code == 1
    assert "is kept: marked" in held.output


def test_an_unknown_checkpoint_is_wrong_usage(proctor):
    refused = proctor("show", "00000000").exception
    assert isinstance(refused, ProctorError)
    assert (refused.status, str(refused)) == (404, "There is no checkpoint 00000000.")


def test_a_policy_names_its_best_checkpoint(proctor, trained: TrainedRun):
    run, saved = trained(rewards=(0.5, 0.6, 0.4))
    found = json.loads(proctor("show", run.policy.name, "--json").output)
    assert found["id"] == str(saved["grpo 40"].id)


@pytest.mark.slow
def test_the_tree_can_be_limited_to_a_policy_and_to_the_last_run(proctor, trained: TrainedRun):
    first, _ = trained(name="first")
    trained(name="second")
    assert [each["name"] for each in json.loads(proctor("list", "--run", "last", "--json").output)["trees"]] == [
        "second"
    ]
    found = json.loads(proctor("list", "--policy", first.policy.name, "-n", "1", "--json").output)
    assert [each["name"] for each in found["trees"]] == ["first"]
