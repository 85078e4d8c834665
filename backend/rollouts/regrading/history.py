"""The history of an environment by one version's rewards: runs of other versions, and which of them are regraded."""

import uuid
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.vocabulary import UNDER_WAY, Phase, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.rollouts.regrading.schemas import MAX_RUNS, StartRegrading
from backend.rollouts.regrading.service import start_regrading
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.web.audit import Requester

TRAINING_PHASES = (Phase.HELDOUT, Phase.TRAIN)
"""Phases of a training run that are regraded, one run each."""


class NothingToRegrade(Conflict):
    """Everything that this version can regrade is regraded or queued."""


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A run of the environment, or one phase of a training run, with its regraded copy."""

    source: Run
    phase: Phase | None
    """Training runs only."""
    copy: Run | None
    """The newest regrading of the whole part; None if none was started."""

    @property
    def name(self) -> str:
        """The policy of an evaluation; the name of a training run."""
        source, checkpoint = self.source, self.source.checkpoint
        if source.kind is RunKind.TRAINING or source.policy is None:
            return source.name
        return f"{source.policy.name} {checkpoint.stage} {checkpoint.step}" if checkpoint else source.policy.name

    @property
    def state(self) -> Literal["missing", "open", "graded", "unended"]:
        """`unended`: the regrading was refused, was stopped or failed."""
        if self.copy is None:
            return "missing"
        if self.copy.status is RunStatus.COMPLETED:
            return "graded"
        return "unended" if self.copy.status.is_over else "open"


def history_of(session: Session, version: EnvironmentVersion) -> list[HistoryPart]:
    """Finished evaluations and training runs of the environment's other versions, oldest first.

    Without runs on several environments, and without imported runs, whose episodes were played elsewhere.
    """
    copies: dict[tuple[uuid.UUID, Phase | None], Run] = {}
    regraded = select(Run).where(Run.version_id == version.id, Run.kind == RunKind.RESCORE).order_by(Run.id)
    for run in session.scalars(regraded.options(joinedload(Run.policy), joinedload(Run.checkpoint))):
        plan = RegradingPlan.model_validate(run.configuration)
        if run.source_run_id and plan.plays and not plan.where and not plan.rollout_ids:
            copies[run.source_run_id, plan.phase] = run

    sources = (
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
    parts = []
    for run in session.scalars(sources).all():
        if run.is_imported or run.configuration.get("mix"):
            continue
        phases: tuple[Phase | None, ...] = (None,) if run.kind is RunKind.EVALUATION else TRAINING_PHASES
        for phase in phases:
            stored = select(Rollout.id).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
            stored = stored.where(Rollout.phase == phase) if phase else stored
            if session.scalar(stored.limit(1)) is not None:
                parts.append(HistoryPart(run, phase, copies.get((run.id, phase))))
    return parts


def regrade_history(session: Session, actor: Requester, version: EnvironmentVersion) -> list[Run]:
    """Queue a regrading of every part that has none. A part whose regrading was refused is not queued again.

    Raises NothingToRegrade if no part is missing.
    """
    missing = [part for part in history_of(session, version) if part.state == "missing"]
    if not missing:
        raise NothingToRegrade
    started: list[Run] = []
    for phase in dict.fromkeys(part.phase for part in missing):
        ids = [part.source.id for part in missing if part.phase == phase]
        for start in range(0, len(ids), MAX_RUNS):
            request = StartRegrading(run_ids=ids[start : start + MAX_RUNS], version_id=version.id, phase=phase)
            started += start_regrading(session, actor, request).runs
    return started
