"""Starting an evaluation: works, forbidden, missing, bad input, sent again."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.policies.service import delete_policy
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.team.tables import AuditEvent
from tests.factories import make_checkpoint, make_environment_version, make_member, make_policy


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


@pytest.fixture
def policy(session: Session) -> Policy:
    return make_policy(session)


def form(version: EnvironmentVersion, policy: Policy, **fields: object) -> dict[str, str]:
    values = {"version_id": version.id, "policy_id": policy.id, "split": "heldout", "tasks": 20, "group_size": 2}
    return {name: str(value) for name, value in (values | fields).items()}


def newest_run(session: Session) -> Run:
    return session.scalars(select(Run).order_by(Run.created_at.desc(), Run.id.desc())).first()


def test_it_queues_a_run_with_every_default_written_out(
    session: Session, author: TestClient, version: EnvironmentVersion, policy: Policy
) -> None:
    answer = author.post("/evaluations", data=form(version, policy, temperature=""))
    run = newest_run(session)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/runs/{run.id}"
    assert (run.kind, run.status, run.version_id) == (RunKind.EVALUATION, RunStatus.QUEUED, version.id)
    assert run.columns == ["win", "format", "invalid_move"]
    assert run.weights == [1.0, 0.2, -0.1]
    plan = EvaluationPlan.model_validate(run.configuration)
    assert (plan.tasks, plan.group_size, plan.rollouts) == (20, 2, 40)
    assert (plan.sampling.temperature, plan.sampling.max_tokens_per_turn) == (1.0, 256)
    assert run.configuration["content_hash"] == version.content_hash
    job = session.scalars(select(Job).where(Job.run_id == run.id)).one()
    assert (job.name, job.queue) == ("evaluations.run", Queue.CPU)
    assert session.scalars(select(AuditEvent).where(AuditEvent.subject_id == str(run.id))).one().action


def test_a_form_that_is_sent_again_starts_nothing_new(
    session: Session, author: TestClient, version: EnvironmentVersion, policy: Policy
) -> None:
    sent = form(version, policy, key="form-1")
    first, second = author.post("/evaluations", data=sent), author.post("/evaluations", data=sent)
    assert first.headers["location"] == second.headers["location"]
    assert session.scalar(select(func.count(Run.id))) == 1
    assert session.scalar(select(func.count(Job.id))) == 1


def test_a_local_policy_acts_with_its_best_checkpoint_on_the_gpu_queue(
    session: Session, author: TestClient, version: EnvironmentVersion
) -> None:
    local = make_policy(session, kind=PolicyKind.LOCAL)
    best = make_checkpoint(session, local, is_best=True)
    make_checkpoint(session, local)
    author.post("/evaluations", data=form(version, local))
    run = newest_run(session)
    assert run.checkpoint_id == best.id
    assert session.scalars(select(Job.queue)).one() is Queue.GPU


def test_a_viewer_may_not(viewer: TestClient, version: EnvironmentVersion, policy: Policy) -> None:
    assert viewer.post("/evaluations", data=form(version, policy)).status_code == 403
    assert viewer.get("/evaluations/new").status_code == 403


def test_a_deleted_policy_is_refused_by_name(
    session: Session, author: TestClient, version: EnvironmentVersion, policy: Policy
) -> None:
    name = policy.name
    delete_policy(session, make_member(session), policy)
    answer = author.post("/evaluations", data=form(version, policy))
    assert answer.status_code == 409
    assert name in answer.text
    assert "was deleted" in answer.text


@pytest.mark.parametrize(
    ("fields", "wrong", "says"),
    [
        ({"tasks": 201}, "tasks", "200 heldout tasks"),
        ({"tasks": 100, "first_task": 150}, "tasks", "200 heldout tasks"),
        ({"tasks": 0}, "tasks", "Enter 1 or more."),
        ({"tasks": "many"}, "tasks", "Enter a whole number."),
        ({"group_size": 0}, "group_size", "Enter 1 or more."),
        ({"temperature": -1}, "temperature", "Enter 0 or more."),
        ({"temperature": "nan"}, "temperature", ""),
        ({"split": "secret"}, "split", "train"),
        ({"policy_id": uuid.UUID(int=1)}, "policy_id", "no such policy"),
        ({"version_id": uuid.UUID(int=1)}, "version_id", "no such environment version"),
        ({"checkpoint_id": uuid.UUID(int=1)}, "checkpoint_id", "no checkpoints"),
    ],
)
def test_bad_input_names_the_field(
    session: Session,
    author: TestClient,
    version: EnvironmentVersion,
    policy: Policy,
    fields: dict[str, object],
    wrong: str,
    says: str,
) -> None:
    answer = author.post("/api/v1/evaluations", json=form(version, policy, **fields))
    assert answer.status_code == 422
    assert wrong in " ".join(answer.json()["fields"])
    assert says in str(answer.json()["fields"])
    assert session.scalar(select(func.count(Run.id))) == 0


def test_a_script_that_the_environment_lacks_is_refused(
    session: Session, author: TestClient, version: EnvironmentVersion
) -> None:
    minimax = make_policy(session, configuration={"script": "minimax"})
    answer = author.post("/api/v1/evaluations", json=form(version, minimax))
    assert "gold, teacher" in answer.json()["fields"]["policy_id"]


def test_a_local_policy_without_checkpoint_is_refused(
    session: Session, author: TestClient, version: EnvironmentVersion
) -> None:
    local = make_policy(session, kind=PolicyKind.LOCAL)
    answer = author.post("/api/v1/evaluations", json=form(version, local))
    assert "no checkpoint with weights yet" in answer.json()["fields"]["checkpoint_id"]


def test_the_api_answers_the_run(author: TestClient, version: EnvironmentVersion, policy: Policy) -> None:
    answer = author.post("/api/v1/evaluations", json=form(version, policy, name="first"))
    assert answer.status_code == 201
    assert answer.json()["name"] == "first"
    assert answer.json()["environment"] == version.environment.name
    assert answer.json()["configuration"]["tasks"] == 20


def test_workers_chosen_tasks_context_and_judges_are_in_the_configuration(
    session: Session, author: TestClient, version: EnvironmentVersion, policy: Policy
) -> None:
    judge = str(uuid.uuid4())
    asked = {
        "version_id": str(version.id),
        "policy_id": str(policy.id),
        "task_indexes": [7, 3, 7],
        "workers": 4,
        "retries": 0,
        "context": {"kind": "last", "turns": 2},
        "judge_ids": [judge],
    }
    assert author.post("/api/v1/evaluations", json=asked).status_code == 201
    run = newest_run(session)
    plan = EvaluationPlan.model_validate(run.configuration)
    assert (list(plan.task_indexes), plan.tasks, plan.workers, plan.retries) == ([7, 3], 2, 2, 0)
    assert (plan.context and plan.context.turns, plan.judge_ids) == (2, [judge])
    jobs = session.scalars(select(Job).where(Job.run_id == run.id)).all()
    assert len(jobs) == 2
    assert len({job.arguments["batch"] for job in jobs}) == 1
    assert set(run.configuration["engine"]) >= {"python", "aiohttp"}


def test_chosen_tasks_must_exist(author: TestClient, version: EnvironmentVersion, policy: Policy) -> None:
    answer = author.post("/api/v1/evaluations", json=form(version, policy) | {"task_indexes": [10_000_000]})
    assert answer.status_code == 422
    assert "tasks" in answer.json()["fields"]


def test_a_policy_that_played_elsewhere_cannot_be_evaluated(
    session: Session, author: TestClient, version: EnvironmentVersion
) -> None:
    imported = make_policy(session, kind=PolicyKind.EXTERNAL)
    answer = author.post("/api/v1/evaluations", json=form(version, imported))
    assert "played elsewhere" in answer.json()["fields"]["policy_id"]


def test_the_form_offers_versions_and_policies_and_can_be_filled_from_a_run(
    session: Session, author: TestClient, version: EnvironmentVersion, policy: Policy
) -> None:
    author.post("/evaluations", data=form(version, policy, tasks=37))
    run = newest_run(session)
    page = author.get(f"/evaluations/new?again={run.id}").text
    assert f"{version.environment.name} v1" in page
    assert 'value="37"' in page
    assert f'<option value="{policy.id}" selected>' in page


@pytest.mark.parametrize(
    ("asked", "wrong", "says"),
    [
        ({"group_size": 8, "concurrency": 4}, "concurrency", "all run at once: allow 8 or more"),
        ({"group_size": 40}, "group_size", "supports 16 sessions"),
    ],
)
def test_groups_that_are_scored_together_have_to_fit(
    session: Session, author: TestClient, policy: Policy, asked: dict[str, object], wrong: str, says: str
) -> None:
    grouped = make_environment_version(session, tasks={"grouped": True}, resources={"sessions": 16})
    answer = author.post("/api/v1/evaluations", json=form(grouped, policy, **asked))
    assert answer.status_code == 422
    assert says in answer.json()["fields"][wrong]
    assert says in author.post("/evaluations", data=form(grouped, policy, **asked)).text
    assert session.scalar(select(func.count(Run.id))) == 0


def test_where_no_one_states_a_group_that_is_scored_together_fits(session: Session, author: TestClient) -> None:
    grouped = make_environment_version(session, tasks={"grouped": True})
    slow = make_policy(
        session,
        kind=PolicyKind.OPENAI_API,
        configuration={"base_url": "http://127.0.0.1:9/v1", "model": "m", "limits": {"concurrency": 2}},
    )
    author.post("/evaluations", data=form(grouped, slow, group_size=8))
    assert newest_run(session).configuration["concurrency"] == 8


def test_environment_version_and_policy_can_be_named(session: Session, author: TestClient) -> None:
    first = make_environment_version(session)
    second = make_environment_version(session, first.environment, number=2)
    policy = make_policy(session)
    names = {"environment": first.environment.name, "policy": policy.name}
    latest = author.post("/api/v1/evaluations", json=names)
    assert latest.status_code == 201, latest.text
    assert (latest.json()["version_id"], latest.json()["policy_id"]) == (str(second.id), str(policy.id))
    exact = author.post("/api/v1/evaluations", json=names | {"environment": f"{first.environment_id}@1"})
    assert exact.json()["version_id"] == str(first.id)


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ({"environment": "nowhere"}, "environment"),
        ({"environment": "{name}@77"}, "environment"),
        ({"environment": "{name}@x"}, "environment"),
        ({"policy": "no-one"}, "policy"),
        ({"environment": ""}, "version_id"),
        ({"policy": ""}, "policy_id"),
    ],
)
def test_names_that_do_not_exist_are_refused(
    author: TestClient, version: EnvironmentVersion, policy: Policy, names: dict[str, str], wrong: str
) -> None:
    given = {"environment": version.environment.name, "policy": policy.name} | names
    given["environment"] = given["environment"].format(name=version.environment.name)
    answer = author.post("/api/v1/evaluations", json=given)
    assert answer.status_code == 422
    assert wrong in answer.json()["fields"]
