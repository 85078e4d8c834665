"""Checkpoints, studies and graders are deleted with undo as runs are: planned, refused, restored and removed."""

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.deletions.tables import Deletion
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings
from backend.domain.studies.study import StudyKind
from backend.domain.vocabulary import ExportStatus, GradeStatus, PolicyKind, RunKind, RunStatus
from backend.graders.tables import Grade, Grader, GraderRun
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint
from tests.deletions.conftest import purge
from tests.factories import make_checkpoint, make_group, make_policy, make_rollout, make_run


@pytest.fixture
def trained(session: Session) -> tuple[Run, Policy, Checkpoint]:
    policy = make_policy(session, "trained", PolicyKind.LOCAL, {"architecture": "tiny"})
    run = make_run(session, policy=policy, kind=RunKind.TRAINING, name="training")
    return run, policy, make_checkpoint(session, policy, run, step=40, is_best=True, heldout_reward=0.5)


def make_study(session: Session, run: Run, **fields: object) -> Study:
    values = {"kind": StudyKind.EFFORT, "status": RunStatus.COMPLETED, "settings": {}, **fields}
    study = Study(run_id=run.id, version_id=run.version_id, **values)
    session.add(study)
    session.flush()
    return study


def make_grader(session: Session, kind: GraderKind = GraderKind.QUESTION) -> Grader:
    settings = JudgeSettings() if kind is GraderKind.JUDGE else QuestionSettings(text="Is it polite?")
    policy = make_policy(session)
    values = {"policy_id": policy.id, "settings": settings.model_dump(mode="json")}
    grader = Grader(name=f"{kind} by {policy.name}", kind=kind, **values)
    session.add(grader)
    session.flush()
    return grader


def plan_of(client: TestClient, **item: object) -> dict[str, object]:
    (plan,) = client.get("/api/v1/deletions/preview", params=item).json()["items"]
    return dict(plan)


def expire(session: Session) -> None:
    """End the 30 days of all deletions."""
    session.info.clear()
    for deletion in session.scalars(select(Deletion)):
        deletion.purge_at = datetime.now(UTC) - timedelta(days=1)
    session.flush()


def test_a_checkpoint_goes_with_its_exports_and_comes_back(
    trainer: TestClient, author: TestClient, session: Session, trained: tuple[Run, Policy, Checkpoint], purging: Path
) -> None:
    run, policy, checkpoint = trained
    artifacts.put_folder(Path(__file__).parent, checkpoint.artifact)
    export = Export(checkpoint_id=checkpoint.id, run_id=run.id, status=ExportStatus.COMPLETED)
    session.add(export)
    played = make_run(session, run.version, policy, checkpoint_id=checkpoint.id, name="evaluation")
    plan = plan_of(trainer, checkpoints=checkpoint.id)
    assert (plan["name"], plan["summary"], plan["kept"], plan["refusals"]) == ("trained step 40", "1 export", 1, [])
    address = f"/deletions/new?checkpoint={checkpoint.id}&of_run={run.id}"
    page = trainer.get(address).text
    assert "1 run played it and stays." in page
    assert "It is the best checkpoint of its run." in page
    assert address.replace("&", "&amp;") in trainer.get(f"/runs/{run.id}/checkpoints").text
    form = {"checkpoint": [str(checkpoint.id)], "of_run": str(run.id)}
    assert author.post("/deletions", data=form).status_code == 403
    assert trainer.post("/deletions", data=form).headers["location"] == f"/runs/{run.id}/checkpoints"
    session.expire_all()
    for gone in (f"checkpoints/{checkpoint.id}", f"exports/{export.id}"):
        assert trainer.get(f"/api/v1/{gone}").status_code == 404, gone
    assert f"checkpoint-{checkpoint.id}" not in trainer.get("/checkpoints").text
    for stays in (f"/runs/{run.id}", f"/runs/{played.id}", f"/policies/{policy.id}", "/checkpoints/list"):
        assert trainer.get(stays).status_code == 200, stays
    recent = trainer.get("/deleted").text
    assert "trained step 40" in recent
    deletion = session.scalars(select(Deletion)).one()
    assert author.post(f"/api/v1/deletions/{deletion.id}/restore").status_code == 403
    assert trainer.post(f"/deletions/{deletion.request_id}/undo").headers["location"] == "/checkpoints"
    session.expire_all()
    assert trainer.get(f"/api/v1/exports/{export.id}").status_code == 200
    trainer.post("/deletions", data=form)
    checkpoint_id, artifact, played_id = checkpoint.id, checkpoint.artifact, played.id
    expire(session)
    purge(session)
    session.expunge_all()
    assert session.get(Checkpoint, checkpoint_id) is None
    assert session.scalars(select(Export)).all() == []
    assert not (purging / artifact).exists()
    assert session.get_one(Run, played_id).checkpoint_id is None


def test_a_checkpoint_that_is_needed_is_refused(
    trainer: TestClient, session: Session, trained: tuple[Run, Policy, Checkpoint]
) -> None:
    run, policy, checkpoint = trained
    started = make_run(session, kind=RunKind.TRAINING, checkpoint_id=checkpoint.id, name="later")
    study = make_study(session, run)
    session.add(StudyCheckpoint(study_id=study.id, checkpoint_id=checkpoint.id, stage="grpo", step=40))
    make_run(session, run.version, policy, status=RunStatus.QUEUED, checkpoint_id=checkpoint.id, name="queued")
    checkpoint.is_kept = True
    session.flush()
    refusals = plan_of(trainer, checkpoints=checkpoint.id)["refusals"]
    assert refusals == [
        "A member marked it to be kept. Release it first.",
        "A study used it. Delete the study first.",
        "The run later started from it. Delete that run first.",
        "Another run or an adapter needs its weights. Delete that first.",
        "The run queued is queued and uses it. Stop that run first, or wait for its end.",
    ]
    answer = trainer.post("/api/v1/deletions", json={"checkpoints": [str(checkpoint.id)], "runs": [str(started.id)]})
    assert answer.status_code == 409
    run.status = RunStatus.RUNNING
    session.flush()
    assert "Its run training is running. Stop it first." in str(plan_of(trainer, checkpoints=checkpoint.id))
    assert trainer.get(f"/deletions/new?checkpoint={uuid.uuid4()}").status_code == 404


def test_a_run_takes_its_deleted_checkpoint_along(
    trainer: TestClient, session: Session, trained: tuple[Run, Policy, Checkpoint], purging: Path
) -> None:
    run, _, checkpoint = trained
    ids = {"checkpoints": [str(checkpoint.id)]}
    (made,) = trainer.post("/api/v1/deletions", json=ids).json()["items"]
    assert trainer.post("/api/v1/deletions", json={"runs": [str(run.id)]}).status_code == 201
    refused = trainer.post(f"/api/v1/deletions/{made['id']}/restore")
    assert "needs the run training, which is deleted" in refused.text
    checkpoint_id = checkpoint.id
    expire(session)
    purge(session)
    session.expunge_all()
    assert session.get(Checkpoint, checkpoint_id) is None
    assert session.scalars(select(Deletion)).all() == []


def test_a_study_goes_with_its_measurements(
    author: TestClient, session: Session, trained: tuple[Run, Policy, Checkpoint], purging: Path
) -> None:
    run, _, checkpoint = trained
    study = make_study(session, run, status=RunStatus.RUNNING)
    evaluation = make_run(session, run.version, name="of the study")
    sampled = StudyCheckpoint(
        study_id=study.id, checkpoint_id=checkpoint.id, run_id=evaluation.id, stage="grpo", step=40
    )
    session.add(sampled)
    session.flush()
    reply = {"rollout_id": uuid.uuid4(), "task": "heldout/1", "characters": 9, "values": [1.0], "score": 1.0}
    session.add(EffortReply(study_checkpoint_id=sampled.id, **reply))
    session.flush()
    assert plan_of(author, studies=study.id)["refusals"] == ["It is running. Stop it, or wait for its end."]
    study.status = RunStatus.COMPLETED
    session.flush()
    page = author.get(f"/deletions/new?study={study.id}&of_run={run.id}").text
    for text in ("effort study of training", "with 1 reply", "1 evaluation that it started stays."):
        assert text in page, text
    form = {"study": str(study.id), "of_run": str(run.id)}
    assert author.post("/deletions", data=form).headers["location"] == f"/runs/{run.id}/studies"
    session.expire_all()
    assert author.get(f"/api/v1/studies/{study.id}").status_code == 404
    assert author.get(f"/api/v1/runs/{run.id}/studies").json()["studies"] == []
    request_id = session.scalar(select(Deletion.request_id))
    undone = author.post(f"/deletions/{request_id}/undo").headers["location"]
    assert undone == f"/runs/{run.id}/studies"
    assert author.post("/api/v1/deletions", json={"studies": [str(study.id)]}).status_code == 201
    study_id, evaluation_id = study.id, evaluation.id
    expire(session)
    purge(session)
    session.expunge_all()
    assert session.get(Study, study_id) is None
    assert session.get(Run, evaluation_id) is not None


def test_a_grader_leaves_its_grades_and_its_name(
    author: TestClient, trainer: TestClient, session: Session, purging: Path
) -> None:
    run = make_run(session, name="graded")
    rollout = make_rollout(session, run, make_group(session, run), (1.0, 1.0, 0.0))
    grader, unused, judge = make_grader(session), make_grader(session), make_grader(session, GraderKind.JUDGE)
    work = GraderRun(grader_id=grader.id, run_id=run.id, status=RunStatus.RUNNING)
    grade = {"run_id": run.id, "rollout_id": rollout.id, "status": GradeStatus.COMPLETED, "answer": "yes"}
    session.add_all([work, Grade(grader_id=grader.id, **grade)])
    session.flush()
    former = grader.name
    assert "at work on the run graded" in str(plan_of(author, graders=grader.id)["refusals"])
    work.status = RunStatus.COMPLETED
    session.flush()
    assert "Its 1 grade of 1 run stay with the rollouts." in author.get(f"/deletions/new?grader={grader.id}").text
    chosen = {"graders": [str(grader.id), str(unused.id)]}
    made = author.post("/api/v1/deletions", json=chosen).json()["items"]
    assert [each["kind"] for each in made] == ["grader", "grader"]
    assert author.post("/api/v1/deletions", json={"graders": [str(judge.id)]}).status_code == 403
    session.expire_all()
    assert former not in author.get("/graders").text
    again = make_policy(session)
    session.add(Grader(name=former, kind=GraderKind.QUESTION, policy_id=again.id, settings=grader.settings))
    session.flush()
    own = next(each["id"] for each in made if each["item_id"] == str(grader.id))
    assert "another grader called" in author.post(f"/api/v1/deletions/{own}/restore").text
    session.scalars(select(Grader).where(Grader.name == former)).one().name = "other"
    session.flush()
    assert author.post(f"/api/v1/deletions/{own}/restore").status_code == 200
    session.expire_all()
    assert (grader.name, grader.deleted_at) == (former, None)
    assert author.delete(f"/api/v1/graders/{grader.id}").status_code == 200
    kept, gone = grader.id, unused.id
    expire(session)
    purge(session)
    session.expunge_all()
    assert session.get(Grader, gone) is None
    assert session.get(Grader, kept) is not None, "its grades show by whom they are"
