"""The history of an environment by one version's rewards: what is there to grade again, and how far that is."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.vocabulary import UNDER_WAY, Phase, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.rollouts.regrading.schemas import MAX_RUNS, RescoreRequest
from backend.rollouts.regrading.service import start_rescore
from backend.rollouts.tables import Rollout
from backend.runs.notes import Asker
from backend.runs.tables import Run

OF_TRAINING = (Phase.HELDOUT, Phase.TRAIN)
"""What of a training run is graded again, a run each: its examinations, and what it learned from."""


class NothingToGrade(Conflict):
    """All that can be graded again by this version was, or is being."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of the environment, or one phase of it, beside what it is by this version's rewards."""

    source: Run
    phase: Phase | None
    """Of a training run."""
    copy: Run | None
    """The newest re-score of all of it; None: nobody asked for it."""

    @property
    def is_graded(self) -> bool:
        return self.copy is not None and self.copy.status is RunStatus.COMPLETED

    @property
    def is_open(self) -> bool:
        return self.copy is not None and not self.copy.status.is_over

    @property
    def did_not_end(self) -> bool:
        """Refused as not faithful, stopped or failed."""
        return self.copy is not None and self.copy.status.is_over and not self.is_graded


@dataclass(frozen=True, slots=True)
class History:
    """All parts, oldest first."""

    version: EnvironmentVersion
    parts: Sequence[Part]

    @property
    def missing(self) -> list[Part]:
        return [part for part in self.parts if part.copy is None]

    @property
    def graded(self) -> list[Part]:
        return [part for part in self.parts if part.is_graded]

    @property
    def open(self) -> list[Part]:
        return [part for part in self.parts if part.is_open]

    @property
    def unended(self) -> list[Part]:
        return [part for part in self.parts if part.did_not_end]

    @property
    def rollouts_done(self) -> int:
        return sum(int(part.copy.progress.get("done") or 0) for part in self.parts if part.copy)

    @property
    def rollouts_asked(self) -> int:
        return sum(int(part.copy.progress.get("total") or 0) for part in self.parts if part.copy)


def history_of(session: Session, version: EnvironmentVersion) -> History:
    """Evaluations and training runs of the other versions of its environment that are over."""
    copies = _copies(session, version)
    parts = [Part(run, phase, copies.get((run.id, phase))) for run, phase in _gradable(session, version)]
    return History(version, parts)


def grade_again(session: Session, actor: Asker, version: EnvironmentVersion) -> list[Run]:
    """Queue a re-score of every part that has none yet. What was refused is not asked for again."""
    missing = history_of(session, version).missing
    if not missing:
        raise NothingToGrade
    started: list[Run] = []
    for phase in dict.fromkeys(part.phase for part in missing):
        ids = [part.source.id for part in missing if part.phase == phase]
        for start in range(0, len(ids), MAX_RUNS):
            request = RescoreRequest(run_ids=ids[start : start + MAX_RUNS], version_id=version.id, phase=phase)
            started += start_rescore(session, actor, request).runs
    return started


def _gradable(session: Session, version: EnvironmentVersion) -> Iterator[tuple[Run, Phase | None]]:
    """Not of runs on several environments, nor of imported ones, whose episodes were played elsewhere."""
    for run in session.scalars(_sources(version)).all():
        if run.is_imported or run.configuration.get("mix"):
            continue
        phases: tuple[Phase | None, ...] = (None,) if run.kind is RunKind.EVALUATION else OF_TRAINING
        yield from ((run, phase) for phase in phases if _has_rollouts(session, run, phase))


def _sources(version: EnvironmentVersion) -> Select[Run]:
    return (
        select(Run)
        .join(Run.version)
        .options(contains_eager(Run.version), joinedload(Run.policy), joinedload(Run.checkpoint))
        .where(
            EnvironmentVersion.environment_id == version.environment_id,
            Run.version_id != version.id,
            Run.kind.in_((RunKind.EVALUATION, RunKind.TRAINING)),
            Run.status.not_in(UNDER_WAY),
        )
        .order_by(Run.created_at, Run.id)
    )


def _has_rollouts(session: Session, run: Run, phase: Phase | None) -> bool:
    statement = select(Rollout.id).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
    if phase is not None:
        statement = statement.where(Rollout.phase == phase)
    return session.scalar(statement.limit(1)) is not None


def _copies(session: Session, version: EnvironmentVersion) -> dict[tuple[uuid.UUID, Phase | None], Run]:
    """The newest re-score by the version's rewards of each whole run or phase."""
    statement = select(Run).where(Run.version_id == version.id, Run.kind == RunKind.RESCORE).order_by(Run.id)
    found = {}
    for run in session.scalars(statement.options(joinedload(Run.policy), joinedload(Run.checkpoint))):
        plan = RescorePlan.model_validate(run.configuration)
        if run.source_run_id and plan.plays and not plan.where and not plan.rollout_ids:
            found[run.source_run_id, plan.phase] = run
    return found
