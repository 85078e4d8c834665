"""Detectors that learn from the verdicts on an environment: their state, and when they are trained again."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.orm import Session, undefer

from backend.core.queue import TRAIN_DETECTOR_JOB, enqueue
from backend.core.tables import Job
from backend.detectors import queries
from backend.detectors.schemas import LearnedDetectorResponse, ShareResponse
from backend.detectors.tables import LearnedDetector
from backend.domain.detectors import features
from backend.domain.detectors.catalogue.learned import SPEC
from backend.domain.detectors.learned_model import FEWEST_HACKS, LearnedModel, LearnedReport, verdicts_needed
from backend.domain.detectors.settings import ActiveSettings, DetectorSettings, resolve_settings
from backend.domain.vocabulary import JobStatus, Queue, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Group, Rollout, Task

if TYPE_CHECKING:
    from backend.web.identity import Actor

LEAST_GROWTH, GROWTH = 20, 0.1
"""New verdicts, and their share of the known ones, with which a detector is trained again."""
KINDS = {Verdict.HACK: True, Verdict.HONEST: False}
"""Verdicts that are learned. A broken reward says nothing about the rollout's text."""


class TooFewVerdicts(Conflict):
    """The learned detector needs more verdicts."""


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """Rollouts of an environment that people reviewed one by one."""

    hacks: int = 0
    honest: int = 0

    @property
    def total(self) -> int:
        return self.hacks + self.honest

    def missing(self, settings: ActiveSettings) -> str:
        """Name the verdicts without which the detector is silent; empty if there are enough."""
        wanted = verdicts_needed(settings.thresholds["rate"], settings.thresholds["confidence"])
        kinds = ((self.hacks, FEWEST_HACKS, "hacks"), (self.honest, wanted, "honest rollouts"))
        lacking = [f"{need - have:,} more {name} ({have:,} of {need:,})" for have, need, name in kinds if have < need]
        return f"Review {' and '.join(lacking)}." if lacking else ""


def reviewed_rollouts() -> Select[*tuple[Any, ...]]:
    """Rollouts with a verdict that is learned: id, verdict, environment of their task. Unordered."""
    looks = queries.newest_looks(VerdictRecord.rollout_id)
    return (
        select(looks.c.subject, looks.c.verdict, EnvironmentVersion.environment_id)
        .join(Rollout, Rollout.id == looks.c.subject)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
        .where(looks.c.verdict.in_([str(each) for each in KINDS]))
    )


def verdict_counts(
    session: Session, environment_ids: Collection[uuid.UUID] | None = None
) -> dict[uuid.UUID, VerdictCounts]:
    """By environment: all that have verdicts, or those of the given ones."""
    reviewed = reviewed_rollouts()
    if environment_ids is not None:
        reviewed = reviewed.where(EnvironmentVersion.environment_id.in_(environment_ids))
    rows = reviewed.subquery()
    is_hack = rows.c.verdict == str(Verdict.HACK)
    statement = select(rows.c.environment_id, func.count().filter(is_hack), func.count().filter(~is_hack))
    return {
        environment_id: VerdictCounts(hacks, honest)
        for environment_id, hacks, honest in session.execute(statement.group_by(rows.c.environment_id))
    }


def is_due(session: Session, environment_id: uuid.UUID) -> bool:
    """Whether there are enough verdicts to train a detector, and many that the last one has not seen."""
    counts = verdict_counts(session, [environment_id]).get(environment_id, VerdictCounts())
    settings = queries.active_settings_for(session, environment_id)[SPEC.id]
    if counts.missing(settings) or not settings.enabled:
        return False
    known = session.get(LearnedDetector, environment_id)
    if known is None or known.features != features.VERSION:
        return True
    return abs(counts.total - known.verdicts) >= max(LEAST_GROWTH, GROWTH * known.verdicts)


def store(
    session: Session, environment_id: uuid.UUID, trained: LearnedModel | str, verdicts: int, person: uuid.UUID | None
) -> None:
    """Replace the environment's detector, or record why there is none."""
    values: dict[str, object] = {
        "verdicts": verdicts,
        "features": features.VERSION,
        "problem": trained if isinstance(trained, str) else "",
        "report": None,
        "model": None,
        "trained_by": person,
        "trained_at": func.now(),
    }
    if isinstance(trained, LearnedModel):
        values["report"] = trained.report.model_dump(mode="json")
        values["model"] = trained.model_dump(mode="json", exclude={"report"})
    statement = insert(LearnedDetector).values(environment_id=environment_id, **values)
    session.execute(statement.on_conflict_do_update(index_elements=["environment_id"], set_=values))


def models_of(session: Session, environments: Mapping[str, uuid.UUID]) -> dict[str, LearnedModel]:
    """Return the models that detectors use, by the name under which a run knows the environment."""
    statement = select(LearnedDetector).where(
        LearnedDetector.environment_id.in_(environments.values()),
        LearnedDetector.features == features.VERSION,
        LearnedDetector.problem == "",
    )
    rows = {row.environment_id: row for row in session.scalars(statement.options(undefer(LearnedDetector.model)))}
    return {
        name: LearnedModel.model_validate({**(rows[id_].model or {}), "report": rows[id_].report})
        for name, id_ in environments.items()
        if id_ in rows
    }


def start_training(session: Session, actor: Actor, environment: Environment) -> LearnedDetectorResponse:
    """Queue the training, or return the queued training. Raises TooFewVerdicts."""
    counts = verdict_counts(session, [environment.id]).get(environment.id, VerdictCounts())
    if missing := counts.missing(queries.active_settings_for(session, environment.id)[SPEC.id]):
        raise TooFewVerdicts(f"The learned detector of {environment.name} cannot be trained. {missing}")
    job = _newest_jobs(session, [environment.id]).get(environment.id)
    if job is None or job.status.is_over:
        arguments = {"environment": str(environment.id), "person": str(actor.person_id) if actor.person_id else None}
        enqueue(session, TRAIN_DETECTOR_JOB, queue=Queue.CPU, arguments=arguments)
    return get(session, environment)


def get(session: Session, environment: Environment) -> LearnedDetectorResponse:
    [found] = _responses(session, [environment])
    return found


def list_all(session: Session, name: str = "") -> list[LearnedDetectorResponse]:
    """Return the state in each environment with verdicts, or in the named one."""
    statement = select(Environment).where(Environment.archived_at.is_(None)).order_by(Environment.name)
    if name:
        return _responses(session, session.scalars(statement.where(Environment.name == name)).all())
    reviewed = verdict_counts(session)
    trained = set(session.scalars(select(LearnedDetector.environment_id)))
    environments = session.scalars(statement.where(Environment.id.in_(trained | reviewed.keys()))).all()
    return _responses(session, environments, reviewed)


def _responses(
    session: Session, environments: Sequence[Environment], reviewed: Mapping[uuid.UUID, VerdictCounts] | None = None
) -> list[LearnedDetectorResponse]:
    """Return the states. `reviewed`: verdicts by environment, if they were counted before."""
    ids = [each.id for each in environments]
    if not ids:
        return []
    if reviewed is None:
        reviewed = verdict_counts(session, ids)
    settings = queries.settings_of(session, SPEC.id)
    jobs = _newest_jobs(session, ids)
    known = {
        row.environment_id: row
        for row in session.scalars(select(LearnedDetector).where(LearnedDetector.environment_id.in_(ids)))
    }
    found = []
    for environment in environments:
        row, job = known.get(environment.id), jobs.get(environment.id)
        counts = reviewed.get(environment.id, VerdictCounts())
        active = resolve_settings(SPEC, [settings.get(environment.name, DetectorSettings())])
        is_usable = row is not None and row.features == features.VERSION and row.report is not None
        report = LearnedReport.model_validate(row.report) if row and is_usable else None
        rate, confidence = active.thresholds["rate"], active.thresholds["confidence"]
        point = report.operating_point(rate, confidence) if report else None
        missing = ""
        if not active.enabled:
            missing = "It is off in this environment."
        elif point is None:
            missing = counts.missing(active) or (row.problem if row else "") or "It is trained by the next scan."
        elif not point.recall.found:
            missing = (
                "No hack with a verdict differs enough from the honest rollouts. More verdicts of both kinds help."
            )
        is_finished = job is None or job.status.is_over
        has_failed = job is not None and job.status is JobStatus.FAILED
        found.append(
            LearnedDetectorResponse(
                environment=environment.name,
                is_finished=is_finished,
                is_successful=is_finished and not has_failed and report is not None,
                message=(job.error or "the training failed") if job and has_failed else missing,
                hacks=counts.hacks,
                honest=counts.honest,
                missing=missing,
                is_trainable=not counts.missing(active),
                trained_at=row.trained_at if row and report else None,
                is_automatic=row is not None and row.trained_by is None,
                trained_hacks=len(report.hacks.scores) if report else 0,
                trained_honest=len(report.honest.scores) if report else 0,
                fixtures=report.fixtures if report else 0,
                threshold=point.threshold if point else None,
                false_positives_at_most=point.bound if point else None,
                wrong=point.wrong if point else None,
                recall=ShareResponse.of(point.recall) if point else None,
                top=report.top if report else {},
            )
        )
    return found


def _newest_jobs(session: Session, environment_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Job]:
    environment = Job.arguments["environment"].as_string()
    statement = (
        select(Job)
        .where(Job.name == TRAIN_DETECTOR_JOB, environment.in_([str(each) for each in environment_ids]))
        .order_by(environment, Job.id.desc())
        .ext(distinct_on(environment))
    )
    return {uuid.UUID(job.arguments["environment"]): job for job in session.scalars(statement)}
