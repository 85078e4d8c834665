"""The pages of training: launch, checkpoints, exports; and that only trainers launch."""

import re
import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Export
from backend.domain.vocabulary import ExportStatus, Phase, PolicyKind, Role, RunKind
from backend.runs.tables import Run
from tests.factories import make_checkpoint, make_environment_version, make_policy, make_rollouts, make_run
from tests.web_fixtures import ClientFor

REASON = "A first look; nothing will be kept."


def csrf(page: str) -> str:
    return page.split('name="csrf_token" value="', 1)[1].split('"', 1)[0]


def make_export(session: Session, **fields: object) -> Export:
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    run = make_run(session, policy=policy, kind=RunKind.TRAINING)
    checkpoint = make_checkpoint(session, policy, run)
    export = Export(checkpoint_id=checkpoint.id, run_id=run.id, **fields)
    session.add(export)
    session.flush()
    return export


def test_the_form_shows_the_next_step_when_nothing_can_be_trained_on(client_for: ClientFor):
    assert "No environment to train on" in client_for(Role.TRAINER).get("/training/new").text


def test_the_form_shows_the_preset(session: Session, client_for: ClientFor):
    version = make_environment_version(session)
    page = client_for(Role.TRAINER).get(f"/training/new?preset=quick&version_id={version.id}").text
    assert 'href="/docs/training.html#losses"' in page  # of a single setting
    assert 'href="/docs/steering.html#alarms"' in page  # of a section
    assert 'name="grpo.steps" type="number" value="10"' in page
    assert f"proctor train {version.environment.name}@1 --preset quick" in page


def test_it_starts_a_run_and_goes_to_its_page(session: Session, client_for: ClientFor):
    version = make_environment_version(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    form = {"csrf_token": token, "version_id": str(version.id), "preset": "quick", "without_certificate": REASON}
    answer = client.post("/training", data={**form, "grpo.steps": "5", "key": "one"})
    run = session.scalars(select(Run).where(Run.kind == RunKind.TRAINING)).one()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.id}")
    assert run.configuration["grpo"]["steps"] == 5
    assert client.post("/training", data={**form, "key": "one"}).headers["location"] == f"/runs/{run.id}"


def test_a_refused_form_comes_back_with_what_was_typed(session: Session, client_for: ClientFor):
    version = make_environment_version(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    form = {"csrf_token": token, "version_id": str(version.id), "grpo.steps": "many", "name": "my policy"}
    answer = client.post("/training", data=form)
    assert answer.status_code == 422
    assert 'value="many"' in answer.text
    assert 'value="my policy"' in answer.text


def test_an_author_may_not_launch(session: Session, client_for: ClientFor):
    client = client_for(Role.AUTHOR)
    assert client.get("/training/new").status_code == 403
    assert client.post("/training", data={"csrf_token": "x"}).status_code == 403


def test_checkpoints_are_listed_with_the_best_marked(session: Session, client_for: ClientFor):
    policy = make_policy(session, "learner", kind=PolicyKind.LOCAL)
    run = make_run(session, policy=policy, kind=RunKind.TRAINING)
    make_checkpoint(session, policy, run, step=40, is_best=True, heldout_reward=0.875)
    page = client_for(Role.VIEWER).get("/checkpoints").text
    assert "learner" in page
    assert "0.875" in page
    assert "best" in page
    assert "Export</button>" not in page


def test_an_export_shows_why_it_was_refused(session: Session, client_for: ClientFor):
    export = make_export(session, status=ExportStatus.REFUSED, reason="The reloaded weights answer differently.")
    client = client_for(Role.VIEWER)
    assert "The reloaded weights answer differently." in client.get(f"/exports/{export.id}").text
    assert client.get(f"/exports/{export.id}/download").status_code == 409


def test_a_completed_export_shows_what_its_passport_proved(session: Session, client_for: ClientFor):
    """As the passport's process writes it."""
    figure = {"mean": 0.25, "low": 0.125, "high": 0.375, "count": 40}
    examined = {"reward": figure, "columns": {"win": figure}, "levels": {}, "format": 0.9, "failed": 0}
    passport = {
        "passed": True,
        "reason": None,
        "files": {"model.safetensors": "cf65ec8425b33026d4092568393fd275e9f2cdea88a51a8348b61cb46269bdc4"},
        "likeness": {"max_logit_difference": 1e-5, "mean_divergence": 0.0, "argmax_agreement": 1.0, "tokens": 2192}
        | {"dtype": "float32"},
        "heldout": {"tasks": 40, "before": examined, "after": examined, "difference": {**figure, "mean": 0.0}},
        "issued_at": "2026-11-21T03:56:28.955573+00:00",
        "versions": {"torch": "2.13.0"},
    }
    export = make_export(session, status=ExportStatus.COMPLETED, passport=passport, card="# Tiny\n\nA model.")
    page = client_for(Role.VIEWER).get(f"/exports/{export.id}").text
    for shown in ("Download the zip", "cf65ec8425b33026", "2,192", "0.125 … 0.375", "torch 2.13.0", ">Tiny</h"):
        assert shown in page
    news = client_for(Role.VIEWER).get(f"/exports/{export.id}/events").text
    assert "0.125 … 0.375" in news
    assert "event: end" in news


def test_a_refused_export_shows_what_was_evaluated_until_then(session: Session, client_for: ClientFor):
    passport = {"passed": False, "reason": "files changed", "files": {}, "likeness": {}, "heldout": {}}
    export = make_export(session, status=ExportStatus.REFUSED, reason="files changed", passport=passport)
    page = client_for(Role.VIEWER).get(f"/exports/{export.id}").text
    assert "files changed" in page
    assert "Download the zip" not in page


def test_an_unknown_export_is_not_there(client_for: ClientFor):
    assert client_for(Role.VIEWER).get(f"/exports/{uuid.uuid4()}").status_code == 404


def test_the_same_through_json(session: Session, client_for: ClientFor):
    version = make_environment_version(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    request = {"version_id": str(version.id), "preset": "quick", "without_certificate": REASON}
    answer = client.post("/api/v1/training", json=request, headers={"X-CSRF-Token": token})
    assert answer.status_code == 201
    assert answer.json()["configuration"]["grpo"]["steps"] == 10
    assert client.get("/api/v1/checkpoints").json() == {"items": [], "next": None, "previous": None}
    assert "quick" in client.get("/api/v1/training/presets").json()


def test_a_run_states_for_which_checkpoint_each_reward_is(session: Session, client_for: ClientFor):
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    best = {"stage": "grpo", "step": 200, "heldout_reward": 0.9}
    run = make_run(session, policy=policy, kind=RunKind.TRAINING, summary={"best": best})
    examined = {"reward": {"mean": 0.9, "low": 0.8, "high": 1.0, "count": 4}}
    make_checkpoint(session, policy, run, step=200, is_best=True, heldout_reward=0.9, heldout=examined)
    make_checkpoint(session, policy, run, step=400, heldout_reward=0.5, heldout={"training_step": 400})
    make_rollouts(session, run, [[0.5, 0.5, 0.0]] * 2, phase=Phase.HELDOUT, step=400)

    page = client_for(Role.VIEWER).get(f"/runs/{run.id}").text
    listed = client_for(Role.VIEWER).get("/runs").text

    figures = dict(re.findall(r"<dt>(held-out reward.*?)</dt>.*?<dd class=\"hint\">(.*?)</dd>", page, re.DOTALL))
    assert figures.keys() == {"held-out reward, best checkpoint", "held-out reward, last checkpoint"}
    assert figures["held-out reward, best checkpoint"].startswith("grpo step 200 · 4 tasks · 95% 0.800 to 1.000")
    assert figures["held-out reward, last checkpoint"].startswith("grpo step 400 · ")
    assert "held-out, grpo 200" in listed


def test_the_list_shows_what_training_gained_and_where(session: Session, client_for: ClientFor):
    client = client_for(Role.VIEWER)
    assert "No training yet" in client.get("/training").text
    run = make_run(session, name="maze run", kind=RunKind.TRAINING, policy=make_policy(session, kind=PolicyKind.LOCAL))
    assert run.policy
    make_checkpoint(session, run.policy, run, stage="untrained", step=0, heldout_reward=0.125)
    best = make_checkpoint(session, run.policy, run, stage="grpo", step=40, heldout_reward=0.875, is_best=True)
    make_checkpoint(session, run.policy, run, stage="grpo", step=60, heldout_reward=0.5)
    make_run(session, name="an evaluation")
    page = client.get("/training").text
    assert "0.125" in page
    assert "0.875" in page
    assert f"#checkpoint-{best.id}" in page
    assert "0.500" not in page
    assert "an evaluation" not in page
    assert "/training/new" not in page, "a viewer is led to a page that is closed to them"
    assert "No training runs match these filters" in client.get("/training?text=zebra").text
    assert "maze run" in client.get("/training?kind=evaluation").text
