"""Running an evaluation again: exactly, with changes, and what may not be."""

import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.policies.queries import evaluable_policies
from backend.runs.rerun import drift
from backend.runs.tables import Run
from tests.factories import make_policy, make_run

PLAN = EvaluationPlan(tasks=7, first_task=3, group_size=2, sampling=Sampling(temperature=0.5), concurrency=4, retries=1)


@pytest.fixture
def run(session: Session) -> Run:
    return make_run(session, configuration=PLAN.model_dump(mode="json"), seed=11, name="the first")


def again(client: TestClient, run: Run, **changes: object) -> dict:
    answer = client.post(f"/api/v1/runs/{run.id}/again", json={"changes": changes})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_exactly_keeps_plan_seed_policy_and_version(session: Session, author: TestClient, run: Run) -> None:
    found = again(author, run)
    plan = EvaluationPlan.model_validate(found["configuration"])
    assert plan.model_copy(update={"context": None}) == PLAN
    assert (found["seed"], found["policy_id"], found["version_id"]) == (11, str(run.policy_id), str(run.version_id))
    assert (found["name"], found["source_run_id"], found["status"]) == ("the first", str(run.id), "queued")


def test_with_changes_only_those_differ(session: Session, author: TestClient, run: Run) -> None:
    found = again(author, run, temperature=0, group_size=8)
    plan = EvaluationPlan.model_validate(found["configuration"])
    assert (plan.sampling.temperature, plan.group_size, plan.task_indexes) == (0, 8, PLAN.task_indexes)
    assert found["name"] != "the first"


def test_chosen_tasks_are_kept_until_others_are_requested(session: Session, author: TestClient) -> None:
    plan = EvaluationPlan(tasks=3, first_task=2, task_indexes_given=(5, 2, 9))
    run = make_run(session, configuration=plan.model_dump(mode="json"))
    assert again(author, run)["configuration"]["task_indexes_given"] == [5, 2, 9]
    assert again(author, run, tasks=20, first_task=0)["configuration"]["task_indexes_given"] == []


def test_one_click_starts_it_and_the_page_names_its_source(session: Session, author: TestClient, run: Run) -> None:
    html = author.get(f"/runs/{run.id}").text
    assert f'action="/runs/{run.id}/again"' in html
    assert f"/evaluations/new?again={run.id}" in html
    answer = author.post(f"/runs/{run.id}/again")
    assert answer.status_code == 303
    page = author.get(answer.headers["location"]).text
    assert "again after" in page
    assert f'href="/runs/{run.id}"' in page


def test_the_form_keeps_the_source(session: Session, author: TestClient, run: Run) -> None:
    html = author.get(f"/evaluations/new?again={run.id}").text
    assert f'name="again" value="{run.id}"' in html
    sent = {"version_id": run.version_id, "policy_id": run.policy_id, "tasks": 5, "group_size": 1, "again": run.id}
    location = author.post("/evaluations", data={name: str(value) for name, value in sent.items()}).headers["location"]
    found = author.get(f"/api/v1{location}").json()
    assert (found["source_run_id"], found["configuration"]["tasks"]) == (str(run.id), 5)


def test_wrong_changes_are_refused_by_name(author: TestClient, run: Run) -> None:
    answer = author.post(f"/api/v1/runs/{run.id}/again", json={"changes": {"colour": "red"}})
    assert (answer.status_code, list(answer.json()["fields"])) == (422, ["colour"])
    answer = author.post(f"/api/v1/runs/{run.id}/again", json={"changes": {"temperature": -1}})
    assert (answer.status_code, list(answer.json()["fields"])) == (422, ["temperature"])


def test_only_an_evaluation_is_run_again(session: Session, author: TestClient, viewer: TestClient, run: Run) -> None:
    for kind in (RunKind.TRAINING, RunKind.PLAY, RunKind.RESCORE):
        assert author.post(f"/api/v1/runs/{make_run(session, kind=kind).id}/again").status_code == 409
    assert viewer.post(f"/api/v1/runs/{run.id}/again").status_code == 403
    assert viewer.post(f"/runs/{run.id}/again").status_code == 403


def test_a_policy_that_changed_since_is_reported(session: Session, author: TestClient) -> None:
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"base_url": "http://x/v1", "model": "b"})
    then = {"kind": "openai_api", "base_url": "http://x/v1", "model": "a"}
    run = make_run(session, policy=policy, configuration={**PLAN.model_dump(mode="json"), "policy": then})
    assert drift(run, policy) == ["model"]
    assert "changed since this run started: model." in author.get(f"/runs/{run.id}/configuration").text
    assert drift(make_run(session, policy=policy), policy) == []


def test_imported_policies_are_never_offered(session: Session, author: TestClient) -> None:
    external = make_policy(session, "elsewhere", PolicyKind.EXTERNAL)
    assert external not in evaluable_policies(session)
    assert "elsewhere" not in author.get("/evaluations/new").text
    run = make_run(session, policy=external, configuration={"source": {"tool": "verifiers", "file": "results.jsonl"}})
    assert "Run again" not in author.get(f"/runs/{run.id}").text
    assert author.post(f"/api/v1/runs/{run.id}/again").status_code == 409


def test_the_form_shows_what_it_will_take(session: Session, author: TestClient) -> None:
    price = {"input": 1.0, "output": 4.0}
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"model": "m", "price": price})
    summary = {"rollouts": 100, "tokens_in": 100_000, "tokens_out": 50_000, "rollouts_per_second": 2.0}
    run = make_run(session, policy=policy, status=RunStatus.COMPLETED, summary=summary)
    query = {"policy_id": policy.id, "version_id": run.version_id, "tasks": 200, "group_size": 2}
    html = author.get("/evaluations/estimate", params=query).text
    told = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    assert "about 400,000 input and 200,000 output by an earlier run of it" in told
    assert "about $1.20" in told
    assert "about 3 min 20 s" in told
    assert "not checked" in told
    assert "choose a policy and a version" in author.get("/evaluations/estimate").text
    assert author.get("/evaluations/estimate?policy_id=x&tasks=many").status_code == 200
