"""Effort studies as pages and JSON: what can be studied, a study that is started, its result."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import store_id
from backend.core.queue import ARTIFACT_STORE, STUDY_JOB
from backend.core.tables import Job
from backend.domain.ids import new_id
from backend.domain.studies.effort import EffortOutcome
from backend.domain.vocabulary import PolicyKind, Queue, Role, RunStatus
from backend.review.safeguards import safeguards_of
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint
from tests.factories import make_environment_version, make_policy, make_run
from tests.studies.worlds import SUSPICIOUS, make_effort_study, make_training
from tests.web_fixtures import ClientFor
from workers.training.exporting.card import safeguards_section


@pytest.fixture
def run(session: Session) -> Run:
    return make_training(session, (10, 20))


def make_compared_study(session: Session, run: Run, task: str = "heldout/3") -> Study:
    """Step 20 compared with the warm-up: suspicious."""
    study = make_effort_study(session, run, result=SUSPICIOUS, cuts=3, status=RunStatus.COMPLETED)
    for step, is_base, values in ((300, True, [0.0, 0.5, 1.0]), (20, False, [1.0, 1.0, 1.0])):
        of_step = Checkpoint.run_id == run.id, Checkpoint.step == step
        checkpoint = session.scalars(select(Checkpoint).where(*of_step)).one()
        side = StudyCheckpoint(
            study_id=study.id,
            checkpoint_id=checkpoint.id,
            run_id=make_run(session, run.version, run.policy).id,
            is_base=is_base,
            stage=checkpoint.stage,
            step=step,
            rollouts=9,
            succeeded=7,
            reasoned=6,
            chosen=6,
            is_done=True,
        )
        session.add(side)
        session.flush()
        row = {"rollout_id": new_id(), "task": task, "characters": 40, "values": values, "score": values[1]}
        session.add(EffortReply(id=new_id(), study_checkpoint_id=side.id, **row))
    session.flush()
    return study


def test_an_author_starts_a_score_and_others_look_on(client_for: ClientFor, session: Session, run: Run) -> None:
    path = f"/runs/{run.id}/studies"
    text = client_for(Role.AUTHOR).get(path).text
    for offered in ("Start effort study", ">step 20<", ">step 10<"):
        assert offered in text, offered
    assert "Starting an effort study requires the role author" in client_for(Role.VIEWER).get(path).text
    assert client_for(Role.REVIEWER).post(f"{path}/effort", data={}).status_code == 403
    sent = {"checkpoint_id": "", "tasks": "", "cuts": "5", "samples": "2", "replies": "8", "measure": "success"}
    answer = client_for(Role.AUTHOR).post(f"{path}/effort", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    study = session.scalars(select(Study)).one()
    settings = study.effort_settings
    assert (settings.cuts, settings.plan["tasks"], settings.plan["split"]) == (5, 64, "heldout")
    job = session.scalars(select(Job).where(Job.name == STUDY_JOB)).one()
    assert (job.queue, job.arguments) == (Queue.GPU, {"study_id": str(study.id), ARTIFACT_STORE: store_id()})
    text = client_for(Role.VIEWER).get(path).text
    assert "data-live" in text
    assert "sft 300 waits to play its tasks" in text
    assert f"/studies/{study.id}/stop" not in text


def test_what_was_found_stands_on_the_page_and_in_the_curve(client_for: ClientFor, session: Session, run: Run) -> None:
    study = make_compared_study(session, run)
    viewer = client_for(Role.VIEWER)
    text = viewer.get(f"/runs/{run.id}/studies").text
    for told in ("On the 6 tasks", "step 20", "sft 300 (base)", "heldout/3", "0.500", "suspicious", "curve.json"):
        assert told in text, told
    curve = viewer.get(f"/studies/{study.id}/curve.json").json()
    assert curve["x"] == [0, 50, 100]
    assert [(each["label"], each["values"]) for each in curve["series"]] == [
        ("base: sft 300", [0, 0.5, 1]),
        ("step 20", [1, 1, 1]),
    ]
    (reported,) = viewer.get(f"/api/v1/runs/{run.id}/safeguards").json()["efforts"]
    assert [reported[name] for name in ("checkpoint", "base", "outcome", "low")] == [
        "step 20",
        "sft 300",
        "suspicious",
        0.31,
    ]
    printed = viewer.get(f"/runs/{run.id}/safeguards").text
    assert "On the 6 tasks that both sides solved" in printed
    assert "0.310 to 0.570" in printed
    card = "\n".join(safeguards_section(safeguards_of(session, run.id), 0))
    assert "| Effort scores | step 20: suspicious, area +0.440 (0.310 to 0.570) against sft 300, " in card
    news = viewer.get(f"/runs/{run.id}/studies/events").text
    assert "event: studies" in news
    assert "event: end" in news
    assert f"/runs/{run.id}/studies" in viewer.get(f"/runs/{run.id}").text


def test_no_reasoning_is_reported_with_its_reason(viewer: TestClient, session: Session, run: Run) -> None:
    study = make_compared_study(session, run)
    study.result = SUSPICIOUS.model_copy(update={"outcome": EffortOutcome.UNKNOWN}).model_dump(mode="json")
    for side in session.scalars(select(StudyCheckpoint).where(StudyCheckpoint.study_id == study.id)):
        side.reasoned = side.chosen = 0
    for reply in session.scalars(select(EffortReply)):
        session.delete(reply)
    session.flush()
    text = viewer.get(f"/runs/{run.id}/studies").text
    assert "None of the 7 successful rollouts reasons before its last answer" in text
    assert "agent.reasoning: think" in text
    assert "curve.json" not in text


def test_json_starts_stops_and_resumes_and_doubles_nothing(client_for: ClientFor, session: Session, run: Run) -> None:
    author, path = client_for(Role.AUTHOR), f"/api/v1/runs/{run.id}/studies/effort"
    offered = author.get(f"/api/v1/runs/{run.id}/studies").json()["checkpoints"]
    assert [each["name"] for each in offered] == ["step 20", "step 10"]
    for wrong in ({"tasks": 2000}, {"checkpoint_id": str(uuid.uuid4())}, {"cuts": 1}, {"step": 11}):
        assert author.post(path, json=wrong).status_code == 422, wrong
    sent = {"checkpoint_id": offered[1]["id"], "tasks": 12, "group_size": 2}
    started = author.post(path, json=sent)
    assert started.status_code == 201
    study = started.json()
    assert [(side["name"], side["is_base"]) for side in study["checkpoints"]] == [("sft 300", True), ("step 10", False)]
    assert author.post(path, json=sent).json()["id"] == study["id"], "it is in progress"
    assert author.post(path, json={}).json()["id"] != study["id"], "the latest checkpoint is another"
    own = f"/api/v1/studies/{study['id']}"
    assert client_for(Role.REVIEWER).post(f"{own}/stop").status_code == 403
    assert author.post(f"{own}/stop").json()["status"] == "stopped"
    assert author.post(f"{own}/stop").status_code == 409
    assert author.post(f"{own}/resume").json()["status"] == "queued"
    assert author.get(f"/api/v1/studies/{uuid.uuid4()}").status_code == 404


def test_what_cannot_be_scored_is_refused_with_a_message(client_for: ClientFor, session: Session, run: Run) -> None:
    author = client_for(Role.AUTHOR)
    endpoint = make_run(session, policy=make_policy(session, kind=PolicyKind.OPENAI_API))
    text = author.get(f"/runs/{endpoint.id}/studies").text
    assert "an endpoint or a scripted policy starts a new one" in text
    assert 'name="cuts"' not in text
    refused = author.post(f"/api/v1/runs/{endpoint.id}/studies/effort", json={})
    assert (refused.status_code, "middle of its own reply" in refused.text) == (409, True)
    plain = make_environment_version(session, agent={"system": "", "action": {"format": "text", "field": "cell"}})
    assert "consist only of the answer" in author.get(f"/runs/{make_training(session, version=plain).id}/studies").text
    untrained = make_training(session, ())
    assert "No GRPO checkpoint of this run" in author.get(f"/runs/{untrained.id}/studies").text


def test_an_evaluation_is_scored_against_the_policy_its_checkpoint_began_as(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    last = session.scalars(select(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.step == 20)).one()
    evaluation = make_run(session, run.version, run.policy, checkpoint_id=last.id)
    study = client_for(Role.AUTHOR).post(f"/api/v1/runs/{evaluation.id}/studies/effort", json={}).json()
    base, own = study["checkpoints"]
    assert (own["run_id"], base["run_id"], base["name"]) == (str(evaluation.id), None, "sft 300")


def test_what_a_task_is_called_stays_text(viewer: TestClient, session: Session, run: Run) -> None:
    make_compared_study(session, run, task="\"'><script>alert(1)</script>")
    text = viewer.get(f"/runs/{run.id}/studies").text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert(1)" not in text
