"""Asking for a search for an onset. The job `judging.onset` carries it out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from backend.core.queue import ONSET_JOB
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Queue
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.runs.tables import Run
from backend.studies.onset import queries
from backend.studies.onset.schemas import MOST_ROLLOUTS, OnsetRequest
from backend.studies.queries import checkpoints_until, start_of
from backend.studies.service import Studies, held_out_tasks, refuse_more
from backend.studies.tables import OnsetSample, OnsetSearch

if TYPE_CHECKING:
    from backend.web.identity import Actor

ROLLOUTS = 128
"""Of each checkpoint, unless said otherwise: at a base rate of nothing, 7 of them are no chance any more."""
MOST_A_TASK = 16
SEARCHES = Studies(
    rows=OnsetSearch,
    checkpoints=OnsetSample,
    of=OnsetSample.search_id,
    job=ONSET_JOB,
    queue=Queue.CPU,
    word="onset",
)


class NothingToSample(Conflict):
    """No checkpoint of this run's reinforcement has its weights."""


def start_search(session: Session, actor: Actor, run: Run, request: OnsetRequest) -> OnsetSearch:
    """Queue a search; one for the same pattern that is under way is given back instead."""
    pattern = queries.find_pattern(session, run, request.detector, request.cluster)
    if pattern is None:
        raise InvalidInput(
            fields={"detector": "Nobody judged a rollout with this flag a hack or a broken reward in this run."}
        )
    if pattern.obstacle:
        raise InvalidInput(fields={"detector": pattern.obstacle})
    is_same = OnsetSearch.detector == request.detector, OnsetSearch.cluster.is_not_distinct_from(request.cluster)
    if known := SEARCHES.find_open(session, run, *is_same):
        return known
    checkpoints = checkpoints_until(session, run.id)
    if not checkpoints or start_of(session, run) is None:
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
    return SEARCHES.start(session, actor, search, detector=request.detector, cluster=request.cluster)


def _amount(version: EnvironmentVersion, request: OnsetRequest) -> tuple[int, int]:
    """Tasks and rollouts a task."""
    tasks = held_out_tasks(version, request.tasks, ROLLOUTS)
    group_size = request.group_size or min(MOST_A_TASK, max(1, math.ceil(ROLLOUTS / tasks)))
    refuse_more(tasks * group_size, MOST_ROLLOUTS, "each checkpoint")
    return tasks, group_size
