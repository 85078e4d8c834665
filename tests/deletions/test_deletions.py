"""Deleted items are found by nothing, can be restored for 30 days, and are then removed."""

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.core.row_access import hide_deleted
from backend.core.tables import Job
from backend.deletions.schemas import DeleteItems
from backend.deletions.service import DeletedMeanwhile, delete_items
from backend.deletions.tables import Deletion
from backend.domain.deletions import in_words
from backend.domain.graders.settings import GraderKind
from backend.domain.projects.access import ProjectAccess
from backend.domain.vocabulary import ExportStatus, PolicyKind, Role, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentDraft
from backend.graders.tables import Grader
from backend.policies.tables import Policy
from backend.projects.tables import Project, ProjectMember
from backend.rollouts.tables import Rollout
from backend.runs.tables import MetricPoint, Run
from backend.team.tables import AuditEvent
from backend.web.identity import Actor
from tests.deletions.conftest import purge
from tests.factories import (
    make_checkpoint,
    make_environment,
    make_environment_version,
    make_flag,
    make_group,
    make_person,
    make_points,
    make_policy,
    make_rollout,
    make_rollouts,
    make_run,
)
from tests.web_fixtures import make_person as make_member
from tests.web_fixtures import sign_in
from workers.tasks import housekeeping

ended = partial(make_run, status=RunStatus.COMPLETED)


def trained(session: Session, name: str = "trained", **fields: object) -> tuple[Run, Policy]:
    policy = make_policy(session, f"{name} policy", PolicyKind.LOCAL, {"architecture": "tiny"})
    return ended(session, policy=policy, kind=RunKind.TRAINING, name=name, **fields), policy


def deleted(client: TestClient, **items: list[str]) -> list[dict]:
    answer = client.post("/api/v1/deletions", json=items)
    assert answer.status_code == 201, answer.text
    return answer.json()["items"]


@pytest.mark.slow
def test_a_deleted_run_is_found_nowhere_and_can_be_restored(author: TestClient, session: Session) -> None:
    run, other = ended(session, name="gone soon"), ended(session, name="stays")
    rollout = make_rollout(session, run, make_group(session, run), (1.0, 1.0, 0.0))
    make_flag(session, run, rollout)
    preview = author.get("/api/v1/deletions/preview", params={"runs": str(run.id)}).json()["items"]
    assert [(each["name"], each["summary"], each["refusals"]) for each in preview] == [("gone soon", "1 rollout", [])]
    (deletion,) = deleted(author, runs=[str(run.id)])
    assert (deletion["kind"], deletion["summary"], deletion["deleted_by"]) == ("run", "1 rollout", "Author")
    session.expire_all()
    for address in (f"runs/{run.id}", f"rollouts/{rollout.id}", f"runs/{run.id}/rollouts", f"runs/{run.id}/log"):
        assert author.get(f"/api/v1/{address}").status_code == 404, address
    assert author.get(f"/runs/{run.id}").status_code == 404
    assert [each["id"] for each in author.get("/api/v1/runs").json()["items"]] == [str(other.id)]
    assert "gone soon" not in author.get("/runs").text
    assert author.post("/api/v1/deletions", json={"runs": [str(run.id)]}).status_code == 404
    assert author.post("/api/v1/runs/tags", json={"runs": [str(run.id)], "add": ["x"]}).status_code == 404
    restored = author.post(f"/api/v1/deletions/{deletion['id']}/restore")
    assert restored.status_code == 200, restored.text
    session.expire_all()
    assert author.get(f"/api/v1/runs/{run.id}").json()["name"] == "gone soon"
    assert author.get(f"/api/v1/rollouts/{rollout.id}").status_code == 200
    assert author.post(f"/api/v1/deletions/{deletion['id']}/restore").status_code == 404
    actions = session.scalars(select(AuditEvent.action).where(AuditEvent.subject_id == str(run.id))).all()
    assert sorted(actions) == ["run.delete", "run.restore"]


def test_pages_confirm_undo_and_list_deletions(author: TestClient, viewer: TestClient, session: Session) -> None:
    runs = [ended(session, name=name) for name in ("first", "second")]
    make_rollouts(session, runs[0], [[1.0, 1.0, 0.0]] * 3)
    form = {"run": [str(run.id) for run in runs], "choice": "delete"}
    address = author.post("/runs/bulk", data=form).headers["location"]
    page = author.get(address).text
    assert "Delete 2 runs" in page
    assert "with 3 rollouts" in page
    assert viewer.get(address).status_code == 403
    assert viewer.post("/deletions", data=form).status_code == 403
    answer = author.post("/deletions", data=form)
    assert answer.headers["location"] == "/runs"
    session.expire_all()
    listed = author.get("/runs").text
    assert "2 items were deleted and can be restored for 30 days." in listed
    assert "/undo" in listed
    assert "/undo" not in author.get("/runs").text
    recent = viewer.get("/deleted").text
    assert "first" in recent
    assert "3 rollouts" in recent
    assert "Restore<" not in recent
    request_id = session.scalar(select(Deletion.request_id).limit(1))
    undone = author.post(f"/deletions/{request_id}/undo")
    assert undone.headers["location"] == "/runs"
    session.expire_all()
    assert [run.deletion_id for run in runs] == [None, None]
    assert author.post(f"/deletions/{request_id}/undo").status_code == 404
    assert author.get(f"/deletions/new?run={uuid.uuid4()}").status_code == 404
    assert author.get("/deletions/new").status_code == 422


def test_archived_runs_are_hidden_from_the_list_only(author: TestClient, viewer: TestClient, session: Session) -> None:
    run, other = ended(session, name="old one"), ended(session, name="new one")
    chosen = {"run": [str(run.id)], "choice": "archive"}
    assert viewer.post("/runs/bulk", data=chosen).status_code == 403
    assert author.post("/runs/bulk", data=chosen).status_code == 303
    session.expire_all()
    assert [each["name"] for each in viewer.get("/api/v1/runs").json()["items"]] == [other.name]
    assert [each["name"] for each in viewer.get("/api/v1/runs?archived=true").json()["items"]] == [run.name]
    assert "archived" in viewer.get(f"/runs/{run.id}").text
    answer = author.post("/api/v1/runs/archive", json={"runs": [str(run.id)], "archived": False})
    assert answer.json()["items"][0]["archived_at"] is None
    session.expire_all()
    assert "old one" in viewer.get("/runs").text


def test_archived_policies_are_no_choice_but_can_be_used(author: TestClient, session: Session) -> None:
    make_policy(session, "old endpoint")
    assert author.post("/api/v1/policies/old endpoint/archive").status_code == 200
    session.expire_all()
    assert "old endpoint" not in author.get("/policies").text
    assert "old endpoint" not in author.get("/evaluations/new").text
    assert "old endpoint" in author.get("/policies?archived=true").text
    assert author.get("/api/v1/policies/old endpoint").json()["archived_at"]
    assert author.post("/api/v1/policies/old endpoint/restore").json()["archived_at"] is None
    session.expire_all()
    assert "old endpoint" in author.get("/policies").text


def test_a_training_run_takes_its_policy_along(author: TestClient, session: Session) -> None:
    run, policy = trained(session)
    checkpoint = make_checkpoint(session, policy, run)
    session.add(Export(checkpoint_id=checkpoint.id, run_id=run.id, status=ExportStatus.COMPLETED))
    evaluation = ended(session, run.version, policy, checkpoint_id=checkpoint.id, name="evaluation of it")
    (deletion,) = deleted(author, runs=[str(run.id)])
    assert deletion["summary"] == "1 policy, 1 checkpoint and 1 export"
    session.expire_all()
    assert author.get("/api/v1/checkpoints").json()["items"] == []
    assert author.get(f"/api/v1/checkpoints/{checkpoint.id}").status_code == 404
    assert "trained policy" not in author.get("/policies").text
    for address in (
        f"/runs/{evaluation.id}",
        f"/runs/{evaluation.id}/configuration",
        "/runs",
        f"/policies/{policy.id}",
    ):
        assert author.get(address).status_code == 200, address
    make_policy(session, "trained policy")
    refused = author.post(f"/api/v1/deletions/{deletion['id']}/restore")
    assert refused.status_code == 409
    assert "another policy called trained policy" in refused.text
    session.scalar(select(Policy).where(Policy.name == "trained policy")).name = "other"
    session.flush()
    assert author.post(f"/api/v1/deletions/{deletion['id']}/restore").status_code == 200
    session.expire_all()
    assert (policy.name, policy.deleted_at, run.deletion_id) == ("trained policy", None, None)


def test_what_is_at_work_or_needed_is_refused(author: TestClient, session: Session) -> None:
    active = make_run(session, status=RunStatus.RUNNING, name="busy")
    base, policy = trained(session, "base")
    checkpoint = make_checkpoint(session, policy, base)
    opponent = {"opponent": {"checkpoint_id": str(checkpoint.id)}}
    make_run(session, status=RunStatus.QUEUED, name="duel", configuration=opponent)
    judged, judge_policy = trained(session, "judge base")
    session.add(Grader(name="uses it", kind=GraderKind.JUDGE, policy_id=judge_policy.id, settings={}))
    graded = ended(session, name="graded")
    session.add(Job(name="judging.detect", queue="cpu", run_id=graded.id))
    session.flush()
    fine = ended(session, name="fine")
    for run, reason in (
        (active, "It is running. Stop it first."),
        (base, "The run duel is queued and uses it."),
        (judged, "The grader uses it uses its policy judge base policy."),
        (graded, "Detectors or graders are still at work on it."),
    ):
        answer = author.post("/api/v1/deletions", json={"runs": [str(fine.id), str(run.id)]})
        assert (answer.status_code, reason in answer.text) == (409, True), answer.text
        assert reason in author.get(f"/deletions/new?run={run.id}").text
    session.expire_all()
    assert fine.deletion_id is None
    assert session.scalar(select(func.count(Deletion.id))) == 0


def test_an_environment_takes_its_runs_along_and_frees_its_name(author: TestClient, session: Session) -> None:
    environment = make_environment(session, "maze")
    session.add(EnvironmentDraft(environment_id=environment.id, files={}))
    version = make_environment_version(session, environment)
    run = ended(session, version, name="in the maze")
    assert author.get("/environments/maze").status_code == 200
    mixed, _ = trained(session, "mixed", configuration={"mix": ["maze=0.5"]})
    address = "/deletions/new?environment=maze"
    assert "The run mixed trained on it too." in author.get(address).text
    mixed.configuration = {}
    session.flush()
    assert "1 version and 1 run" in author.get(address).text
    (deletion,) = deleted(author, environments=["maze"], runs=[str(run.id)])
    assert deletion["contents"] == {"versions": 1, "runs": 1}
    session.expire_all()
    for gone in ("/environments/maze", "/api/v1/environments/maze", f"/runs/{run.id}"):
        assert author.get(gone).status_code == 404, gone
    assert "maze" not in author.get("/environments").text
    with pytest.raises(Exception, match="deleted this environment"), session.begin_nested():
        make_run(session, version)
    again = make_environment(session, "maze")
    assert author.post(f"/api/v1/deletions/{deletion['id']}/restore").status_code == 409
    again.name = "other_maze"
    session.flush()
    assert author.post(f"/api/v1/deletions/{deletion['id']}/restore").status_code == 200
    session.expire_all()
    assert author.get("/environments/maze").status_code == 200
    assert author.get(f"/runs/{run.id}").status_code == 200
    environment.is_built_in = True
    session.flush()
    assert "comes with Proctor" in author.get(address).text


def test_a_deleted_policy_can_be_restored_without_its_key(trainer: TestClient, session: Session) -> None:
    policy = make_policy(session, "endpoint", PolicyKind.OPENAI_API, {"base_url": "http://localhost:1", "model": "m"})
    policy.secret = b"sealed"
    session.flush()
    assert trainer.delete(f"/api/v1/policies/{policy.id}").status_code == 204
    (deletion,) = trainer.get("/api/v1/deletions").json()["items"]
    assert (deletion["kind"], deletion["name"]) == ("policy", "endpoint")
    author = trainer.post(f"/api/v1/deletions/{deletion['id']}/restore")
    assert author.status_code == 200
    session.expire_all()
    assert (policy.name, policy.deleted_at, policy.secret) == ("endpoint", None, None)


def test_projects_limit_who_deletes_and_restores(app: FastAPI, session: Session, admin: TestClient) -> None:
    secret, readable = Project(name="Secret", is_restricted=True), Project(name="Readable")
    session.add_all([secret, readable])
    session.flush()
    person = make_member(session, Role.AUTHOR, "someone@example.org")
    session.add(ProjectMember(project_id=readable.id, person_id=person.id, role=Role.VIEWER))
    environment = make_environment(session, "shared")
    version = make_environment_version(session, environment)
    hidden, read = ended(session, version, name="hidden run"), ended(session, version, name="read run")
    session.flush()
    hidden.project_id, read.project_id = secret.id, readable.id
    session.flush()
    browser = sign_in(app, session, person)
    for item in (hidden.id, uuid.uuid4()):
        assert browser.post("/api/v1/deletions", json={"runs": [str(item)]}).status_code == 404
        assert browser.get(f"/deletions/new?run={item}").status_code == 404
    assert browser.post("/api/v1/deletions", json={"runs": [str(read.id)]}).status_code == 403
    refused = browser.post("/api/v1/deletions", json={"environments": ["shared"]})
    assert refused.status_code == 409
    assert "Runs of a project that you do not see use it." in refused.text
    assert "hidden run" not in refused.text
    made = deleted(admin, runs=[str(hidden.id), str(read.id)])
    assert [each["name"] for each in browser.get("/api/v1/deletions").json()["items"]] == ["read run"]
    for deletion, status in zip(made, (404, 403), strict=True):
        assert browser.post(f"/api/v1/deletions/{deletion['id']}/restore").status_code == status
    request_id = session.scalar(select(Deletion.request_id).limit(1))
    assert browser.post(f"/deletions/{request_id}/undo").status_code == 403
    session.expire_all()
    assert hidden.deletion_id is not None
    assert read.deletion_id is not None
    assert admin.delete(f"/api/v1/projects/{readable.id}").status_code == 409
    assert admin.post(f"/deletions/{request_id}/undo").status_code == 303


def test_the_second_of_two_people_learns_who_was_first(session: Session) -> None:
    run = ended(session)
    actors = [
        Actor(person.id, Role.AUTHOR, name=person.name, access=ProjectAccess(Role.AUTHOR))
        for person in (make_person(session, Role.AUTHOR, "Ada"), make_person(session, Role.AUTHOR, "Bob"))
    ]
    request = DeleteItems(runs=[str(run.id)])
    delete_items(session, actors[0], request)
    session.info.clear()  # another request, whose session began before the deletion
    with pytest.raises(DeletedMeanwhile, match="Ada deleted"):
        delete_items(session, actors[1], request)


@pytest.mark.slow
def test_purging_removes_rows_and_files_but_not_what_others_need(
    author: TestClient, session: Session, purging: Path
) -> None:
    run, policy = trained(session)
    base, last = (make_checkpoint(session, policy, run, step=step) for step in (1, 2))
    for checkpoint in (base, last):
        artifacts.put_folder(Path(__file__).parent, checkpoint.artifact)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 5)
    make_points(session, run, "reward", dict.fromkeys(range(5), 0.5))
    later, _ = trained(session, "later", checkpoint_id=base.id)
    evaluation = ended(session, run.version, policy, checkpoint_id=last.id)
    preview = author.get(f"/api/v1/deletions/preview?runs={run.id}").json()["items"][0]
    assert (preview["summary"], preview["kept"]) == ("5 rollouts, 1 policy and 2 checkpoints", 2)
    deleted(author, runs=[str(run.id)])
    session.info.clear()
    purge(session)
    assert session.get(Run, run.id) is not None, "its 30 days are not over"
    deletion = session.scalars(select(Deletion)).one()
    deletion.purge_at = datetime.now(UTC) - timedelta(days=1)
    session.flush()
    ids = run.id, base.id, last.id, policy.id, later.id, evaluation.id
    purge(session)
    session.expunge_all()
    run_id, base_id, last_id, policy_id, later_id, evaluation_id = ids
    for table in (Rollout, MetricPoint):
        assert session.scalar(select(func.count()).where(table.run_id == run_id)) == 0
    assert session.get(Run, run_id) is None
    assert session.get(Checkpoint, last_id) is None
    assert session.scalars(select(Deletion)).all() == []
    kept = session.get_one(Checkpoint, base_id)
    assert kept.run_id is None
    assert (purging / kept.artifact).exists(), "a later run starts from it"
    assert len(list((purging / "checkpoints").iterdir())) == 1
    assert session.get(Policy, policy_id) is not None, "an evaluation was played by it"
    for address in (
        f"/runs/{later_id}",
        f"/runs/{evaluation_id}",
        f"/runs/{evaluation_id}/configuration",
        "/checkpoints",
    ):
        assert author.get(address).status_code == 200, address
    deleted(author, runs=[str(later_id), str(evaluation_id)])
    session.info.clear()
    for deletion in session.scalars(select(Deletion)):
        deletion.purge_at = datetime.now(UTC) - timedelta(days=1)
    session.flush()
    purge(session)
    session.expunge_all()
    assert session.get(Checkpoint, base_id) is None, "nothing needs it any more"
    assert list((purging / "checkpoints").iterdir()) == []
    assert session.get(Policy, policy_id) is None


def test_purging_an_environment_leaves_nothing(admin: TestClient, session: Session, purging: Path) -> None:
    version = make_environment_version(session, make_environment(session, "maze"))
    run = ended(session, version)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3)
    (deletion,) = deleted(admin, environments=["maze"])
    assert admin.delete(f"/api/v1/deletions/{deletion['id']}").status_code == 204
    session.info.clear()
    environment_id = version.environment_id
    session.scalars(select(Deletion)).one().purge_at = datetime.now(UTC) - timedelta(days=1)
    with session.begin_nested():
        housekeeping.purge_deleted(session)
    refused = admin.post(f"/api/v1/deletions/{deletion['id']}/restore")
    assert refused.status_code == 409
    assert "being removed" in refused.text
    session.info.clear()
    purge(session)
    session.expunge_all()
    assert session.get(Environment, environment_id) is None


def test_jobs_of_housekeeping_see_no_deleted_run(author: TestClient, session: Session) -> None:
    run = ended(session)
    deleted(author, runs=[str(run.id)])
    session.expunge_all()
    assert session.scalar(select(func.count(Run.id))) == 1
    hide_deleted(session)
    assert session.scalar(select(func.count(Run.id))) == 0


def test_contents_are_put_in_words() -> None:
    assert in_words({"rollouts": 1_200, "policies": 1, "exports": 0}) == "1,200 rollouts and 1 policy"
    assert in_words({}) == ""
