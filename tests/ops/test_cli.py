"""The command line against a real web server: what it says, in JSON and for people, and how it ends."""

import re
from importlib.metadata import version as package_version
from pathlib import Path

import pytest

from backend.cli.connection import connect
from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunStatus
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.training.setting_texts import flatten
from backend.web.formats import short
from tests.factories import make_flag, make_rollouts, make_run
from tests.ops.commands import Command, proctor, server

__all__ = ["proctor", "server"]


@pytest.mark.slow
def test_environments_go_from_a_template_to_a_version_and_back(proctor: Command, tmp_path: Path) -> None:
    folder = tmp_path / "dice"
    assert proctor("env", "init", "dice", "--folder", str(folder)).status == 0
    assert (folder / "openenv.yaml").exists()

    pushed = proctor("env", "push", str(folder), "--publish", "--notes", "the first", "--json")
    assert (pushed.status, pushed.json["problems"], pushed.json["version"]["number"]) == (0, [], 1)

    (folder / "README.md").write_text("more words")
    assert proctor("env", "push", str(folder), "--regrade").status == 2
    told = proctor("env", "push", str(folder), "--publish", "--regrade")
    assert "past rollouts are being scored: `proctor env history dice@2`" in told.out

    names = {environment["name"] for environment in proctor("env", "list", "--json").json}
    assert names == {"dice", "tictactoe"}
    assert proctor("env", "pull", "dice@1", "--folder", str(tmp_path / "again")).status == 0
    assert (tmp_path / "again" / "openenv.yaml").read_text() == (folder / "openenv.yaml").read_text()
    changed = folder / "README.md"
    changed.write_text("mine")
    refused = proctor("env", "pull", "dice", "--folder", str(folder))
    assert refused.status == 2
    assert "README.md in" in refused.err
    assert changed.read_text() == "mine"


def test_it_shows_its_version(proctor: Command) -> None:
    told = proctor("--version")

    assert (told.status, told.out) == (0, f"proctor {package_version('proctor')}\n")


@pytest.mark.slow
def test_a_package_with_a_fault_is_reported_where_and_ends_with_1(proctor: Command, tmp_path: Path) -> None:
    folder = tmp_path / "dice"
    proctor("env", "init", "dice", "--folder", str(folder))
    (folder / "openenv.yaml").write_text((folder / "openenv.yaml").read_text() + "surprise: 1\n")

    pushed = proctor("env", "push", str(folder))

    assert pushed.status == 2
    assert "openenv.yaml:" in pushed.err
    assert "surprise unknown key" in pushed.err


@pytest.mark.slow
def test_policies_are_added_and_listed_without_their_keys(proctor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_POLICY_KEY", "sk-very-secret")

    added = proctor("policy", "add", "here", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--json")
    listed = proctor("policy", "list", "--json")

    assert (added.status, added.json["has_secret"]) == (0, True)
    assert "here" in {policy["name"] for policy in listed.json}
    assert "sk-very-secret" not in added.out + listed.out
    assert proctor("policy", "add", "neither").status == 2


def test_an_evaluation_is_queued_stopped_and_resumed(proctor: Command) -> None:
    queued = proctor("eval", "tictactoe", "random", "--tasks", "5", "--group-size", "2", "--no-wait", "--json")
    assert queued.status == 0
    assert queued.json["configuration"]["tasks"] == 5

    assert proctor("run", "stop", "last", "--json").json["status"] == "stopped"
    assert proctor("run", "resume", queued.json["id"], "--json").json["status"] == "queued"
    again = proctor("run", "resume", queued.json["id"])
    assert again.status == 2
    assert "You can resume a stopped, paused or failed run" in again.err
    assert [run["id"] for run in proctor("runs", "--kind", "evaluation", "--json").json] == [queued.json["id"]]
    assert "queued" in proctor("runs").out


@pytest.mark.slow
def test_a_training_run_is_queued_with_its_choices(proctor: Command) -> None:
    started = proctor(
        *("train", "tictactoe", "--preset", "quick", "--set", "grpo.steps=7", "--name", "small"),
        *("--without-certificate", "only a test of the command line", "--no-wait", "--json"),
    )

    assert started.status == 0
    assert started.json["configuration"]["grpo"]["steps"] == 7
    assert proctor("train", "tictactoe", "--set", "grpo.steps", "--no-wait").status == 2
    assert "quick" in proctor("train", "tictactoe", "--preset", "list", "--json").json
    assert "for: Checking that an environment can be trained on" in proctor("train", "--preset", "list").out


@pytest.mark.slow
def test_every_training_choice_is_reported_with_its_default_and_what_it_does(proctor: Command) -> None:
    told = proctor("train", "--set", "list")
    assert told.status == 0
    assert set(flatten(TrainingConfiguration().resolved())) <= set(re.findall(r"^  ([a-z0-9_.]+)=", told.out, re.M))
    shown = " ".join(told.out.split())
    assert "grpo.steps=100 Training steps. Each step samples tasks × group size new episodes." in shown
    assert "recipe=sft_then_grpo (sft_then_grpo, sft, grpo, rejection_sampling, dpo, distillation)" in shown
    of_preset = {each["name"]: each for each in proctor("train", "--preset", "quick", "--set", "list", "--json").json}
    assert of_preset["grpo.steps"]["default"] == "10"
    assert of_preset["grpo.steps"]["section"] == "GRPO"
    assert proctor("train", "--preset", "no-such", "--set", "list").status == 2


@pytest.mark.slow
def test_a_training_run_is_scanned_without_being_started(proctor: Command) -> None:
    """No worker answers here: what needs one is not waited for."""
    told = proctor("train", "tictactoe", "--preset", "quick", "--dry-run")
    assert told.status == 0
    assert "10 tasks × 4 episodes = 40 rollouts per step" in told.out
    assert "! certificate: The checks of the environment were never run." in told.out
    assert "No worker is online. Checks that need one were skipped." in told.out
    assert proctor("runs", "--json").json == []
    refused = proctor("train", "tictactoe", "--set", "grpo.group_size=1", "--dry-run")
    assert refused.status == 2
    assert "grpo.group_size" in refused.err


@pytest.mark.slow
def test_a_training_run_is_written_down_and_started_again_from_the_file(proctor: Command, tmp_path: Path) -> None:
    reason = ("--without-certificate", "only a test of the command line", "--no-wait", "--json")
    first = proctor("train", "tictactoe", "--preset", "quick", "--set", "grpo.levels=1,2", *reason).json
    file = tmp_path / "run.yaml"
    file.write_text(proctor("run", "config", first["id"]).out)

    again = proctor("train", "--config", str(file), "--set", "seed=3", "--no-wait", "--json").json
    choices = {**first["configuration"], "seed": 3, "preset": None}
    assert again["configuration"] == choices
    assert again["environment"] == "tictactoe"

    file.write_text("configuration: {grpo: {steps: 0}}\nenvironment: tictactoe\n")
    refused = proctor("train", "--config", str(file), *reason)
    assert (refused.status, "grpo.steps" in refused.err) == (2, True)
    file.write_text("colour: red\n")
    assert "unknown colour" in proctor("train", "--config", str(file)).err
    assert "name the environment" in proctor("train", "--set", "seed=1").err


def test_workers_are_reported_also_where_there_are_none(proctor: Command) -> None:
    told = proctor("workers")
    assert (told.status, "No workers online" in told.out) == (0, True)
    assert proctor("workers", "--json").json["workers"] == []


@pytest.mark.slow
def test_finished_runs_are_read_compared_and_judged(proctor: Command) -> None:
    with transaction() as session:
        before = make_run(session, name="before")
        make_rollouts(session, before, [(0.0, 1.0, 0.0)] * 12)
        after = make_run(session, before.version, name="after")
        make_rollouts(session, after, [(1.0, 1.0, 0.0)] * 11 + [(0.0, 1.0, 0.0)])
        make_flag(session, after)

    assert "before" in proctor("run", "show", str(before.id)).out
    assert len(proctor("rollouts", str(after.id), "-n", "5", "--json").json) == 5
    assert "user" in proctor("rollouts", str(after.id), "-n", "1", "--transcript").out
    compared = proctor("compare", str(before.id), str(after.id))
    assert (compared.status, "difference [95%]" in compared.out) == (0, True)
    item = proctor("review", "next", "--json").json
    assert [flag["detector"] for flag in item["flags"]] == ["repeated_text"]
    assert proctor("review", "assign", "me", item["id"][-8:]).out == "1 assigned\n"
    assert proctor("review", "verdict", item["id"], "honest", "--comment", "looked at it").status == 0
    assert proctor("review", "--json").json == []
    assert proctor("review", "stats", "--target", "7", "--json").json["today"] == 1
    assert proctor("review", "next").status == 1
    assert proctor("review", "undo").out == f"taken back: honest on {short(item['id'])}\n"
    assert proctor("review", "next", "--json").json["id"] == item["id"]
    assert proctor("review", "undo").status != 0


@pytest.mark.slow
def test_several_runs_are_compared_and_ranked(proctor: Command) -> None:
    with transaction() as session:
        first = make_run(session, name="first")
        make_rollouts(session, first, [(0.0, 1.0, 0.0)] * 6)
        others = [make_run(session, first.version, name=f"other {place}") for place in range(2)]
        for run in others:
            make_rollouts(session, run, [(1.0, 1.0, 0.0)] * 4)
        elsewhere = make_run(session)
        name = first.version.environment.name

    compared = proctor("compare", str(first.id), *(str(run.id) for run in others))
    assert compared.status == 0
    assert "4 tasks: better on 4 tasks" in compared.out
    assert "is missing 2 tasks" in compared.out
    assert len(proctor("compare", str(first.id), *(str(run.id) for run in others), "--json").json["runs"]) == 3
    refused = proctor("compare", str(first.id), str(elsewhere.id))
    assert (refused.status, "different environments" in refused.err) == (1, True)
    assert proctor("compare", str(first.id)).status == 2
    assert "not ranked" in proctor("leaderboard", f"{name}:1").out
    assert proctor("leaderboard", name, "--json").json["version"] == 1
    assert proctor("leaderboard", f"{name}:x").status == 2


@pytest.mark.slow
def test_an_evaluation_is_shown_with_figures_and_run_again(proctor: Command) -> None:
    started = proctor("eval", "tictactoe", "random", "--tasks", "3", "--group-size", "2", "--no-wait", "--json").json
    again = proctor("run", "again", started["id"], "--temperature", "0", "--no-wait", "--json")
    assert (again.status, again.json["source_run_id"]) == (0, started["id"])
    assert again.json["configuration"]["sampling"]["temperature"] == 0
    assert again.json["configuration"]["group_size"] == 2
    with transaction() as session:
        run = make_run(session, configuration={"tasks": 4, "group_size": 2})
        make_rollouts(session, run, [(1.0, 1.0, 0.0), (0.0, 1.0, 0.0)] * 3, group_size=2)
    shown = proctor("run", "show", str(run.id)).out
    for told in ("6 of 8 completed", "win >= 1", "pass@k 100.0%", "pass^k 0.0%", "3 mixed"):
        assert told in shown
    stricter = proctor("run", "show", str(run.id), "--success", "win", "--at-least", "2", "--json").json["figures"]
    assert stricter["success"]["rate"]["mean"] == 0


@pytest.mark.slow
def test_watching_a_run_that_failed_ends_with_1(proctor: Command) -> None:
    with transaction() as session:
        run_id = make_run(session).id
        run = session.get_one(Run, run_id)
        run.status, run.reason = RunStatus.FAILED, "the disk is made of cheese"

    watched = proctor("run", "watch", str(run_id))

    assert watched.status == 1
    assert "failed: the disk is made of cheese" in watched.out


@pytest.mark.slow
def test_tokens_are_made_listed_and_revoked(proctor: Command) -> None:
    made = proctor("token", "create", "nightly", "--role", "author", "--days", "7", "--read-only", "--json").json
    assert made["is_read_only"]
    assert made["parent_id"], "the token of this command line created it"
    assert made["secret"].startswith("pt_")
    assert "nightly" in proctor("token", "list").out

    assert proctor("token", "revoke", made["id"]).status == 0
    assert "nightly" not in {token["name"] for token in proctor("token", "list", "--json").json}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "nothing", "random"], "nothing"),
        (["eval", "tictactoe", "nobody"], "there is no policy 'nobody'"),
        (["eval", "tictactoe@99", "random"], "99"),
        (["run", "show", "ffffffff"], "there is no run 'ffffffff'"),
        (["eval", "tictactoe", "random", "--tasks", "0"], "Invalid value for '--tasks'"),
        (["eval", "tictactoe", "random", "--temperature", "99", "--no-wait"], "temperature"),
        (["env", "push", "/nowhere"], "is not a package"),
    ],
)
def test_wrong_use_ends_with_2_and_shows_what(proctor: Command, arguments: list[str], words: str) -> None:
    refused = proctor(*arguments)

    assert refused.status == 2
    assert words in refused.err


def test_a_server_that_is_not_there_is_reported(proctor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_URL", "http://127.0.0.1:9")
    get_settings.cache_clear()
    connect().close()
    connect.cache_clear()

    refused = proctor("runs")

    assert refused.status == 2
    assert "No Proctor server answers at http://127.0.0.1:9" in refused.err


@pytest.mark.slow
def test_env_grant_gives_and_takes_the_network(proctor: Command):
    asking = load_package("tictactoe")
    manifest = asking["openenv.yaml"].replace("network: none", "network: {hosts: [example.org]}")
    asking["openenv.yaml"] = manifest.replace("name: tictactoe", "name: talker")
    with transaction() as session:
        import_package(session, "talker", asking)
    assert proctor("env", "grant", "talker", "--show", "--json").json["words"] == "not granted"
    granted = proctor("env", "grant", "talker")
    assert (granted.status, "network granted (example.org)" in granted.out) == (0, True)
    assert proctor("env", "grant", "talker@1", "--withdraw", "--json").json["is_granted"] is False
    refused = proctor("env", "grant", "tictactoe")
    assert refused.status != 0
    assert "requests no network access" in refused.err
