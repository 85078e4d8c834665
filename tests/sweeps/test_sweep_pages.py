"""Sweeps as pages and JSON: who may start one, what the form keeps, and what the page of a sweep shows."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.service import finish_run
from backend.sweeps.tables import Sweep
from tests.factories import make_environment_version
from tests.sweeps.worlds import REASON, complete, evaluate, make_sweep, trials_of
from workers.tasks.sweeps import advance


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def form(version: EnvironmentVersion, *rows: tuple[str, ...], **fields: str) -> dict[str, Any]:
    names = ("name", "values", "low", "high", "scale", "points")
    cells = {f"parameter_{name}": [row[place] for row in rows] for place, name in enumerate(names)}
    return {"version_id": str(version.id), "without_certificate": REASON, "key": "one", **cells, **fields}


RATE = ("grpo.learning_rate", "", "1e-5", "1e-3", "log", "")
EMPTY = ("", "", "", "", "linear", "")


def test_a_trainer_starts_a_sweep_from_the_form(trainer: TestClient, session: Session, version: EnvironmentVersion):
    sizes = ("grpo.group_size", "4, 8", "", "", "linear", "")
    sent = form(version, RATE, sizes, EMPTY, settings="grpo.steps=40\n\nsft.steps = 10", trials="7", name="rates")
    answer = trainer.post("/sweeps", data=sent)
    assert answer.status_code == 303, answer.text[:2000]
    sweep = session.query(Sweep).one()
    assert answer.headers["location"].startswith(f"/sweeps/{sweep.id}")
    assert (sweep.configuration["grpo"]["steps"], sweep.configuration["sft"]["steps"]) == (40, 10)
    assert sweep.typed_settings.space["grpo.group_size"].values == [4, 8]
    assert trainer.post("/sweeps", data=sent).headers["location"].startswith(f"/sweeps/{sweep.id}")
    page = trainer.get(f"/sweeps/{sweep.id}").text
    assert "No run has started yet" in page
    assert "rates" in trainer.get("/sweeps").text


def test_a_refused_form_keeps_what_was_typed(trainer: TestClient, session: Session, version: EnvironmentVersion):
    wrong = ("grpo.group_size", "4, 1", "", "", "linear", "")
    answer = trainer.post("/sweeps", data=form(version, RATE, wrong, settings="grpo.steps=0", name="kept", trials="9"))
    assert answer.status_code == 422
    for text in ('value="4, 1"', 'value="1e-5"', "grpo.steps=0", 'value="kept"', 'value="9"', "Enter 1 or more."):
        assert text in answer.text
    answer = trainer.post("/sweeps", data=form(version, RATE, wrong))
    assert re.search(r'field-error" id="error-2">1: Enter 2 or more\.', answer.text)
    answer = trainer.post("/sweeps", data=form(version, settings="grpo.steps"))
    assert "Choose at least one setting to vary." in answer.text
    assert "This line has no =" in answer.text
    assert "Enter a number" in trainer.post("/sweeps", data=form(version, (*RATE[:2], "tiny", *RATE[3:]))).text
    assert session.query(Sweep).count() == 0


def test_the_launch_form_hands_its_settings_over(trainer: TestClient, version: EnvironmentVersion):
    shown = trainer.post(
        "/training/new",
        data={"version_id": str(version.id), "grpo.steps": "33"},
        headers={"HX-Request": "true", "HX-Target": "launch-figures"},
    ).text
    found = re.search(r'href="(/sweeps/new\?[^"]*)"', shown)
    assert found is not None
    page = trainer.get(found[1].replace("&amp;", "&")).text
    assert "grpo.steps=33" in page
    assert f'value="{version.id}" selected' in page


@pytest.mark.slow
def test_the_page_shows_runs_coordinates_and_the_best(
    viewer: TestClient, session: Session, version: EnvironmentVersion
):
    space = {"grpo.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}, "grpo.group_size": [4, 8]}
    sweep = make_sweep(session, space, version=version, trials=12, startup_trials=2)
    advance(session, sweep)
    for number in range(1, 9):
        complete(session, sweep, number, number / 20, number / 10)
    trial = trials_of(session, sweep)[8]
    run = evaluate(session, trial, {20: 0.01})
    advance(session, sweep)
    finish_run(session, run, RunStatus.STOPPED)
    advance(session, sweep)
    page = viewer.get(f"/sweeps/{sweep.id}").text
    assert page.count("<polyline") == 9
    assert 'data-state="pruned"' in page
    assert "Pruned after step 20: its best held-out reward, 0.010, is below the median" in page
    best = trials_of(session, sweep)[7]
    assert f'<a href="/runs/{best.run_id}">Run 8</a>' in page
    assert "PED-ANOVA" in page
    assert f"/runs/chart?run={best.run_id}" in page
    assert "/stop" not in page, "a viewer cannot stop it"
    found = viewer.get(f"/api/v1/sweeps/{str(sweep.id)[-8:]}").json()
    assert (found["best"]["number"], found["done"], found["total"]) == (8, 9, 12)
    assert list(found["importance"].values()) == sorted(found["importance"].values(), reverse=True)
    assert list(found["parameters"]) == list(space), "in the order in which they were listed"
    assert viewer.get("/api/v1/sweeps/rates").json()["id"] == str(sweep.id)


def test_roles_and_missing_sweeps(
    viewer: TestClient, author: TestClient, trainer: TestClient, session: Session, version: EnvironmentVersion
):
    body = {"version_id": str(version.id), "parameters": {"grpo.beta": [0, 0.1]}, "without_certificate": REASON}
    assert author.post("/api/v1/sweeps", json=body).status_code == 403
    assert viewer.get("/sweeps/new").status_code == 403
    started = trainer.post("/api/v1/sweeps", json=body)
    assert started.status_code == 201, started.text
    address = f"/api/v1/sweeps/{started.json()['id']}"
    assert author.post(f"{address}/stop").status_code == 403
    assert trainer.post(f"{address}/stop").json()["status"] == "stopped"
    assert trainer.post(f"{address}/stop").status_code == 409
    assert trainer.post(f"{address}/resume").json()["status"] == "queued"
    refused = trainer.post("/api/v1/sweeps", json=body | {"parameters": {"grpo.beta": [0, 11]}})
    assert refused.status_code == 422
    assert "11: Enter 10 or less." in refused.text
    assert viewer.get("/api/v1/sweeps/ffffffff").status_code == 404
    assert viewer.get("/api/v1/sweeps").json()["items"][0]["environment"].startswith("environment_")


def test_an_empty_list_says_what_to_do(viewer: TestClient, trainer: TestClient):
    assert "No sweeps yet" in viewer.get("/sweeps").text
    assert "/sweeps/new" not in viewer.get("/sweeps").text
    assert "/sweeps/new" in trainer.get("/sweeps").text
