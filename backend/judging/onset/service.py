"""Starting, stopping and resuming a search for an onset. The job `judging.onset` carries it out."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import EnvironmentVersion, Job, OnsetSample, OnsetSearch, Run
from backend.domain.manifest import Manifest
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from backend.errors import Conflict, InvalidInput
from backend.events import announce, run_topic
from backend.judging.onset import queries
from backend.judging.onset.forms import MOST_ROLLOUTS, OnsetRequest
from backend.queue import ONSET_JOB, enqueue
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

ROLLOUTS = 128
"""Of each checkpoint, unless said otherwise: at a base rate of nothing, 7 of them are no chance any more."""
MOST_A_TASK = 16


class NothingToSample(Conflict):
    """No checkpoint of this run's reinforcement has its weights."""


class SearchIsOver(Conflict):
    """This search is over."""


class SearchGoesOn(Conflict):
    """This search is at work."""


def start_search(session: Session, actor: Actor, run: Run, request: OnsetRequest) -> OnsetSearch:
    """Queue a search; one for the same pattern that is under way is given back instead."""
    pattern = queries.find_pattern(session, run, request.detector, request.cluster)
    if pattern is None:
        raise InvalidInput(
            fields={"detector": "Nobody judged a rollout with this flag a hack or a broken reward in this run."}
        )
    if pattern.obstacle:
        raise InvalidInput(fields={"detector": pattern.obstacle})
    if known := _open_search(session, run.id, request):
        return known
    checkpoints = queries.checkpoints_until(session, run.id)
    if not checkpoints or queries.start_of(session, run) is None:
        raise NothingToSample
    tasks, group_size = _amount(session.get_one(EnvironmentVersion, pattern.version_id), request)
    configuration = TrainingConfiguration.of_run(run.configuration)
    search = OnsetSearch(
        run_id=run.id,
        version_id=pattern.version_id,
        detector=request.detector,
        cluster=request.cluster,
        tasks=tasks,
        group_size=group_size,
        temperature=request.temperature or configuration.grpo.temperature,
        seed=run.seed,
        last_step=checkpoints[-1].step,
        hint_step=pattern.middle_step,
        remarks=[],
        asked_by=actor.person_id,
    )
    session.add(search)
    session.flush()
    wake(session, search.id)
    audit(session, actor, "onset.start", "run", run.id, detector=request.detector, cluster=request.cluster)
    announce(session, run_topic(run.id))
    return search


def stop_search(session: Session, actor: Actor, search: OnsetSearch) -> None:
    """What was sampled is kept; the evaluation under way is stopped by the job."""
    if search.status.is_over:
        raise SearchIsOver(f"This search is {search.status} already.")
    search.status = RunStatus.STOPPED
    search.reason = "Stopped on request."
    search.ended_at = datetime.now(UTC)
    session.flush()
    wake(session, search.id)
    audit(session, actor, "onset.stop", "run", search.run_id, search=str(search.id))
    announce(session, run_topic(search.run_id))


def resume_search(session: Session, actor: Actor, search: OnsetSearch) -> None:
    """Go on where the samples stand."""
    if not search.status.is_over:
        raise SearchGoesOn
    if search.status is RunStatus.COMPLETED:
        raise SearchIsOver("This search is completed. Start another one.")
    search.status = RunStatus.QUEUED
    search.reason = search.ended_at = None
    session.flush()
    wake(session, search.id)
    audit(session, actor, "onset.resume", "run", search.run_id, search=str(search.id))
    announce(session, run_topic(search.run_id))


def follow_evaluation(session: Session, run_id: uuid.UUID) -> None:
    """An evaluation ended: the searches that wait for it go on."""
    waiting = select(OnsetSample.search_id).where(OnsetSample.run_id == run_id, OnsetSample.rollouts.is_(None))
    for search_id in session.scalars(waiting).all():
        wake(session, search_id)


def wake(session: Session, search_id: uuid.UUID) -> None:
    """One waiting job is enough; one that is at work may have read too early."""
    is_same = Job.arguments["search_id"].astext == str(search_id)
    waiting = select(Job.id).where(Job.name == ONSET_JOB, Job.status == JobStatus.QUEUED, is_same)
    if session.scalar(waiting.limit(1)) is None:
        enqueue(session, ONSET_JOB, queue=Queue.CPU, arguments={"search_id": str(search_id)})


def _open_search(session: Session, run_id: uuid.UUID, request: OnsetRequest) -> OnsetSearch | None:
    is_same = OnsetSearch.detector == request.detector, OnsetSearch.cluster.is_not_distinct_from(request.cluster)
    under_way = OnsetSearch.status.in_((RunStatus.QUEUED, RunStatus.RUNNING))
    statement = select(OnsetSearch).where(OnsetSearch.run_id == run_id, under_way, *is_same)
    return session.scalars(statement.limit(1)).first()


def _amount(version: EnvironmentVersion, request: OnsetRequest) -> tuple[int, int]:
    """Tasks and rollouts a task."""
    available = Manifest.model_validate(version.manifest).proctor.tasks.heldout
    tasks = request.tasks or min(ROLLOUTS, available)
    if tasks > available:
        raise InvalidInput(fields={"tasks": f"There are {available:,} held-out tasks."})
    group_size = request.group_size or min(MOST_A_TASK, max(1, math.ceil(ROLLOUTS / tasks)))
    if tasks * group_size > MOST_ROLLOUTS:
        raise InvalidInput(fields={"tasks": f"At most {MOST_ROLLOUTS:,} rollouts of each checkpoint."})
    return tasks, group_size
