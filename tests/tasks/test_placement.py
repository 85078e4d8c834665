"""Jobs that only some workers of their queue can run: who leaves them, who claims them, and the message meanwhile."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.artifacts import read_store_id
from backend.core.queue import STUDY_JOB, enqueue
from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import ExportForm, ExportStatus, JobStatus, Queue, Role, RunKind, RunStatus
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.studies.queries import get_studied_run
from backend.studies.schemas import StartEffort
from backend.studies.service import start_effort
from backend.studies.tables import Study
from backend.training.tables import Preflight
from tests.factories import make_checkpoint, make_environment_version, make_member, make_policy, make_run
from tests.studies.worlds import make_training
from tests.tasks.conftest import job_of, run_of
from workers.tasks.execute import execute
from workers.tasks.leases import PATIENCE, WAITING_SINCE, is_left_to_others
from workers.tasks.registry import BODIES, JobBody
from workers.tasks.studies import advance, advance_effort

PLAIN = {"torch": "2.13.0", "trl": "1.16.0", "peft": "0.21.2"}
FOUR_BIT = PLAIN | {"bitsandbytes": "0.50.1"}
QLORA = {"adapter": {"kind": "qlora"}, "model": {"source": "base", "base": "some/model-0.5B"}}
BESIDE_4_BIT = {
    "base": "some/model-0.5B",
    "dtype": "bfloat16",
    "rank": 8,
    "alpha": 16.0,
    "quantisation": {"type": "nf4"},
}
Report = Callable[..., None]


@pytest.fixture
def report(installation: None) -> Report:
    """A worker says what it has."""

    def report(name: str, engines: dict[str, str], queue: str = "gpu", *, seconds_ago: float = 0, **can: Any) -> None:
        capabilities = {"flavour": "transformers", "engines": engines, **can}
        seen_at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
        with transaction() as session:
            session.merge(Worker(name=name, queues=[queue], capabilities=capabilities, seen_at=seen_at))

    return report


def training_job(**choices: Any) -> uuid.UUID:
    configuration = TrainingConfiguration.model_validate(choices).resolved()
    with transaction() as session:
        run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.QUEUED, configuration=configuration)
        return enqueue(session, "training.run", queue=Queue.GPU, run_id=run.id).id


def test_a_worker_without_bitsandbytes_leaves_a_qlora_run_to_the_one_that_has_it(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BODIES, "training.run", JobBody("tests.tasks.bodies:write"))
    report("gpu@plain", PLAIN)
    report("gpu@four-bit", FOUR_BIT)
    job_id = training_job(**QLORA)
    execute(job_id, "gpu@plain")
    job = job_of(job_id)
    assert (job.status, job.attempts, job.lease_owner) == (JobStatus.QUEUED, 0, None)
    phase = run_of(job_id).progress["phase"]
    assert phase == "waiting for gpu@four-bit: gpu@plain has no peft and bitsandbytes"
    assert not is_left_to_others(job_id, "gpu@four-bit")


def test_any_worker_takes_what_asks_for_nothing_special(report: Report) -> None:
    report("gpu@plain", PLAIN)
    assert not is_left_to_others(training_job(), "gpu@plain")
    assert not is_left_to_others(training_job(**QLORA), "gpu@has-not-reported")


def test_a_gpu_and_as_many_as_there_are_processes_are_needed(report: Report) -> None:
    gpu = {"name": "A GPU", "memory_mb": 80_000}
    report("gpu@cpu", PLAIN, cuda=False)
    report("gpu@one", PLAIN, cuda=True, bf16=True, gpus=[gpu])
    report("gpu@two", PLAIN, cuda=True, bf16=True, gpus=[gpu, gpu])
    job_id = training_job(hardware={"device": "cuda"})
    assert [is_left_to_others(job_id, name) for name in ("gpu@cpu", "gpu@one", "gpu@two")] == [True, False, False]
    job_id = training_job(hardware={"device": "cuda", "processes": 2})
    assert [is_left_to_others(job_id, name) for name in ("gpu@cpu", "gpu@one", "gpu@two")] == [True, True, False]


def test_where_no_one_can_the_run_waits_and_then_fails_with_the_reason(report: Report) -> None:
    report("gpu@plain", PLAIN)
    report("gpu@silent", FOUR_BIT, seconds_ago=600)
    report("cpu@four-bit", FOUR_BIT, queue="cpu")
    job_id = training_job(**QLORA)
    assert is_left_to_others(job_id, "gpu@plain")
    assert run_of(job_id).progress["phase"] == "waiting for a worker with peft and bitsandbytes: none answers"
    began = datetime.fromisoformat(job_of(job_id).arguments[WAITING_SINCE])
    with transaction() as session:
        session.get_one(Job, job_id).arguments = {WAITING_SINCE: (began - PATIENCE).isoformat()}
    assert is_left_to_others(job_id, "gpu@plain")
    run = run_of(job_id)
    assert (job_of(job_id).status, run.status) == (JobStatus.FAILED, RunStatus.FAILED)
    assert run.reason == "No worker that answers has what this needs: peft and bitsandbytes."


def test_the_time_of_waiting_begins_again_once_someone_could(report: Report) -> None:
    report("gpu@plain", PLAIN)
    job_id = training_job(**QLORA)
    assert is_left_to_others(job_id, "gpu@plain")
    report("gpu@four-bit", FOUR_BIT)
    assert is_left_to_others(job_id, "gpu@plain")
    assert WAITING_SINCE not in job_of(job_id).arguments


def test_a_gguf_export_waits_for_the_converter(report: Report) -> None:
    report("gpu@plain", PLAIN)
    report("gpu@converter", PLAIN | {"llama.cpp": "b1"})
    with transaction() as session:
        checkpoint = make_checkpoint(session, make_policy(session), make_run(session, kind=RunKind.TRAINING))
        export = Export(checkpoint_id=checkpoint.id, run_id=checkpoint.run_id, form=ExportForm.GGUF, options={})
        session.add(export)
        session.flush()
        arguments = {"export_id": str(export.id)}
        job_id = enqueue(session, "exports.run", queue=Queue.GPU, arguments=arguments).id
    assert is_left_to_others(job_id, "gpu@plain")
    with transaction() as session:
        told = session.get_one(Export, export.id)
        assert (told.status, told.progress["phase"]) == (
            ExportStatus.QUEUED,
            "waiting for gpu@converter: gpu@plain has no llama.cpp",
        )
    assert not is_left_to_others(job_id, "gpu@converter")


def test_a_scan_and_an_evaluation_of_a_4_bit_policy_wait_too(report: Report) -> None:
    report("gpu@plain", PLAIN)
    report("gpu@four-bit", FOUR_BIT)
    configuration = TrainingConfiguration.model_validate(QLORA).resolved()
    with transaction() as session:
        preflight = Preflight(version_id=make_environment_version(session).id, configuration=configuration)
        session.add(preflight)
        session.flush()
        look = enqueue(session, "training.preflight", queue=Queue.GPU, arguments={"preflight_id": str(preflight.id)})
        checkpoint = make_checkpoint(session, make_policy(session), adapter=BESIDE_4_BIT)
        run = make_run(session, status=RunStatus.QUEUED, policy=make_policy(session), checkpoint_id=checkpoint.id)
        evaluation = enqueue(session, "evaluations.run", queue=Queue.GPU, run_id=run.id)
    for job_id in (look.id, evaluation.id):
        assert [is_left_to_others(job_id, name) for name in ("gpu@plain", "gpu@four-bit")] == [True, False]
    with transaction() as session:
        assert "gpu@four-bit" in session.get_one(Preflight, preflight.id).progress["phase"]
        assert "gpu@four-bit" in session.get_one(Run, run.id).progress["phase"]


def test_an_effort_score_waits_for_a_worker_that_can_load_both_sides(report: Report) -> None:
    report("gpu@plain", PLAIN)
    report("gpu@four-bit", FOUR_BIT)
    with transaction() as session:
        training = get_studied_run(session, make_training(session, (10,)).id)
        study = start_effort(session, make_member(session, Role.AUTHOR), training, StartEffort(tasks=4))
        job = session.scalars(select(Job).where(Job.name == STUDY_JOB)).one()
    assert not is_left_to_others(job.id, "gpu@plain"), "whole weights"
    with transaction() as session:
        base = select(Checkpoint).where(Checkpoint.run_id == training.id, Checkpoint.stage == "sft")
        session.scalars(base).one().adapter = BESIDE_4_BIT
    assert [is_left_to_others(job.id, name) for name in ("gpu@plain", "gpu@four-bit")] == [True, False]
    with transaction() as session:
        assert session.get_one(Study, study.id).reason == ("waiting for gpu@four-bit: gpu@plain has no bitsandbytes")
    advance(study.id, advance_effort)
    with transaction() as session:
        assert session.get_one(Study, study.id).reason is None


ELSEWHERE = "b" * 32


@pytest.fixture
def in_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """This process reads the artifacts of a folder; gives the id of that store."""

    def use(name: str) -> str:
        monkeypatch.setenv("PROCTOR_ARTIFACTS_URL", str(tmp_path / name))
        get_settings.cache_clear()
        return read_store_id()

    return use


def test_a_worker_with_another_artifact_store_leaves_the_run_and_it_waits(
    report: Report, in_store: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BODIES, "training.run", JobBody("tests.tasks.bodies:write"))
    other, here = in_store("other"), in_store("here")
    assert other != here
    report("gpu@far", PLAIN, artifacts=other)
    job_id = training_job()
    execute(job_id, "gpu@far")
    job = job_of(job_id)
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
    phase = run_of(job_id).progress["phase"]
    assert phase == "waiting for a worker with access to this installation's artifacts: none answers"

    with transaction() as session:  # for longer than nobody may answer otherwise
        long_ago = (datetime.now(UTC) - 10 * PATIENCE).isoformat()
        row = session.get_one(Job, job_id)
        row.arguments = {**row.arguments, WAITING_SINCE: long_ago}
    execute(job_id, "gpu@far")
    assert job_of(job_id).status is JobStatus.QUEUED

    report("gpu@near", PLAIN, artifacts=here)
    execute(job_id, "gpu@far")
    assert (
        run_of(job_id)
        .progress["phase"]
        .startswith("waiting for gpu@near: gpu@far has no access to this installation's")
    )
    assert not is_left_to_others(job_id, "gpu@near")


def test_a_worker_that_reads_no_store_takes_nothing_that_needs_one(
    report: Report, in_store: Callable[[str], str]
) -> None:
    in_store("here")
    report("gpu@broken", PLAIN, artifacts="")
    report("gpu@of-an-older-version", PLAIN)
    job_id = training_job()
    assert is_left_to_others(job_id, "gpu@broken")
    assert not is_left_to_others(job_id, "gpu@of-an-older-version")


def test_work_without_artifacts_is_anybodys(report: Report, in_store: Callable[[str], str]) -> None:
    in_store("here")
    report("cpu@far", PLAIN, "cpu", artifacts=ELSEWHERE)
    with transaction() as session:
        job_id = enqueue(session, "evaluations.run", queue=Queue.CPU, run_id=make_run(session).id).id
        import_id = enqueue(session, "exchange.import", queue=Queue.CPU, reads_artifacts=True).id
    assert not is_left_to_others(job_id, "cpu@far")
    assert is_left_to_others(import_id, "cpu@far")
