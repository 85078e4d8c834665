"""What a re-score or a replay needs to know of its run, read once, and how an attempt at it ends."""

import uuid
from dataclasses import dataclass, field

from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.rollouts.regrading.certified import are_certified
from backend.runs.service import begin_run
from backend.runs.tables import Run
from workers.storage.source_rollouts import Originals


class SourceIsGone(Conflict):
    """The run whose rollouts were to be scored again was deleted."""


@dataclass(frozen=True, slots=True)
class Package:
    """A version that is played."""

    version_id: uuid.UUID
    name: str
    """`tictactoe v2`"""
    content_hash: str
    manifest: Manifest = field(repr=False)
    files: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    """All that is needed of the run, read once."""

    run_id: uuid.UUID
    kind: RunKind
    plan: RescorePlan
    weights: dict[str, float]
    """By column, of this run."""
    own: Package
    """What the rollouts were played on."""
    target: Package
    originals: Originals
    is_certified: bool
    """The checks say of both versions that stored episodes are scored as they were."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    status: RunStatus
    reason: str | None = None
    grounds: str = ""
    """Why the result may be trusted, in a sentence."""


def take_up(run_id: uuid.UUID) -> Work | None:
    """Begin the run and read what is to be done. None when it is over."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if not begin_run(session, row):
            return None
        source = session.get(Run, row.source_run_id) if row.source_run_id else None
        if source is None:
            raise SourceIsGone
        plan = RescorePlan.model_validate(row.configuration)
        target = _package(session, row.version_id)
        own = target if source.version_id == row.version_id else _package(session, source.version_id)
        return Work(
            run_id=run_id,
            kind=row.kind,
            plan=plan,
            weights=dict(zip(row.columns, row.weights, strict=True)),
            own=own,
            target=target,
            originals=Originals(run_id, source.id, plan, tuple(source.columns)),
            is_certified=are_certified(session, {own.version_id, target.version_id}),
        )


def _package(session: Session, version_id: uuid.UUID) -> Package:
    wanted = [undefer(EnvironmentVersion.files), joinedload(EnvironmentVersion.environment)]
    version = session.get_one(EnvironmentVersion, version_id, options=wanted)
    return Package(
        version_id=version.id,
        name=f"{version.environment.name} v{version.number}",
        content_hash=version.content_hash,
        manifest=Manifest.model_validate(version.manifest),
        files=version.files,
    )
