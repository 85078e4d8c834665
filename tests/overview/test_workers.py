"""The workers' page and their JSON: who is online, with which hardware and jobs, and what none of them supports."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.core.tables import Job, Worker
from backend.domain.vocabulary import JobStatus, Queue
from tests import factories

MACHINE: dict[str, Any] = {
    "flavour": "transformers",
    "cpus": 16,
    "memory_mb": 128_000,
    "gpus": [{"name": "Big GPU", "memory_mb": 80_000}],
    "engines": {"torch": "2.13.0", "trl": "1.16.0", "peft": "0.21.2", "bitsandbytes": "0.48"},
    "cuda": True,
    "bf16": True,
    "launcher": "jail",
    "nodes": 4,
}


def add_worker(session: Session, name: str = "gpu@box", queues: tuple[str, ...] = ("gpu",), **fields: Any) -> Worker:
    worker = Worker(name=name, queues=list(queues), capabilities=MACHINE, **fields)
    session.add(worker)
    session.flush()
    return worker


def test_without_a_worker_it_shows_how_to_start_one(viewer: TestClient):
    page = viewer.get("/settings/workers").text
    assert "No workers online" in page
    assert "proctor up" in page


def test_each_worker_shows_its_machine_and_its_engines(viewer: TestClient, session: Session):
    add_worker(session)
    page = viewer.get("/settings/workers").text
    for shown in ("gpu@box", "Big GPU", "CUDA, bf16", "bitsandbytes 0.48", "16 CPUs", "leads 4 nodes", "jail", "idle"):
        assert shown in page


def test_a_worker_shows_the_run_that_it_works_on(viewer: TestClient, session: Session):
    add_worker(session)
    run = factories.make_run(session, name="a long training")
    session.add(
        Job(
            name="training.run",
            queue=Queue.GPU,
            run_id=run.id,
            status=JobStatus.LEASED,
            lease_owner="gpu@box/12/019a",
        )
    )
    session.flush()
    (worker,) = viewer.get("/api/v1/workers").json()["workers"]
    assert worker["work"] == [{"job": "training.run", "run_id": str(run.id), "run": "a long training"}]
    assert "a long training" in viewer.get("/settings/workers").text


def test_a_silent_worker_counts_for_nothing(viewer: TestClient, session: Session):
    add_worker(session, seen_at=datetime.now(UTC) - timedelta(minutes=5))
    answer = viewer.get("/api/v1/workers").json()
    assert answer["workers"][0]["is_silent"] is True
    assert all(ability["refusal"] for ability in answer["abilities"])


def test_it_shows_what_can_be_done_here_and_by_whom(viewer: TestClient, session: Session):
    add_worker(session)
    abilities = {each["name"]: each for each in viewer.get("/api/v1/workers").json()["abilities"]}
    assert abilities["Train QLoRA adapters on a 4-bit base model"]["by"] == ["gpu@box"]
    assert "vLLM" in abilities["Train on vLLM workers"]["refusal"]


def test_what_cannot_be_read_of_a_worker_breaks_nothing(viewer: TestClient, session: Session):
    session.add(Worker(name="odd", queues=["gpu"], capabilities={"gpus": "many", "engines": [1]}))
    session.flush()
    assert viewer.get("/settings/workers").status_code == 200
    assert viewer.get("/settings").status_code == 200
