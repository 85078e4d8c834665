"""The job queue: a job is a row; its Celery message (JSON, one id) is only a wake-up after the commit."""

import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from celery import Celery
from sqlalchemy.orm import Session

from backend.core.artifacts import store_id
from backend.core.events import announce, topic_of
from backend.core.session import after_commit
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Queue
from backend.settings import get_settings

EXECUTE = "proctor.execute"
"""The only Celery task: it runs the job with a given id."""
CANCEL, PARENT = "cancel", "parent"
"""Arguments of jobs: a request to end early, and the id of the job whose page also shows this one."""
ARTIFACT_STORE = "artifact_store"
"""Argument of a job: id of the artifact store that its worker must have."""
JUDGING_JOB = "judging.detect"
"""Scans the stored rollouts of a run with detectors. It is never part of the run's own work."""
FOLLOW_JOB = "judging.follow"
"""Selects a run's best checkpoint again after verdicts on its rollouts."""
TRAIN_DETECTOR_JOB = "detectors.train"
"""Trains the learned detector of an environment on its verdicts."""
STUDY_JOB = "studies.run"
"""Advances a study until it waits for an evaluation or has finished."""
SWEEP_JOB = "sweeps.run"
"""Starts and prunes the trials of a sweep until it waits for one or has finished."""
TRANSFER_JOB = "exports.transfer"
"""Advances the transfer report of an export until it waits for an evaluation or has finished."""
GRADER_JOB = "graders.run"
"""Grades the rollouts of a run."""
TRY_GRADER_JOB = "graders.try"
"""Tries a grader on a few rollouts."""
NOTICE_JOB = "notices.send"
"""Sends a notice to one destination."""


@lru_cache(maxsize=1)
def get_celery() -> Celery:
    app = Celery("proctor", broker=get_settings().redis_url)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,  # the lease in Postgres decides, never Redis's visibility timeout
        task_default_queue=Queue.CPU,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "socket_connect_timeout": 3,
            "socket_timeout": 10,
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0.2,
            "interval_max": 0.2,  # a page waits for it
        },
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
    )
    return app


def enqueue(
    session: Session,
    name: str,
    *,
    queue: Queue,
    run_id: uuid.UUID | None = None,
    arguments: dict[str, Any] | None = None,
    reads_artifacts: bool = False,
) -> Job:
    """Write the job's row now and send its wake-up after the commit.

    Jobs of the model queues, and others with `reads_artifacts`, are claimed only by workers that have the same artifact
    store as this process.
    """
    given = dict(arguments or {})
    if (reads_artifacts or queue is not Queue.CPU) and (store := store_id()):
        given[ARTIFACT_STORE] = store
    job = Job(name=name, queue=queue, run_id=run_id, arguments=given)
    session.add(job)
    session.flush()
    after_commit(session, lambda: send_wake_up(job.id, queue))
    return job


def keep_answer(session: Session, job_id: uuid.UUID, answer: Mapping[str, object], name: str = "answer") -> None:
    """Store the answer of a job in its row, for the page that requested it; or its `progress`."""
    job = session.get(Job, job_id, with_for_update=True)
    if job is not None:
        job.arguments = {**job.arguments, name: dict(answer)}
        announce(session, topic_of("job", job_id))
        if parent := job.arguments.get(PARENT):
            announce(session, topic_of("job", uuid.UUID(parent)))


def answer_of(job: Job) -> dict[str, Any] | None:
    """Return the answer of such a job; None while it is running."""
    answer: dict[str, Any] | None = job.arguments.get("answer")
    if answer is None and job.status is JobStatus.FAILED:
        return {"error": job.error or "The worker gave up."}
    return answer


def send_wake_up(job_id: uuid.UUID, queue: Queue) -> None:
    get_celery().send_task(EXECUTE, args=[str(job_id)], queue=str(queue), retry=False)


def count_waiting(queue: Queue) -> int:
    """Count wake-ups that no worker has fetched yet. Raises kombu's OperationalError if Redis is unreachable."""
    with get_celery().connection_for_read() as connection:
        return int(connection.default_channel.queue_declare(str(queue), passive=False).message_count)
