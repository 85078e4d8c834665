"""The red team: it finds what is rewarded without doing the task, proposes fixtures, and guards the repair."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.cli.environments import show_attack
from backend.core.queue import enqueue, keep_answer
from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.environments.fixtures import exploit_fixture, read_fixture
from backend.domain.environments.manifest import read_manifest
from backend.domain.vocabulary import JobStatus, Queue
from backend.environments import red_team
from backend.environments.drafts import locked_draft, write_draft
from backend.environments.library import load_package
from backend.environments.schemas import AttackResponse
from backend.environments.service import create_environment
from backend.environments.tables import Environment
from tests.envhost_fixture import HostProcess
from tests.environments.checks.bent import bent, bent_again
from tests.installation import committing_to
from tests.library.conftest import Serve, serve
from workers.environments.checks.subject import CheckSubject
from workers.environments.red_team import NoFloor, attack
from workers.tasks.registry import JobContext, find_body

__all__ = ["serve"]

API = "/api/v1/environments/guess"
EXPLOIT = {
    "attack": "search",
    "description": "raw, 1 turns: 'x'",
    "mean": 0.9,
    "low": 0.8,
    "high": 1.0,
    "episodes": 16,
    "split": "heldout",
    "index": 2,
    "reward": 1.0,
    "replies": ["<x>"],
    "columns": {"win": 1.0},
    "fixture": exploit_fixture("search", ["<x>"]),
}


@pytest.mark.slow
async def test_a_sound_environment_withstands_and_a_hackable_one_does_not(serve: Serve):
    files = load_package("reverse_text")
    async with serve(files) as server:
        subject = CheckSubject(read_manifest(files["openenv.yaml"]), server, files=files)
        assert (await attack(subject, seconds=4)).exploits == []
    files = bent("reverse_text", "openenv.yaml", "on_unparsable: end", "on_unparsable: pass")
    files = bent_again(
        files, "server/reverse_text_environment.py", "return max(0.0, (", "return max(float(not self._answer), ("
    )
    seen: list[tuple[str, float]] = []
    async with serve(files) as server:
        subject = CheckSubject(read_manifest(files["openenv.yaml"]), server, files=files)
        report = await attack(subject, seconds=6, on_progress=lambda phase, share, _: seen.append((phase, share)))
    found = report.exploits
    assert any(each.attack == "enumerated" and each.low > 0.5 for each in found), found
    assert seen[-1][0] == "finished"
    assert all(0 <= share <= 1 for _, share in seen)
    for each in found:
        assert each.reward >= each.low > 0


async def test_without_a_floor_nothing_is_attacked(serve: Serve):
    manifest = read_manifest(load_package("reverse_text")["openenv.yaml"])
    columns = [column.model_copy(update={"range": None}) for column in manifest.proctor.rewards]
    changes = {"rewards": columns, "checks": manifest.proctor.checks.model_copy(update={"floor_maximum": None})}
    bare = manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update=changes)})
    async with serve(load_package("reverse_text")) as server:
        with pytest.raises(NoFloor, match="floor_maximum"):
            await attack(CheckSubject(bare, server), seconds=1)


def answered(
    session: Session, client: TestClient, address: str, request: dict[str, bool] | None = None, **answer: Any
) -> str:
    job = client.post(f"{API}/{address}", json=request or {}).json()
    assert job["is_finished"] is False
    assert job["message"].startswith("waiting for a worker")
    keep_answer(session, uuid.UUID(job["id"]), {"draft_revision": 1, "error": "", **answer})
    session.flush()
    return str(job["id"])


def test_exploits_become_fixtures_of_the_draft(session: Session, author: TestClient, guess: Environment):
    attack_id = answered(session, author, "attacks", exploits=[EXPLOIT])
    page = author.get("/environments/guess/red-team").text
    assert "&lt;x&gt;" in page
    assert 'href="/environments/guess/red-team"' in author.get("/environments/guess/edit").text
    assert author.post(f"/api/v1/attacks/{attack_id}/fixtures", json={"fixtures": ["other"]}).status_code == 422
    found = author.post(f"/api/v1/attacks/{attack_id}/fixtures", json={}).json()
    assert (found["exploits"][0]["is_in_draft"], found["is_stale"]) == (True, True)
    path = f"fixtures/{EXPLOIT['fixture']}.json"
    fixture = read_fixture(path, author.get(f"{API}/draft").json()["files"][path])
    assert (fixture.kind, fixture.replies, fixture.task.index) == ("hack", ["<x>"], 2)


def test_a_policy_is_trained_only_where_a_worker_has_torch(
    session: Session, author: TestClient, guess: Environment
) -> None:
    page = author.get("/environments/guess/red-team").text
    assert "No worker with torch is online" in page
    assert 'name="train"' not in page
    worker = Worker(name="w", queues=["gpu"], capabilities={}, seen_at=datetime.now(UTC))
    session.add(worker)
    session.flush()
    assert 'name="train" value="true" checked' in author.get("/environments/guess/red-team").text
    attack_id = answered(session, author, "attacks", {"train": True}, exploits=[EXPLOIT])
    found = author.get(f"/api/v1/attacks/{attack_id}").json()
    assert (found["is_finished"], found["done"], found["message"]) == (
        False,
        50,
        "trained attacker: waiting for a worker",
    )
    job = session.scalars(select(Job).where(Job.name == red_team.TRAIN_JOB)).one()
    assert (job.queue, job.arguments["parent"]) == (Queue.GPU, attack_id)
    keep_answer(session, job.id, {"share": 0.5, "phase": "GRPO step 3"}, name="progress")
    session.flush()
    found = author.get(f"/api/v1/attacks/{attack_id}").json()
    assert (found["done"], found["message"]) == (75, "trained attacker: GRPO step 3")
    trained = EXPLOIT | {"attack": "trained", "replies": ["<y>"], "fixture": "red-team-trained-1", "oracle": 0.125}
    note = "Trained attacker: 9 GRPO steps in 5 s."
    keep_answer(session, job.id, {"draft_revision": 1, "exploits": [trained], "notes": [note], "error": ""})
    session.flush()
    found = author.get(f"/api/v1/attacks/{attack_id}").json()
    assert (found["is_finished"], found["is_successful"], found["notes"]) == (True, True, [note])
    assert [(each["attack"], each["oracle"]) for each in found["exploits"]] == [("search", None), ("trained", 0.125)]
    page = author.get("/environments/guess/red-team").text
    assert note in page
    assert "0.125" in page
    names = {"fixtures": ["red-team-trained-1"]}
    assert author.post(f"/api/v1/attacks/{attack_id}/fixtures", json=names).json()["exploits"][1]["is_in_draft"]
    worker.seen_at -= timedelta(minutes=5)
    assert author.post(f"{API}/attacks", json={"train": True}).json()["notes"] == [red_team.NO_TORCH]
    assert session.scalars(select(Job).where(Job.name == red_team.TRAIN_JOB)).all() == [job]


def test_the_command_line_shows_exploits_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"id": "1", "message": "finished", "notes": ["LLM attacker: 8 replies."]}
    show_attack({**shared, "kind": "attack", "exploits": [{**EXPLOIT, "oracle": 0.125}], "results": []})
    output = capsys.readouterr().out
    assert "LLM attacker: 8 replies." in output
    assert "0.125" in output
    check = {"check": "gold_reaches_bound", "status": "failed", "applies": True, "evidence": "Gold misses it."}
    show_attack({**shared, "kind": "verification", "exploits": [], "results": [check]})
    assert "failed" in capsys.readouterr().out


def test_an_attack_is_canceled_in_the_queue_and_while_it_runs(
    session: Session, author: TestClient, viewer: TestClient, guess: Environment
) -> None:
    session.add(Worker(name="w", queues=["gpu"], capabilities={}))
    attack_id = author.post(f"{API}/attacks", json={"train": True}).json()["id"]
    assert "Cancel the attack" in author.get("/environments/guess/red-team").text
    assert viewer.post(f"/api/v1/attacks/{attack_id}/cancel").status_code == 403
    session.get_one(Job, uuid.UUID(attack_id)).status = JobStatus.LEASED
    session.flush()
    found = author.post(f"/api/v1/attacks/{attack_id}/cancel").json()
    assert (found["is_finished"], found["notes"]) == (False, ["Trained attacker: Canceled before it began."])
    jobs = {job.name: job for job in session.scalars(select(Job))}
    assert jobs[red_team.ATTACK_JOB].arguments["cancel"] is True
    assert "answer" not in jobs[red_team.ATTACK_JOB].arguments
    keep_answer(session, uuid.UUID(attack_id), {"draft_revision": 1, "exploits": [EXPLOIT], "notes": [], "error": ""})
    session.flush()
    assert author.get(f"/api/v1/attacks/{attack_id}").json()["is_successful"]
    verification = author.post(f"{API}/repairs", json={}).json()["id"]
    assert author.post(f"/api/v1/attacks/{verification}/cancel").status_code == 409


def test_a_repair_is_published_only_if_it_was_verified_as_it_is(
    session: Session, author: TestClient, guess: Environment
):
    checks = [{"check": "gold_reaches_bound", "label": "Gold", "status": "failed", "applies": True, "evidence": "<No>"}]
    refused = answered(session, author, "repairs", results=checks, holds=False)
    assert author.post(f"/api/v1/attacks/{refused}/publish", json={}).status_code == 409
    assert "&lt;No&gt;" in author.get("/environments/guess/red-team").text
    sound = answered(session, author, "repairs", results=[{**checks[0], "status": "passed"}], holds=True)
    file = {"path": "README.md", "text": "changed"}
    author.put(f"{API}/draft/file", json=file)
    assert author.post(f"/api/v1/attacks/{sound}/publish", json={}).status_code == 409, "the draft was saved since"
    again = author.post(f"{API}/repairs", json={}).json()["id"]
    revision = author.get(f"{API}/draft").json()["revision"]
    keep_answer(session, uuid.UUID(again), {"draft_revision": revision, "results": [], "holds": True, "error": ""})
    session.flush()
    published = author.post(f"/api/v1/attacks/{again}/publish", json={"notes": "Repaired."})
    assert (published.status_code, published.json()["number"]) == (201, 1)


def test_only_endpoints_attack_and_only_drafts_without_problems_are_attacked(
    author: TestClient, viewer: TestClient, guess: Environment
):
    assert viewer.post(f"{API}/attacks", json={}).status_code == 403
    assert author.post(f"{API}/attacks", json={"policy": "random-legal"}).status_code == 422
    assert author.post(f"{API}/attacks", json={"seconds": 6000}).status_code == 422
    author.put(f"{API}/draft/file", json={"path": "openenv.yaml", "text": "name: ["})
    assert author.post(f"{API}/attacks", json={}).status_code == 409


@pytest.fixture(scope="module")
def at_work(second_database_url: str, host_process: HostProcess) -> Iterator[None]:
    with committing_to(second_database_url, PROCTOR_ENVHOST_URL=host_process.address):
        yield


def carried_out(environment: Environment, name: str, **arguments: Any) -> AttackResponse:
    with transaction() as session:
        arguments["environment_id"] = str(environment.id)
        job_id = enqueue(session, name, queue=Queue.CPU, arguments=arguments).id
    find_body(name)(JobContext(job_id, None, arguments, 1))
    with transaction() as session:
        return red_team.get(session, job_id)


@pytest.mark.slow
def test_the_jobs_attack_a_hackable_draft_and_verify_it(at_work: None):
    files = bent("reverse_text", "openenv.yaml", "on_unparsable: end", "on_unparsable: pass")
    rewarding = "return max(float(not self._answer), ("
    files = bent_again(files, "server/reverse_text_environment.py", "return max(0.0, (", rewarding)
    with transaction() as session:
        environment = create_environment(session, None, "reverse_text", files)
    found = carried_out(environment, red_team.ATTACK_JOB, seconds=10, policy={})
    assert (found.is_finished, found.error, found.is_stale) == (True, "", False)
    assert found.exploits
    canceled = carried_out(environment, red_team.ATTACK_JOB, seconds=600, policy={}, cancel=True)
    assert canceled.notes == ["Canceled: these are the exploits until then."]
    verified = carried_out(environment, red_team.VERIFY_JOB)
    results = {each.check: each.status for each in verified.results}
    assert results["gold_reaches_bound"] == "passed"
    assert results["degenerate_policies"] == "failed"
    assert verified.holds is False
    with transaction() as session:
        draft = locked_draft(session, session.get_one(Environment, environment.id))
        write_draft(session, None, draft, load_package("reverse_text"))
    assert carried_out(environment, red_team.VERIFY_JOB).holds is True
    with transaction() as session:  # a repair that rewards nobody keeps all hacks low
        draft = locked_draft(session, session.get_one(Environment, environment.id))
        tight = ("server/reverse_text_environment.py", "return max(0.0, (", "return min(0.0, (")
        write_draft(session, None, draft, bent("reverse_text", *tight))
    broken = carried_out(environment, red_team.VERIFY_JOB)
    results = {each.check: each.status for each in broken.results}
    assert results["gold_reaches_bound"] == "failed"
    assert results["degenerate_policies"] == "passed"
    assert broken.holds is False
