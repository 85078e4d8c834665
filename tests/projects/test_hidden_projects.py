"""A restricted project is invisible to people who are not its members, by whatever address."""

import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select, true, update
from sqlalchemy.orm import Session, aliased

from backend.app import OPERATIONS
from backend.checkpoints.tables import Export
from backend.core.row_access import limit_to, owned_tables
from backend.core.tables import Base
from backend.deletions.tables import Deletion
from backend.domain.deletions import DeletedKind
from backend.domain.graders.settings import GraderKind
from backend.domain.projects.access import ProjectAccess
from backend.domain.shares import ShareKind
from backend.domain.studies.study import StudyKind
from backend.domain.vocabulary import Role, RunKind
from backend.environments.tables import Environment
from backend.errors import NotFound
from backend.graders.tables import Grader
from backend.operations.declaration import operations_of
from backend.projects.tables import Project
from backend.review.tables import VerdictFixture
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.shares.tables import Share
from backend.studies.tables import Study
from backend.sweeps.tables import Sweep
from backend.training.tables import Preflight
from backend.web.dependencies import PLACES
from backend.web.identity import Actor
from backend.web.routing import guarded_routes
from tests.factories import (
    make_checkpoint,
    make_environment,
    make_environment_version,
    make_flag,
    make_group,
    make_policy,
    make_rollout,
    make_run,
)
from tests.web_fixtures import make_person, sign_in

OPERATIONS_OF_ALL = [operation for module in OPERATIONS for operation in operations_of(module)]
OF_THE_TEAM = {"delivery", "destination", "detector", "file", "member", "notice", "project", "token", "view"}
"""Rows in addresses that belong to no project."""


@dataclass
class HiddenItems:
    """A restricted project with one row of everything, and a trainer who is no member."""

    project: Project
    ids: dict[str, str]
    trainer: Actor
    browser: TestClient


@pytest.fixture
def hidden(app: FastAPI, session: Session) -> HiddenItems:
    project = Project(name="Secret", is_restricted=True)
    session.add(project)
    session.flush()
    environment = make_environment(session, "secret_game")
    policy = make_policy(session, "secret_policy")
    environment.project_id = policy.project_id = project.id
    session.flush()
    version = make_environment_version(session, environment)
    run = make_run(session, version, policy, kind=RunKind.TRAINING, name="secret run")
    assert run.project_id == project.id
    checkpoint = make_checkpoint(session, policy, run)
    export = Export(checkpoint_id=checkpoint.id, run_id=run.id)
    rollout = make_rollout(session, run, make_group(session, run), (1.0, 1.0, 0.0))
    flag = make_flag(session, run, rollout)
    fixture = VerdictFixture(
        environment_id=environment.id, rollout_id=rollout.id, task={}, replies=[], lowest=None, highest=0.0
    )
    study = Study(kind=StudyKind.ONSET, run_id=run.id, version_id=version.id, settings={})
    sweep = Sweep(
        name="secret sweep", project_id=project.id, version_id=version.id, settings={"space": {}, "trials": 1}
    )
    grader = Grader(name="secret_judge", kind=GraderKind.JUDGE, policy_id=policy.id, settings={})
    preflight = Preflight(version_id=version.id)
    share = Share(
        kind=ShareKind.RUN,
        name="secret run",
        run_id=run.id,
        choice={"kind": "run", "item": [str(run.id)]},
        token_hash=bytes(32),
        created_by=make_person(session, Role.ADMIN).id,
        expires_at=datetime.now(UTC) + timedelta(days=1),
    )
    deletion = Deletion(
        request_id=project.id,
        kind=DeletedKind.RUN,
        item_id=project.id,
        name="secret deletion",
        project_id=project.id,
        purge_at=datetime.now(UTC),
    )
    session.add_all([export, fixture, study, sweep, grader, preflight, share, deletion])
    session.flush()
    rows = {
        "run": run,
        "deletion": deletion,
        "policy": policy,
        "checkpoint": checkpoint,
        "export": export,
        "rollout": rollout,
        "other": rollout,
        "flag": flag,
        "item": rollout,
        "environment": environment,
        "fixture": fixture,
        "study": study,
        "sweep": sweep,
        "grader": grader,
        "preflight": preflight,
        "share": share,
    }
    ids = {name: str(row.id) for name, row in rows.items()} | {"name": environment.name, "number": "1"}
    person = make_person(session, Role.TRAINER)
    access = ProjectAccess(Role.TRAINER, hidden=frozenset({project.id}))
    actor = Actor(person.id, Role.TRAINER, name="Trainer", access=access)
    return HiddenItems(project, ids, actor, sign_in(app, session, person))


def test_every_operation_refuses_a_row_of_a_hidden_project(session: Session, hidden: HiddenItems) -> None:
    session.expunge_all()
    limit_to(session, hidden.trainer.access)
    tried = 0
    for operation in OPERATIONS_OF_ALL:
        names = operation.rows.keys() - OF_THE_TEAM
        if not names or operation.role is Role.ADMIN:
            continue
        assert names <= hidden.ids.keys(), f"{operation.route} has a new kind of row: make one above"
        arguments = {name: hidden.ids.get(name, "x") for name in [*operation.rows, *operation.plain]}
        with pytest.raises(NotFound):
            operation.run(session, hidden.trainer, arguments)
        tried += 1
    assert tried > 80


def test_every_operation_refuses_a_row_of_a_deleted_run_or_environment(session: Session, hidden: HiddenItems) -> None:
    mark = uuid.UUID(hidden.ids["deletion"])
    for table, name in ((Run, "run"), (Environment, "environment")):
        session.execute(update(table).where(table.id == uuid.UUID(hidden.ids[name])).values(deletion_id=mark))
    session.expunge_all()
    everyone = Actor(hidden.trainer.person_id, Role.ADMIN, name="Admin", access=ProjectAccess(Role.ADMIN))
    limit_to(session, everyone.access)
    stay = {"deletion", "grader", "policy"}
    tried = 0
    for operation in OPERATIONS_OF_ALL:
        names = operation.rows.keys() - OF_THE_TEAM - stay
        if names and not operation.rows.keys() & stay:
            arguments = {name: hidden.ids.get(name, "x") for name in [*operation.rows, *operation.plain]}
            with pytest.raises(NotFound):
                operation.run(session, everyone, arguments)
            tried += 1
    assert tried > 70


def test_every_page_and_form_refuses_an_id_of_a_hidden_project(app: FastAPI, hidden: HiddenItems) -> None:
    tried = 0
    for path, methods, role in guarded_routes(app):
        segments = re.findall(r"{(\w+)", path)
        known = {name: hidden.ids.get(name.removesuffix("_id")) for name in segments}
        if path.startswith("/api/") or role is Role.ADMIN or not any(known.values()):
            continue
        for method in methods:
            address = path.format_map({name: value or "x" for name, value in known.items()})
            answer = hidden.browser.request(method, address)
            may_read_first = not any(name in {"name", *PLACES} for name in segments)  # the form, before the row
            allowed = {404, 422} if may_read_first else {404}
            assert answer.status_code in allowed, (method, path, answer.status_code, answer.text[:300])
            tried += 1
    assert tried > 120


@pytest.mark.parametrize(
    "address",
    [
        *(
            "/runs",
            "/environments",
            "/policies",
            "/checkpoints",
            "/review",
            "/graders",
            "/leaderboards",
            "/",
            "/compare",
        ),
        *(
            "/evaluations/new",
            "/training/new",
            "/data/sft",
            "/detectors",
            "/projects",
            "/notices",
            "/shares",
            "/sweeps",
        ),
        *("/api/v1/runs", "/api/v1/environments", "/api/v1/policies", "/api/v1/checkpoints"),
        *("/api/v1/review/items", "/api/v1/flags", "/api/v1/graders", "/api/v1/exports", "/api/v1/checkpoints/tree"),
        *(
            "/api/v1/training/choices",
            "/api/v1/projects",
            "/api/v1/notices",
            "/api/v1/deletions",
            "/deleted",
            "/api/v1/shares",
            "/api/v1/sweeps",
        ),
    ],
)
def test_lists_and_choices_omit_what_is_hidden(session: Session, hidden: HiddenItems, address: str) -> None:
    session.expunge_all()
    answer = hidden.browser.get(address)
    assert answer.status_code == 200, answer.text[:300]
    for word in ("secret", "Secret", hidden.ids["run"], hidden.ids["policy"]):
        assert word not in answer.text


@pytest.mark.parametrize(
    ("method", "address", "body"),
    [
        ("GET", "/api/v1/rollouts?run_id={run}", {}),
        ("POST", "/api/v1/shares", {"kind": "run", "item": ["{run}"]}),
        ("POST", "/api/v1/shares", {"kind": "environment", "item": ["secret_game"]}),
        ("GET", "/compare/report.html?run={run}&run={run}", {}),
        ("GET", "/api/v1/compare?first={run}&second={run}", {}),
        ("GET", "/compare?first={run}&second={run}", {}),
        ("GET", "/api/v1/sft?run={run}", {}),
        ("GET", "/data/sft?run={run}", {}),
        ("GET", "/exports/new?checkpoint_id={checkpoint}", {}),
        ("GET", "/evaluations/new?policy_id={policy}", {}),
        ("GET", "/training/new?again={run}", {}),
        ("GET", "/api/v1/runs?project=Secret", {}),
        ("POST", "/api/v1/evaluations", {"environment": "secret_game", "policy": "random"}),
        ("POST", "/api/v1/evaluations", {"environment": "open_game", "policy": "secret_policy"}),
        ("POST", "/api/v1/training", {"environment": "secret_game"}),
        ("POST", "/api/v1/rescores", {"runs": ["{run}"], "version": 1}),
        ("POST", "/api/v1/replays", {"runs": ["{run}"]}),
        ("POST", "/api/v1/checkpoints/prune", {"checkpoints": ["{checkpoint}"]}),
        ("POST", "/api/v1/compare/baselines", {"run": "{run}"}),
        ("POST", "/api/v1/exports", {"checkpoint": "{checkpoint}"}),
        ("POST", "/api/v1/projects/Default/items", {"runs": ["{run}"]}),
        ("POST", "/api/v1/deletions", {"runs": ["{run}"], "environments": ["secret_game"]}),
        ("POST", "/api/v1/runs/archive", {"runs": ["{run}"]}),
        ("GET", "/deletions/new?run={run}", {}),
    ],
)
def test_ids_in_queries_and_bodies_find_nothing(
    session: Session, hidden: HiddenItems, method: str, address: str, body: dict[str, object]
) -> None:
    make_environment_version(session, make_environment(session, "open_game"))
    session.expunge_all()
    text = json.dumps(body)
    for name, value in hidden.ids.items():
        text = text.replace(f"{{{name}}}", value)
    answer = hidden.browser.request(method, address.format_map(hidden.ids), content=text if body else None)
    assert method == "GET" or answer.status_code in {404, 422}, answer.text
    for word in ("secret_game v", "secret run", "secret_fixture"):
        assert word not in answer.text


def test_an_alias_finds_no_row_of_a_hidden_project_or_deleted_run(session: Session, hidden: HiddenItems) -> None:
    other, rollouts = aliased(Run), aliased(Rollout)
    beside = select(Run.id, other.id, rollouts.id).select_from(Run)
    beside = beside.outerjoin(other, true()).outerjoin(rollouts, true())
    alone = select(rollouts.id)
    seen = make_run(session)
    assert session.scalars(alone).all()

    limit_to(session, hidden.trainer.access)
    assert session.execute(beside).all() == [(seen.id, seen.id, None)]
    assert session.scalars(alone).all() == []

    limit_to(session, ProjectAccess(Role.ADMIN))
    run = session.get_one(Run, uuid.UUID(hidden.ids["run"]))
    run.deletion_id = uuid.UUID(hidden.ids["deletion"])
    session.flush()
    assert session.execute(beside).all() == [(seen.id, seen.id, None)]
    assert session.scalars(alone).all() == []


def test_names_of_hidden_items_are_taken(session: Session, hidden: HiddenItems) -> None:
    session.expunge_all()
    endpoint = {"name": "secret_policy", "script": "random"}
    for address, body in (
        ("policies", endpoint),
        ("environments", {"name": "secret_game", "template": "single_step"}),
        ("graders", {"name": "secret_judge", "kind": "judge", "policy": "random"}),
    ):
        answer = hidden.browser.post(f"/api/v1/{address}", json=body)
        assert answer.status_code in {409, 422}, answer.text


def test_each_table_belongs_to_projects_or_to_the_team() -> None:
    """A new table without a way to a project is for the whole team: add it here if that is right."""
    of_the_team = {
        *("projects", "project_members", "people", "sign_in_links", "web_sessions", "api_tokens", "attempt_limits"),
        *("audit_events", "review_targets", "lesson_files", "notice_destinations", "detector_benchmarks"),
        *("signing_keys", "network_grants", "saved_views", "workers", "audit_limits", "notice_preferences"),
    }
    assert {name for name, table in Base.metadata.tables.items() if table not in owned_tables()} == of_the_team
