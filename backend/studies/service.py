"""Start, stop and resume studies. The job `studies.run` advances a study; the end of each evaluation wakes it again."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, select

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, run_topic
from backend.core.queue import STUDY_JOB, enqueue
from backend.core.tables import Job
from backend.domain.environments.manifest import Manifest
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.studies.study import EffortSettings, OnsetSettings, StudyKind
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import UNDER_WAY, JobStatus, Queue, RunKind, RunStatus, Split
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.runs.tables import Run
from backend.studies import queries
from backend.studies.patterns import patterns_of
from backend.studies.tables import Study, StudyCheckpoint

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from backend.studies.schemas import StartEffort, StartOnset
    from backend.web.identity import Actor

ONSET_ROLLOUTS = 128
"""Default per checkpoint. From a base rate of 0, 7 of them are significant."""
EFFORT_TASKS = 64
"""Default per side."""
MAX_ROLLOUTS = {StudyKind.ONSET: 4096, StudyKind.EFFORT: 2048}
"""Per checkpoint."""


class StudyConflict(Conflict):
    """This study cannot be started, stopped or resumed now."""


def start_onset(session: Session, actor: Actor, run: Run, request: StartOnset) -> Study:
    """Queue an onset study; returns the one in progress for the same pattern if there is one."""
    wanted = request.detector, request.cluster
    pattern = next((each for each in patterns_of(session, run) if (each.detector, each.cluster) == wanted), None)
    if pattern is None:
        message = "No rollout with this flag was reviewed as a hack or a broken reward in this run."
        raise InvalidInput(fields={"detector": message})
    if pattern.obstacle:
        raise InvalidInput(fields={"detector": pattern.obstacle})
    is_same_detector = Study.settings["detector"].astext == request.detector
    is_same_cluster = Study.settings["cluster"].astext.is_not_distinct_from(request.cluster)
    if study := _find_in_progress(session, run, StudyKind.ONSET, is_same_detector, is_same_cluster):
        return study
    checkpoints = queries.checkpoints_until(session, run.id)
    if not checkpoints or queries.start_of(session, run) is None:
        raise StudyConflict("No GRPO checkpoint of this run, or not the policy that GRPO started from, has weights.")
    version = session.get_one(EnvironmentVersion, pattern.version_id)
    tasks, group_size = _amount(StudyKind.ONSET, version, request, ONSET_ROLLOUTS)
    settings = OnsetSettings(
        detector=request.detector,
        cluster=request.cluster,
        tasks=tasks,
        group_size=group_size,
        temperature=request.temperature or TrainingConfiguration.of_run(run.configuration).grpo.temperature,
        seed=run.seed,
        last_step=checkpoints[-1].step,
        hint_step=pattern.middle_step,
    )
    return _create(session, actor, run, pattern.version_id, settings)


def start_effort(session: Session, actor: Actor, run: Run, request: StartEffort) -> Study:
    """Queue an effort study; returns the one in progress for the same checkpoint if there is one."""
    if reason := queries.why_no_effort_study(session, run):
        raise StudyConflict(reason)
    is_training = run.kind is RunKind.TRAINING
    own = _choose_checkpoint(session, run, request) if is_training else session.get_one(Checkpoint, run.checkpoint_id)
    is_own = StudyCheckpoint.checkpoint_id == own.id, StudyCheckpoint.is_base.is_(False)
    is_same = select(StudyCheckpoint.id).where(StudyCheckpoint.study_id == Study.id, *is_own).exists()
    if study := _find_in_progress(session, run, StudyKind.EFFORT, is_same):
        return study
    if is_training:
        tasks, group_size = _amount(StudyKind.EFFORT, run.version, request, EFFORT_TASKS)
        plan: dict[str, object] = {
            "split": Split.HELDOUT.value,
            "tasks": tasks,
            "group_size": group_size,
            "temperature": request.temperature or TrainingConfiguration.of_run(run.configuration).grpo.temperature,
            "seed": run.seed,
        }
    else:  # the base plays what this evaluation played
        played = EvaluationPlan.model_validate(run.configuration)
        plan = played.model_dump(mode="json", include={"split", "tasks", "first_task", "group_size", "context"})
        plan |= played.sampling.model_dump()
        plan |= {"task_indexes": list(played.task_indexes_given), "seed": run.seed}
    settings = EffortSettings(plan=plan, **request.model_dump(include={"cuts", "samples", "replies", "measure"}))
    study = _create(session, actor, run, run.version_id, settings)
    for checkpoint in filter(None, (own, queries.base_of(session, run, own))):
        side = StudyCheckpoint(
            study_id=study.id,
            checkpoint_id=checkpoint.id,
            run_id=run.id if checkpoint is own and not is_training else None,
            is_base=checkpoint is not own,
            stage=checkpoint.stage,
            step=checkpoint.step,
        )
        session.add(side)
    session.flush()
    return study


def _create(
    session: Session, actor: Actor, run: Run, version_id: uuid.UUID, settings: OnsetSettings | EffortSettings
) -> Study:
    study = Study(
        kind=StudyKind.ONSET if isinstance(settings, OnsetSettings) else StudyKind.EFFORT,
        run_id=run.id,
        version_id=version_id,
        settings=settings.model_dump(mode="json"),
        created_by=actor.person_id,
    )
    session.add(study)
    _changed(session, study)
    return study


def stop_study(session: Session, study: Study) -> None:
    """Stop a study and keep its samples. The job stops the evaluations that it waits for."""
    if study.status.is_over:
        raise StudyConflict(f"This study is already {study.status}.")
    study.status, study.reason, study.ended_at = RunStatus.STOPPED, "Stopped on request.", datetime.now(UTC)
    _changed(session, study)


def resume_study(session: Session, study: Study) -> None:
    """Continue a stopped or failed study from its rows."""
    if not study.status.is_over:
        raise StudyConflict("This study is in progress.")
    if study.status is RunStatus.COMPLETED:
        raise StudyConflict("This study is completed. Start a new one.")
    study.status, study.reason, study.ended_at = RunStatus.QUEUED, None, None
    _changed(session, study)


def wake_studies(session: Session, evaluation_id: uuid.UUID) -> None:
    """Wake the studies that waited for an evaluation that has ended."""
    statement = select(Study).where(
        Study.status.in_(UNDER_WAY),
        Study.id.in_(select(StudyCheckpoint.study_id).where(StudyCheckpoint.run_id == evaluation_id)),
    )
    for study in session.scalars(statement).all():
        _wake(session, study)


def _find_in_progress(session: Session, run: Run, kind: StudyKind, *is_same: ColumnElement[bool]) -> Study | None:
    """The same study, if it is in progress. Locks the run, so that no second one can be started meanwhile."""
    session.execute(select(Run.id).where(Run.id == run.id).with_for_update())
    statement = select(Study).where(Study.run_id == run.id, Study.kind == kind, Study.status.in_(UNDER_WAY), *is_same)
    return session.scalars(statement.limit(1)).first()


def _amount(
    kind: StudyKind, version: EnvironmentVersion, request: StartOnset | StartEffort, default: int
) -> tuple[int, int]:
    """Number of held-out tasks (default: `default`, or all of them) and rollouts per task. Raises InvalidInput."""
    available = Manifest.model_validate(version.manifest).proctor.tasks.heldout
    tasks = request.tasks or min(default, available)
    if tasks > available:
        raise InvalidInput(fields={"tasks": f"The environment has {available:,} held-out tasks."})
    group_size = request.group_size or 1
    if kind is StudyKind.ONSET and request.group_size is None:
        group_size = min(16, max(1, math.ceil(default / tasks)))
    if tasks * group_size > MAX_ROLLOUTS[kind]:
        raise InvalidInput(fields={"tasks": f"A checkpoint can play at most {MAX_ROLLOUTS[kind]:,} rollouts."})
    return tasks, group_size


def _choose_checkpoint(session: Session, run: Run, request: StartEffort) -> Checkpoint:
    offered = queries.checkpoints_until(session, run.id)
    field = "checkpoint_id" if request.checkpoint_id else "step"
    wanted = getattr(request, field)
    if wanted is None:
        return offered[-1]
    for checkpoint in offered:
        if wanted in (checkpoint.id, checkpoint.step):
            return checkpoint
    steps = ", ".join(f"step {each.step}" for each in reversed(offered))
    raise InvalidInput(fields={field: f"This run has no such GRPO checkpoint with weights. Available: {steps}."})


def _changed(session: Session, study: Study) -> None:
    session.flush()
    _wake(session, study)
    announce(session, run_topic(study.run_id))


def _wake(session: Session, study: Study) -> None:
    """Queue the job unless one is waiting. A running one may have read the rows too early."""
    arguments = {"study_id": str(study.id)}
    is_same = Job.name == STUDY_JOB, Job.arguments.contains(arguments)
    waiting = select(Job.id).where(Job.status == JobStatus.QUEUED, *is_same)
    if session.scalar(waiting.limit(1)) is None:
        queue = Queue.GPU if study.kind is StudyKind.EFFORT else Queue.CPU  # effort studies load weights
        enqueue(session, STUDY_JOB, queue=queue, arguments=arguments)
