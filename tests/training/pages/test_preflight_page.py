"""The pre-flight's page and JSON: what is known at once, what comes from a worker, and starting from it."""

import uuid

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job, Worker
from backend.domain.training.preflight.findings import problem
from backend.domain.vocabulary import Phase, PreflightStatus, Queue, Role, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.training.tables import Preflight
from tests.factories import add_rollout, make_environment_version, make_group, make_policy, make_run
from tests.web_fixtures import ClientFor

REASON = "A first look; nothing will be kept."
ENGINES = {"torch": "2.13.0", "trl": "1.16.0", "peft": "0.21.2"}


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def begin(trainer: TestClient, version: EnvironmentVersion, **body: object) -> dict[str, object]:
    answer = trainer.post("/api/v1/training/preflight", json={"version_id": str(version.id), **body})
    assert answer.status_code == 201
    found: dict[str, object] = answer.json()
    return found


def test_what_needs_no_worker_is_in_the_answer_and_a_job_is_queued(
    session: Session, trainer: TestClient, version: EnvironmentVersion
):
    found = begin(trainer, version, preset="quick")
    names = {finding["name"]: finding["status"] for finding in found["findings"]}
    assert names["certificate"] == "warning"
    assert names["worker"] == "warning"
    assert {"batch", "tasks", "heldout", "memory"} <= names.keys()
    assert "10 tasks × 4 episodes = 40 rollouts per step" in found["arithmetic"]
    job = session.scalars(select(Job)).one()
    assert (job.name, job.queue, job.run_id) == ("training.preflight", Queue.GPU, None)
    assert session.scalars(select(Run)).all() == []
    assert trainer.get(f"/api/v1/training/preflight/{found['id']}").json() == found


def test_what_a_run_refuses_is_refused_here_by_its_field(trainer: TestClient, version: EnvironmentVersion):
    body = {"version_id": str(version.id), "configuration": {"grpo": {"group_size": 1}}}
    answer = trainer.post("/api/v1/training/preflight", json=body)
    assert (answer.status_code, list(answer.json()["fields"])) == (422, ["grpo.group_size"])


def test_only_trainers_begin_one_and_everyone_reads_it(
    client_for: ClientFor, trainer: TestClient, version: EnvironmentVersion
):
    found = begin(trainer, version)
    author = client_for(Role.AUTHOR)
    assert author.post("/api/v1/training/preflight", json={"version_id": str(version.id)}).status_code == 403
    assert author.post("/training/preflights", data={}).status_code == 403
    assert client_for(Role.VIEWER).get(f"/training/preflights/{found['id']}").status_code == 200


def test_an_unknown_one_is_not_there(trainer: TestClient):
    assert trainer.get(f"/training/preflights/{uuid.uuid4()}").status_code == 404
    assert trainer.get(f"/api/v1/training/preflight/{uuid.uuid4()}").status_code == 404


def test_the_form_begins_one_and_its_page_shows_findings_and_how_to_start(
    session: Session, trainer: TestClient, version: EnvironmentVersion
):
    form = {"version_id": str(version.id), "preset": "quick", "grpo.steps": "7"}
    answer = trainer.post("/training/preflights", data=form)
    preflight = session.scalars(select(Preflight)).one()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/training/preflights/{preflight.id}")
    page = trainer.get(f"/training/preflights/{preflight.id}").text
    for shown in (
        "waiting for a worker",
        "The checks of the environment were never run",
        "7 steps = 280 rollouts",
        "Start training",
    ):
        assert shown in page


def test_a_hostile_finding_is_shown_as_text(session: Session, trainer: TestClient, version: EnvironmentVersion):
    finding = problem("model", "<script>alert(1)</script>").model_dump(mode="json")
    preflight = Preflight(version_id=version.id, status=PreflightStatus.COMPLETED, findings=[finding])
    session.add(preflight)
    session.flush()
    page = trainer.get(f"/training/preflights/{preflight.id}").text
    assert "<script>alert(1)" not in page
    assert "the run would fail" in page
    assert "event: end" in trainer.get(f"/training/preflights/{preflight.id}/events").text


def test_a_run_started_from_it_has_its_choices(session: Session, trainer: TestClient, version: EnvironmentVersion):
    found = begin(trainer, version, preset="quick", configuration={"grpo": {"steps": 7}})
    form = {"version_id": str(version.id), "preflight_id": str(found["id"]), "without_certificate": REASON}
    assert trainer.post("/training", data=form).status_code == 303
    run = session.scalars(select(Run).where(Run.kind == RunKind.TRAINING)).one()
    assert run.configuration["grpo"]["steps"] == 7
    assert run.configuration["grpo"]["group_size"] == 4
    assert run.configuration["preflight"] == found["id"]


def test_the_form_can_be_filled_in_from_it(trainer: TestClient, version: EnvironmentVersion):
    found = begin(trainer, version, configuration={"grpo": {"steps": 7}})
    page = trainer.get(f"/training/new?preflight_id={found['id']}").text
    assert 'name="grpo.steps" type="number" value="7"' in page


def test_a_choice_that_no_worker_can_carry_out_is_refused_and_not_offered(
    session: Session, trainer: TestClient, version: EnvironmentVersion
):
    session.add(Worker(name="gpu@box", queues=["gpu"], capabilities={"engines": ENGINES, "cuda": False}))
    session.flush()
    choices = {"adapter": {"kind": "qlora"}, "model": {"source": "base", "base": "some/model"}}
    body = {"version_id": str(version.id), "configuration": choices, "without_certificate": REASON}
    answer = trainer.post("/api/v1/training", json=body)
    assert answer.status_code == 422
    assert "peft and bitsandbytes" in answer.json()["fields"]["adapter.kind"]
    page = trainer.get("/training/new").text
    assert '<option value="qlora" disabled>' in page
    assert '<option value="lora">' in page


def test_a_run_goes_to_the_queue_of_its_engine(session: Session, trainer: TestClient, version: EnvironmentVersion):
    engines = {**ENGINES, "unsloth": "1"}
    session.add(Worker(name="u@box", queues=["gpu-unsloth"], capabilities={"engines": engines, "cuda": True}))
    session.flush()
    body = {"version_id": str(version.id), "configuration": {"engine": "unsloth"}, "without_certificate": REASON}
    assert trainer.post("/api/v1/training", json=body).status_code == 201
    job = session.scalars(select(Job).where(Job.name == "training.run")).one()
    assert job.queue is Queue.GPU_UNSLOTH


def test_figures_are_drawn_while_someone_types(trainer: TestClient, version: EnvironmentVersion):
    live = {"HX-Request": "true"}
    form = {"version_id": str(version.id), "grpo.tasks_per_step": "5", "grpo.group_size": "6"}
    block = trainer.post("/training/new", data=form, headers=live).text
    assert "5 tasks × 6 episodes = 30 rollouts per step" in block
    assert "<html" not in block
    wrong = trainer.post("/training/new", data={**form, "grpo.micro_batches": "7"}, headers=live).text
    assert "30 episodes per step cannot be divided into 7 micro-batches" in wrong
    assert "<html" in trainer.post("/training/new", data=form).text


def test_a_configuration_file_starts_the_same_run(session: Session, trainer: TestClient, version: EnvironmentVersion):
    query = f"version_id={version.id}&preset=quick&grpo.steps=7"
    answer = trainer.get(f"/training/configuration.yaml?{query}")
    assert f"proctor-train-{version.environment.name}-v1.yaml" in answer.headers["content-disposition"]
    file = yaml.safe_load(answer.text)
    assert file["environment"] == f"{version.environment.name}@1"
    body = {"version_id": str(version.id), "configuration": file["configuration"], "without_certificate": REASON}
    body["content_hash"] = file["content_hash"]
    run_id = trainer.post("/api/v1/training", json=body).json()["id"]
    again = trainer.get(f"/api/v1/training/{run_id}/configuration").json()
    assert again["configuration"] == file["configuration"]
    assert trainer.get(f"/runs/{run_id}/configuration.json").json()["configuration"] == file["configuration"]


def test_another_content_hash_is_refused(trainer: TestClient, version: EnvironmentVersion):
    body = {"version_id": str(version.id), "content_hash": "another", "without_certificate": REASON}
    assert "content_hash" in trainer.post("/api/v1/training", json=body).json()["fields"]


def test_running_again_fills_the_form_and_remembers_the_source(
    session: Session, trainer: TestClient, version: EnvironmentVersion
):
    body = {"version_id": str(version.id), "configuration": {"grpo": {"steps": 9}}, "without_certificate": REASON}
    first = trainer.post("/api/v1/training", json=body).json()["id"]
    page = trainer.get(f"/training/new?again={first}").text
    assert 'name="grpo.steps" type="number" value="9"' in page
    assert f'name="again" value="{first}"' in page
    second = trainer.post("/api/v1/training", json={**body, "again": first}).json()["id"]
    assert str(session.get_one(Run, uuid.UUID(second)).source_run_id) == first


def test_an_evaluation_has_no_configuration_file(session: Session, trainer: TestClient):
    run = make_run(session, policy=make_policy(session))
    assert trainer.get(f"/runs/{run.id}/configuration.yaml").status_code == 404


def played(row: Preflight, **evidence: object) -> None:
    """Let the pre-flight have ended with this measurement."""
    evidence = {"share": 0.4, "attempts": 256, "levels": {"0": 0.4}, "format": 0.9, "uniform": 0.2, **evidence}
    row.findings = [*row.findings, {"name": "base_success", "status": "ok", "sentence": "", "evidence": evidence}]
    row.status, row.ended_at = PreflightStatus.COMPLETED, row.created_at


def test_its_recommendation_is_on_the_page_the_form_and_in_the_answer_and_one_click_applies_it(
    session: Session, trainer: TestClient, version: EnvironmentVersion
):
    body = {"configuration": {"model": {"source": "base", "base": "tiny"}, "grpo": {"steps": 7}}}
    found = begin(trainer, version, **body)
    assert found["advice"] is None
    row = session.scalars(select(Preflight)).one()
    played(row)
    advice = trainer.get(f"/api/v1/training/preflight/{found['id']}").json()["advice"]
    assert (advice["title"], advice["changes"], advice["is_followed"]) == ("GRPO", {"recipe": "grpo"}, False)
    page = trainer.get(f"/training/preflights/{row.id}").text
    assert "Rewards differ in 80% of the groups" in page
    assert f"/training/new?preflight_id={row.id}&amp;recipe=grpo" in page
    form = trainer.get("/training/new", params={"version_id": str(version.id), "preflight_id": str(row.id)}).text
    assert "of this model" in form
    address = "/training/new?version_id=" + form.partition('class="button" href="/training/new?version_id=')[2]
    applied = trainer.get(address.partition('"')[0].replace("&amp;", "&")).text
    assert "These settings follow the recommendation." in applied
    assert 'name="grpo.steps" type="number" value="7"' in applied
    assert "Run a pre-flight for a recommendation" in trainer.get(f"/training/new?version_id={version.id}").text


def test_it_proposes_to_copy_the_stored_successes_of_another_policy(
    session: Session, trainer: TestClient, version: EnvironmentVersion
):
    begin(trainer, version, configuration={"model": {"source": "base", "base": "tiny"}})
    row = session.scalars(select(Preflight)).one()
    played(row, share=0.0, uniform=1.0)
    run = make_run(session, version, name="The large model", configuration={"split": "train"})
    group = make_group(session, run, phase=Phase.TRAIN)
    for member in range(32):
        add_rollout(session, run, group, [1.0, 1.0, 0.0], member, {})
    failed = make_group(session, run, phase=Phase.TRAIN, index=1)
    add_rollout(session, run, failed, [0.0, 1.0, 0.0], 0, {})
    session.flush()
    advice = trainer.get(f"/api/v1/training/preflight/{row.id}").json()["advice"]
    assert "The large model stored 32 successes on training tasks: copy them." in advice["reasons"]
    assert advice["changes"] == {"sft.source": "rollouts", "sft.runs": str(run.id), "sft.where": "win >= 1"}
