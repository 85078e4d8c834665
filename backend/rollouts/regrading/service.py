"""Starting re-scores and replays: what was asked for is checked, and each run whose rollouts are taken gets one run."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version as package_version

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id, stable_id
from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.vocabulary import Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotFound
from backend.rollouts.regrading.columns import Candidate, Origin, candidates, weighed
from backend.rollouts.regrading.schemas import MAX_RUNS, ReplayRequest, RescoreRequest
from backend.rollouts.regrading.selection import conditions_of
from backend.rollouts.tables import Rollout
from backend.runs.notes import Asker, note
from backend.runs.service import resume_run
from backend.runs.tables import Run

JOB = "rescoring.run"
SOURCES = (RunKind.EVALUATION, RunKind.TRAINING, RunKind.CHECK, RunKind.RESCORE, RunKind.REPLAY)
"""Kinds of run whose rollouts can be taken."""


class StillPlaying(Conflict):
    """This run is still playing. Wait for its end, or stop it first."""


class NotRefused(Conflict):
    """Only a re-score that was refused can be done all the same."""


@dataclass(frozen=True, slots=True)
class Started:
    """What was asked for together."""

    batch: uuid.UUID
    runs: list[Run]


@dataclass(frozen=True, slots=True)
class _Order:
    """What is to be done with one run's rollouts."""

    kind: RunKind
    version: EnvironmentVersion
    columns: Sequence[Candidate]
    plan: RescorePlan
    told: str
    """How the run's name goes on."""


def start_rescore(session: Session, actor: Asker, request: RescoreRequest) -> Started:
    """One run for each run whose rollouts are scored again."""
    batch = _batch(actor, request.key)
    plan = RescorePlan(
        weights=request.weights,
        phase=request.phase,
        where=request.where.strip(),
        rollout_ids=request.rollout_ids,
        override=request.override.strip(),
        batch=batch,
    )
    runs = []
    for source in _sources(session, request):
        if request.weights is not None:
            order = _reweighing(session, source, plan)
        else:
            order = _on_version(session, RunKind.RESCORE, source, request.version_id, plan)
        runs.append(_start(session, actor, source, order, request.name))
    return Started(batch, runs)


def start_replay(session: Session, actor: Asker, request: ReplayRequest) -> Started:
    """One run for each run whose replies are played again."""
    batch = _batch(actor, request.key)
    plan = RescorePlan(phase=request.phase, where=request.where.strip(), rollout_ids=request.rollout_ids, batch=batch)
    runs = [
        _start(
            session, actor, source, _on_version(session, RunKind.REPLAY, source, request.version_id, plan), request.name
        )
        for source in _sources(session, request)
    ]
    return Started(batch, runs)


def override(session: Session, actor: Asker, run: Run, reason: str) -> None:
    """Do a refused re-score all the same; the reason stands on the run for everybody to see."""
    plan = RescorePlan.model_validate(run.configuration)
    if run.kind is not RunKind.RESCORE or not plan.plays or run.status is not RunStatus.FAILED or plan.override:
        raise NotRefused
    run.configuration = {**run.configuration, "override": reason.strip()}
    note(session, actor, "rescore.override", "run", run.id, name=run.name, reason=reason.strip())
    session.flush()
    resume_run(session, actor, run)


def evaluations_of(session: Session, version_id: uuid.UUID) -> Sequence[uuid.UUID]:
    """Every completed evaluation of a version, oldest first."""
    statement = (
        select(Run.id)
        .where(Run.version_id == version_id, Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED)
        .order_by(Run.created_at, Run.id)
        .limit(MAX_RUNS + 1)
    )
    return session.scalars(statement).all()


def _batch(actor: Asker, key: str | None) -> uuid.UUID:
    return stable_id("rescoring", actor.person_id, key) if key else new_id()


def _sources(session: Session, request: RescoreRequest | ReplayRequest) -> list[Run]:
    ids = evaluations_of(session, request.evaluations_of) if request.evaluations_of else request.run_ids
    if not ids:
        raise InvalidInput(fields={"run_ids": "Name at least one run with stored rollouts."})
    if len(ids) > MAX_RUNS:
        raise InvalidInput(fields={"run_ids": f"At most {MAX_RUNS} runs at once."})
    options = joinedload(Run.version).joinedload(EnvironmentVersion.environment)
    statement = select(Run).options(options).where(Run.id.in_(ids)).order_by(Run.created_at, Run.id)
    found = list(session.scalars(statement))
    if len(found) < len(set(ids)):
        raise NotFound("There is no such run.")
    for source in found:
        if source.kind not in SOURCES:
            raise InvalidInput(fields={"run_ids": f"{source.name} is hand play: there is nothing to score again."})
        if source.configuration.get("mix"):
            told = f"{source.name} played several environments, each with rewards of its own."
            raise InvalidInput(fields={"run_ids": f"{told} Evaluate one of its checkpoints, and re-score that."})
        if not source.status.is_over:
            raise StillPlaying(f"{source.name} is {source.status}. Wait for its end, or stop it first.")
    return found


def _reweighing(session: Session, source: Run, plan: RescorePlan) -> _Order:
    chosen = weighed(candidates(session, source), plan.weights or {})
    complete = plan.model_copy(update={"weights": {each.name: each.weight for each in chosen}})
    return _Order(RunKind.RESCORE, source.version, chosen, complete, "weighed anew")


def _on_version(
    session: Session, kind: RunKind, source: Run, version_id: uuid.UUID | None, plan: RescorePlan
) -> _Order:
    version = session.get(EnvironmentVersion, version_id, options=[joinedload(EnvironmentVersion.environment)])
    if version is None:
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    if version.environment_id != source.version.environment_id:
        name = source.version.environment.name
        raise InvalidInput(fields={"version_id": f"{source.name} was played on {name}: choose a version of that."})
    declared = Manifest.model_validate(version.manifest).columns
    columns = [Candidate(column.name, Origin.COLUMN, column.weight) for column in declared]
    done = "re-scored by" if kind is RunKind.RESCORE else "replayed on"
    return _Order(kind, version, columns, plan, f"{done} v{version.number}")


def _start(session: Session, actor: Asker, source: Run, order: _Order, name: str | None) -> Run:
    """The same key from the same person meets the run that it started first."""
    run_id = stable_id("rescored run", order.plan.batch, source.id)
    if known := session.get(Run, run_id):
        return known
    total = session.scalar(select(func.count()).select_from(Rollout).where(*conditions_of(session, source, order.plan)))
    if not total:
        raise InvalidInput(fields={"where": f"{source.name} has no stored rollout that fits."})
    run = Run(
        id=run_id,
        kind=order.kind,
        status=RunStatus.QUEUED,
        name=(name or f"{source.name}, {order.told}").strip()[:200],
        version_id=order.version.id,
        policy_id=source.policy_id,
        checkpoint_id=source.checkpoint_id,
        configuration={
            **order.plan.model_dump(mode="json"),
            "content_hash": order.version.content_hash,
            "source": {"run": str(source.id), "name": source.name, "version": source.version.number},
            "proctor": package_version("proctor"),
        },
        columns=[each.name for each in order.columns],
        weights=[each.weight for each in order.columns],
        seed=source.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": total},
        source_run_id=source.id,
        created_by=actor.person_id,
    )
    session.add(run)
    session.flush()
    enqueue(session, JOB, queue=Queue.CPU, run_id=run.id)
    asked = order.plan.model_dump(mode="json", exclude={"rollout_ids"}, exclude_defaults=True)
    note(session, actor, f"{order.kind}.start", "run", run.id, name=run.name, source=str(source.id), **asked)
    announce(session, RUNS)
    return run
