"""Marking and pruning from the page and through JSON, and what the disk says."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.orm import Session

from backend.checkpoints.queries import disk_usage
from backend.checkpoints.tables import Export
from backend.core import artifacts
from backend.domain.vocabulary import ExportForm, ExportStatus, PolicyKind, Role, RunKind
from backend.runs.tables import Run
from tests.checkpoints.conftest import TrainedRun
from tests.factories import make_checkpoint, make_environment_version, make_policy, make_run
from tests.web_fixtures import ClientFor

GIGABYTE = 10**9


def test_it_shows_what_would_go_and_then_does_it(session: Session, trained: TrainedRun, client_for: ClientFor):
    run, saved = trained()
    client = client_for(Role.TRAINER)
    page = client.get(f"/checkpoints/prune?run_id={run.id}").text
    assert "2 checkpoints, 16 B" in page
    assert saved["grpo 20"].pruned_at is None
    answer = client.post("/checkpoints/prune", data={"run_id": str(run.id)})
    assert answer.headers["location"] == f"/runs/{run.id}/checkpoints"
    session.refresh(saved["grpo 20"])
    assert saved["grpo 20"].pruned_at is not None
    assert "Nothing to prune" in client.get(f"/checkpoints/prune?run_id={run.id}").text
    assert "results kept" in client.get(f"/runs/{run.id}/checkpoints").text


def test_another_rule_may_be_tried_first(trained: TrainedRun, client_for: ClientFor):
    run, _ = trained()
    client = client_for(Role.TRAINER)
    assert "Nothing to prune" in client.get(f"/checkpoints/prune?run_id={run.id}&keep_last=3&keep_every=").text
    assert "1 checkpoint, 8 B" in client.get(f"/checkpoints/prune?run_id={run.id}&keep_last=1&keep_every=40").text
    everything = client.get(f"/checkpoints/prune?run_id={run.id}&keep_last=0").text
    assert "3 checkpoints, 24 B" in everything


def test_a_marked_one_stays_and_says_so(session: Session, trained: TrainedRun, client_for: ClientFor):
    _, saved = trained()
    client = client_for(Role.TRAINER)
    checkpoint = saved["grpo 20"]
    assert client.post(f"/checkpoints/{checkpoint.id}/keep").status_code == 303
    assert "marked to be kept" in client.get(f"/checkpoints/prune?checkpoint_ids={checkpoint.id}").text
    client.post("/checkpoints/prune", data={"checkpoint_ids": str(checkpoint.id)})
    session.refresh(checkpoint)
    assert checkpoint.pruned_at is None
    client.post(f"/checkpoints/{checkpoint.id}/release")
    client.post("/checkpoints/prune", data={"checkpoint_ids": str(checkpoint.id)})
    session.refresh(checkpoint)
    assert checkpoint.pruned_at is not None


def test_exports_are_listed_and_stand_beside_their_checkpoint(
    session: Session, trained: TrainedRun, client_for: ClientFor
):
    run, saved = trained()
    client = client_for(Role.VIEWER)
    assert "No exports yet" in client.get("/exports").text
    of = {"checkpoint_id": saved["grpo 20"].id, "run_id": run.id}
    finished = Export(**of, form=ExportForm.GGUF, status=ExportStatus.COMPLETED)
    failed = Export(**of, status=ExportStatus.FAILED, reason="It predicts other tokens.")
    session.add_all([finished, failed])
    session.flush()
    page = client.get("/exports").text
    assert f"/exports/{finished.id}/download" in page
    assert f"/exports/{failed.id}/download" not in page
    assert "It predicts other tokens." in page
    for address in ("/checkpoints", f"/runs/{run.id}/checkpoints"):
        tree = client.get(address).text
        assert f'href="/exports/{finished.id}"' in tree
        assert f'href="/exports/{failed.id}"' not in tree
    assert f"proctor serve {saved['grpo 20'].id}" in client_for(Role.TRAINER).get("/checkpoints").text


def test_a_viewer_may_not_prune_or_mark(trained: TrainedRun, client_for: ClientFor):
    _, saved = trained()
    for role in (Role.VIEWER, Role.AUTHOR):
        client = client_for(role)
        assert client.get("/checkpoints/prune").status_code == 403
        assert client.post("/checkpoints/prune").status_code == 403
        assert client.post(f"/checkpoints/{saved['sft'].id}/keep").status_code == 403


def test_the_same_through_json(session: Session, trained: TrainedRun, client_for: ClientFor):
    run, saved = trained()
    client = client_for(Role.TRAINER)
    plan = client.post("/api/v1/checkpoints/prune", json={"run_id": str(run.id), "dry_run": True}).json()
    assert (plan["dry_run"], plan["freed_bytes"], len(plan["pruned"])) == (True, 16, 2)
    session.refresh(saved["grpo 20"])
    assert saved["grpo 20"].pruned_at is None
    kept = client.post(f"/api/v1/checkpoints/{saved['grpo 20'].id}/keep").json()
    assert kept["kept_by"] == ["marked"]
    asked = {"checkpoint_ids": [str(saved["grpo 20"].id), str(saved["grpo 40"].id)]}
    done = client.post("/api/v1/checkpoints/prune", json=asked).json()
    assert [each["step"] for each in done["pruned"]] == [40]
    assert [(each["step"], each["kept_by"]) for each in done["refused"]] == [(20, ["marked"])]
    assert client.post(f"/api/v1/checkpoints/{saved['grpo 20'].id}/release").json()["kept_by"] == []
    both = {"checkpoint_ids": asked["checkpoint_ids"], "run_id": str(run.id)}
    assert client.post("/api/v1/checkpoints/prune", json=both).status_code == 422


def test_disk_use_counts_what_is_there_and_what_was_freed(session: Session, trained: TrainedRun, client_for: ClientFor):
    run, _ = trained()
    trained()
    client = client_for(Role.TRAINER)
    client.post("/api/v1/checkpoints/prune", json={"run_id": str(run.id)})
    whole = client.get("/api/v1/checkpoints/disk").json()
    mine = client.get(f"/api/v1/checkpoints/disk?run_id={run.id}").json()
    assert (whole["checkpoints"], whole["stored_bytes"], whole["freed_bytes"]) == (8, 64, 16)
    assert (mine["checkpoints"], mine["stored_bytes"], mine["pruned"]) == (3, 24, 2)


@pytest.mark.parametrize(
    ("free", "total", "is_little"),
    [
        (19 * GIGABYTE, 100 * GIGABYTE, True),
        (21 * GIGABYTE, 100 * GIGABYTE, False),
        (49 * GIGABYTE, 1000 * GIGABYTE, True),
        (51 * GIGABYTE, 1000 * GIGABYTE, False),
    ],
)
def test_little_room_is_reported(
    session: Session,
    trained: TrainedRun,
    client_for: ClientFor,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    total: int,
    is_little: bool,
):
    """Less than ten more checkpoints need, here of 2 GB, or less than 5% of the disk."""
    _, saved = trained()
    saved["sft"].size_bytes = 2 * GIGABYTE
    session.flush()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free, total=total))
    assert artifacts.free_space() == (free, total)
    assert bool(disk_usage(session).warning) is is_little
    assert ("of disk space is left" in client_for(Role.VIEWER).get("/checkpoints").text) is is_little


def test_a_store_without_bounds_reports_nothing_of_room(session: Session, store: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.installation import forget_settings

    monkeypatch.setenv("PROCTOR_ARTIFACTS_URL", "memory://proctor")
    forget_settings()
    assert artifacts.free_space() is None
    assert disk_usage(session).warning == ""


@pytest.mark.parametrize("door", ["page", "json"])
def test_a_pruned_checkpoint_is_not_offered_and_refused_with_words(
    session: Session, trained: TrainedRun, client_for: ClientFor, door: str
):
    run, saved = trained(rewards=(0.5, 0.6, 0.4))
    client = client_for(Role.ADMIN)
    checkpoint = saved["grpo 40"]
    client.post("/checkpoints/prune", data={"checkpoint_ids": str(checkpoint.id)})
    version = make_environment_version(session)
    assert str(checkpoint.id) not in client.get("/evaluations/new").text
    if door == "page":
        assert (
            f"evaluations/new?policy_id={run.policy_id}&amp;checkpoint_id={checkpoint.id}"
            not in client.get(f"/runs/{run.id}").text
        )
        return
    asked = {"version_id": str(version.id), "policy_id": str(run.policy_id), "checkpoint_id": str(checkpoint.id)}
    evaluation = client.post("/api/v1/evaluations", json={**asked, "tasks": 2})
    export = client.post("/api/v1/exports", json={"checkpoint_id": str(checkpoint.id)})
    start = {"source": "checkpoint", "checkpoint": str(checkpoint.id)}
    training = client.post(
        "/api/v1/training",
        json={
            "version_id": str(version.id),
            "preset": "quick",
            "configuration": {"model": start},
            "without_certificate": "A first look only.",
        },
    )
    weights = client.get(f"/api/v1/checkpoints/{checkpoint.id}/weights")
    assert [answer.status_code for answer in (evaluation, export, training, weights)] == [422, 409, 422, 409]
    for answer in (evaluation, export, training, weights):
        assert "were pruned on" in answer.text
    # who asks for the policy's best gets the best of those that are there
    other = client.post("/api/v1/evaluations", json={**asked, "checkpoint_id": None, "tasks": 2}).json()
    chosen = session.get_one(Run, other["id"]).checkpoint_id
    assert chosen == max((each for name, each in saved.items() if name != "grpo 40"), key=lambda each: each.id).id


def test_a_runs_page_states_whether_its_best_was_chosen_as_judged(session: Session, client_for: ClientFor):
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    run = make_run(session, policy=policy, kind=RunKind.TRAINING)
    best = make_checkpoint(session, policy, run, heldout_reward=0.6, is_best=True, heldout={"training_step": 1})
    make_checkpoint(session, policy, run, heldout_reward=0.9, heldout={"judged": {"mean": 0.2}})
    client = client_for(Role.VIEWER)
    assert "The best one by held-out reward, which may not be the last." in client.get(f"/runs/{run.id}").text
    best.heldout = {**best.heldout, "judged": {"mean": 0.55}}
    session.flush()
    page = client.get(f"/runs/{run.id}").text
    assert "The best one by held-out reward after verdicts" in page
    assert "as judged 0.55" in page
