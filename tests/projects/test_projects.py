"""Projects: roles in them, what belongs to them, moving items, and undoing that."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.projects.access import DEFAULT_PROJECT
from backend.domain.vocabulary import PolicyKind, Role, RunKind
from backend.environments.tables import Environment
from backend.policies.tables import Policy
from backend.projects.tables import Project, ProjectMember
from backend.runs.tables import Run, UsedAcrossProjects
from backend.team.tables import Person
from tests.factories import make_environment, make_environment_version, make_person, make_policy, make_run
from tests.web_fixtures import ClientFor, sign_in


@pytest.fixture
def vision(session: Session) -> Project:
    """An open project."""
    project = Project(name="Vision")
    session.add(project)
    session.flush()
    return project


def member(session: Session, app: FastAPI, project: Project, team: Role, here: Role) -> TestClient:
    person = make_person(session, team)
    session.add(ProjectMember(project_id=project.id, person_id=person.id, role=here))
    session.flush()
    return sign_in(app, session, person)


def test_nothing_mentions_projects_before_there_is_a_second_one(client_for: ClientFor, session: Session) -> None:
    run = make_run(session)
    trainer = client_for(Role.TRAINER)
    pages = ["/", "/runs", "/environments", f"/runs/{run.id}/configuration", "/team", f"/policies/{run.policy_id}"]
    for address in pages:
        assert "project" not in trainer.get(address).text.lower().replace("project-", ""), address


def test_a_role_in_a_project_raises_and_lowers_the_role_in_the_team(
    app: FastAPI, session: Session, vision: Project
) -> None:
    environment = make_environment(session)
    environment.project_id = vision.id
    version = make_environment_version(session, environment)
    run, elsewhere = make_run(session, version), make_run(session)
    raised = member(session, app, vision, Role.VIEWER, Role.AUTHOR)
    lowered = member(session, app, vision, Role.AUTHOR, Role.VIEWER)
    for browser, here, there in ((raised, 409, 403), (lowered, 403, 409)):  # both runs have ended: a conflict
        answer = browser.post(f"/api/v1/runs/{run.id}/stop")
        assert answer.status_code == here, answer.text
        assert browser.post(f"/api/v1/runs/{elsewhere.id}/stop").status_code == there
    body = {"environment": environment.name, "policy": make_policy(session).name, "tasks": 1}
    assert lowered.post("/api/v1/evaluations", json=body).status_code == 403
    assert session.scalar(select(Run.id).where(Run.version_id == version.id, Run.id != run.id)) is None
    assert "Stop" not in lowered.get(f"/runs/{run.id}").text


def test_a_member_sees_a_restricted_project_and_a_token_no_more_than_its_role(
    app: FastAPI, session: Session, vision: Project
) -> None:
    environment = make_environment(session)
    environment.project_id = vision.id
    session.flush()
    run = make_run(session, make_environment_version(session, environment))
    vision.is_restricted = True
    browser = member(session, app, vision, Role.VIEWER, Role.TRAINER)
    stranger = sign_in(app, session, make_person(session, Role.TRAINER))
    assert browser.get(f"/runs/{run.id}").status_code == 200
    assert stranger.get(f"/runs/{run.id}").status_code == 404
    created = browser.post("/api/v1/tokens", json={"name": "script", "role": "viewer"}).json()
    headers = {"Authorization": f"Bearer {created['secret']}"}
    script = TestClient(app, headers=headers)
    script.portal = app.state.portal
    assert script.get(f"/api/v1/runs/{run.id}").status_code == 200
    assert script.post(f"/api/v1/runs/{run.id}/stop").status_code == 403


def test_new_runs_belong_to_the_project_of_what_they_use(session: Session, vision: Project) -> None:
    environment, policy = make_environment(session), make_policy(session)
    version = make_environment_version(session, environment)
    assert make_run(session, version, policy).project_id == DEFAULT_PROJECT
    environment.project_id = vision.id
    session.flush()
    run = make_run(session, version, policy)
    assert run.project_id == vision.id
    assert make_run(session, None, policy, source_run_id=run.id).project_id == vision.id
    secret = Project(name="Secret", is_restricted=True)
    session.add(secret)
    session.flush()
    policy.project_id = secret.id
    session.flush()
    assert make_run(session, version, policy).project_id == secret.id
    vision.is_restricted = True
    session.flush()
    with pytest.raises(UsedAcrossProjects), session.begin_nested():
        make_run(session, version, policy)


def test_items_move_with_what_belongs_to_them_and_back(
    client_for: ClientFor, session: Session, vision: Project
) -> None:
    environment = make_environment(session)
    version = make_environment_version(session, environment)
    trained = make_policy(session, kind=PolicyKind.LOCAL, configuration={})
    training = make_run(session, version, trained, kind=RunKind.TRAINING)
    author = client_for(Role.AUTHOR)
    answer = author.post("/api/v1/projects/Vision/items", json={"environments": [environment.name]})
    assert answer.status_code == 200, answer.text
    moved = answer.json()
    assert (moved["environments"], moved["policies"], moved["runs"]) == (1, 1, 1)
    for table, row in ((Environment, environment), (Policy, trained), (Run, training)):
        assert session.get_one(table, row.id).project_id == vision.id
    page = author.get(f"/projects/{vision.id}").text
    assert environment.name in page
    assert f"/projects/moves/{moved['id']}/undo" in page
    assert author.post(f"/projects/moves/{moved['id']}/undo").status_code == 303
    assert {environment.project_id, trained.project_id, training.project_id} == {DEFAULT_PROJECT}


def test_the_second_of_two_people_who_move_a_run_reads_who_was_first(
    app: FastAPI, client_for: ClientFor, session: Session, vision: Project
) -> None:
    other = Project(name="Other")
    session.add(other)
    run = make_run(session)
    first = sign_in(app, session, make_person(session, Role.AUTHOR, "Ada"))
    body = {"runs": [str(run.id)], "source": "Default"}
    assert first.post("/api/v1/projects/Vision/items", json=body).status_code == 200
    second = client_for(Role.AUTHOR).post("/api/v1/projects/Other/items", json=body)
    assert second.status_code == 409
    assert f"Ada moved {run.name} to Vision in the meantime" in second.json()["detail"]
    assert run.project_id == vision.id


def test_a_restricted_project_keeps_what_its_runs_use(client_for: ClientFor, session: Session, vision: Project) -> None:
    admin = client_for(Role.ADMIN)
    environment = make_environment(session)
    run = make_run(session, make_environment_version(session, environment))
    admin.post("/api/v1/projects/Vision/items", json={"environments": [environment.name]})
    assert run.project_id == vision.id
    assert admin.patch("/api/v1/projects/Vision", json={"is_restricted": True}).status_code == 200
    refused = admin.post("/api/v1/projects/Default/items", json={"runs": [str(run.id)]})
    assert refused.status_code == 409
    assert environment.name in refused.json()["detail"]
    assert admin.patch("/api/v1/projects/Default", json={"is_restricted": True}).status_code == 409
    assert admin.delete("/api/v1/projects/Vision").status_code == 409


def test_the_chosen_project_filters_lists_and_takes_new_items(
    client_for: ClientFor, session: Session, vision: Project
) -> None:
    author = client_for(Role.AUTHOR)
    elsewhere = make_run(session, name="somewhere else")
    training = make_run(session, name="training elsewhere", kind=RunKind.TRAINING)
    assert training.name in author.get("/training").text
    chosen = author.post("/projects/choose", data={"project": str(vision.id), "here": "/runs"})
    assert chosen.headers["location"] == "/runs"
    listed = author.get("/runs").text
    assert elsewhere.name not in listed
    assert training.name not in author.get("/training").text
    assert f'<option value="{vision.id}" selected>' in listed
    body = {"environment": elsewhere.version.environment.name, "policy": elsewhere.policy.name, "tasks": 1}
    started = author.post("/api/v1/evaluations", json=body)
    assert started.status_code in {200, 201, 202}, started.text
    assert session.get_one(Run, started.json()["id"]).project_id == vision.id
    author.post("/projects/choose", data={"project": "", "here": "https://elsewhere.example"})
    assert elsewhere.name in author.get("/runs").text


def test_administrators_create_projects_and_give_roles(client_for: ClientFor, session: Session) -> None:
    admin, person = client_for(Role.ADMIN), make_person(session, Role.VIEWER, "Grace")
    form = {"name": "Maths", "description": "Numbers.", "is_restricted": "true"}
    created = admin.post("/projects", data=form)
    assert created.status_code == 303, created.text
    address = created.headers["location"]
    assert admin.post("/projects", data={"name": "maths"}).status_code == 422
    assert client_for(Role.AUTHOR).post("/projects", data={"name": "Mine"}).status_code == 403
    assert admin.post(f"{address}/members", data={"member": str(person.id), "role": "author"}).status_code == 303
    page = admin.get(address).text
    assert "Grace" in page
    assert "members only" in page
    assert admin.post(f"{address}/members/{person.id}/delete").status_code == 303
    assert session.scalar(select(ProjectMember)) is None
    assert admin.post(f"{address}/delete").status_code == 303
    assert session.scalar(select(Person.name).where(Person.id == person.id)) == "Grace"
