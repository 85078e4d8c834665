"""The job `deletions.purge`: remove the rows and files of a deletion after its 30 days.

It deletes in batches of one transaction each, so that it locks nothing for long, and continues where it ended if its
worker dies. Weights that runs which stay still need are kept.
"""

import uuid
from collections.abc import Sequence

import structlog
from sqlalchemy import ColumnElement, Table, Text, cast, delete, exists, select, tuple_, update
from sqlalchemy.orm import Session

from backend.checkpoints.pruning import uses_of
from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.core.session import transaction
from backend.core.tables import Base
from backend.deletions.tables import Deletion
from backend.domain.checkpoints.retention import KeepReason
from backend.environments.tables import Environment
from backend.graders.tables import Grade, Grader, GraderRun
from backend.policies.tables import Policy
from backend.rollouts.imports import artifact_of
from backend.runs.tables import Run
from backend.studies.tables import Study
from workers.tasks.registry import JobContext

BATCH = 2_000
VERSIONS = 20
"""Versions of one transaction. Each takes its files, drafts, trials and certificates along."""
_LARGE = ("rollouts", "rollout_texts", "flags", "metric_points", "run_log_lines", "groups")
"""Tables with many rows of one run. The rest leaves with the run's row."""
_NEEDED = frozenset({KeepReason.BRANCHED, KeepReason.PLAYING, KeepReason.EXPORTED, KeepReason.STUDIED})
"""Uses of a checkpoint by something that stays."""

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    deletion_id = uuid.UUID(context.arguments["deletion_id"])
    with transaction() as session:
        deletion = session.get(Deletion, deletion_id)
        if deletion is None or deletion.purge_started_at is None:
            return  # it was restored, or is gone
        run_ids = session.scalars(select(Run.id).where(Run.deletion_id == deletion_id).order_by(Run.id.desc())).all()
        environments = session.scalars(select(Environment.id).where(Environment.deletion_id == deletion_id)).all()
        checkpoint_ids = session.scalars(select(Checkpoint.id).where(Checkpoint.deletion_id == deletion_id)).all()
        named = [uuid.UUID(key) for key in deletion.names]
    for run_id in run_ids:
        purge_run(run_id)
    for environment_id in environments:
        purge_environment(environment_id)
    for checkpoint_id in checkpoint_ids:
        purge_checkpoint(checkpoint_id)
    with transaction() as session:
        session.execute(delete(Study).where(Study.deletion_id == deletion_id))
        session.execute(delete(Deletion).where(Deletion.id == deletion_id))
        delete_unused_policies(session, [*named, *delete_unused_graders(session, named)])
    logger.info("purged", deletion_id=str(deletion_id), runs=len(run_ids))


def purge_run(run_id: uuid.UUID) -> None:
    """Remove a run with its rollouts, exports, weights and files."""
    _delete_exports(Export.run_id == run_id)
    artifacts.delete(artifact_of(run_id))
    for name in _LARGE:
        table = Base.metadata.tables[name]
        _delete_in_batches(table, table.c.run_id == run_id)
    with transaction() as session:  # studies use its checkpoints
        session.execute(delete(Study).where(Study.run_id == run_id))
        checkpoints = select(Checkpoint).where(Checkpoint.run_id == run_id).order_by(Checkpoint.id.desc())
        weights = list(session.scalars(checkpoints))
        start = session.scalar(
            select(Checkpoint)
            .join(Checkpoint.policy)
            .where(Checkpoint.id == select(Run.checkpoint_id).where(Run.id == run_id).scalar_subquery())
            .where(Checkpoint.run_id.is_(None), Policy.deleted_at.is_not(None))
        )
    for checkpoint in weights:  # later steps first: an adapter keeps the weights that it was trained on
        _delete_checkpoint(checkpoint)
    with transaction() as session:
        policy_id = session.scalar(delete(Run).where(Run.id == run_id).returning(Run.policy_id))
    if start is not None:  # it was kept for this run alone
        _delete_checkpoint(start)
    with transaction() as session:
        delete_unused_policies(session, [key for key in (policy_id, start and start.policy_id) if key])


def purge_checkpoint(checkpoint_id: uuid.UUID) -> None:
    """Remove a checkpoint with its exports, weights and files."""
    _delete_exports(Export.checkpoint_id == checkpoint_id)
    with transaction() as session:
        checkpoint = session.get(Checkpoint, checkpoint_id)
    if checkpoint is None:
        return  # its run was removed at the same time
    _delete_checkpoint(checkpoint)
    with transaction() as session:
        delete_unused_policies(session, [checkpoint.policy_id])


def purge_environment(environment_id: uuid.UUID) -> None:
    """Remove an environment, its versions and their tasks. Its runs are gone already."""
    versions, tasks = Base.metadata.tables["environment_versions"], Base.metadata.tables["tasks"]
    of_environment = versions.c.environment_id == environment_id
    _delete_in_batches(tasks, tasks.c.version_id.in_(select(versions.c.id).where(of_environment)))
    _delete_in_batches(versions, of_environment, VERSIONS)
    with transaction() as session:
        session.execute(delete(Environment).where(Environment.id == environment_id))


def delete_unused_policies(session: Session, policies: Sequence[uuid.UUID]) -> None:
    """Delete policies that nothing refers to any more, and that cannot be restored."""
    users = (
        exists().where(Run.policy_id == Policy.id),
        exists().where(Grader.policy_id == Policy.id),
        exists().where(Checkpoint.policy_id == Policy.id),
        exists().where(Deletion.names.has_key(cast(Policy.id, Text))),
    )
    session.execute(
        delete(Policy)
        .where(Policy.id.in_(policies), Policy.deleted_at.is_not(None), *(~used for used in users))
        .execution_options(synchronize_session=False)
    )


def delete_unused_graders(session: Session, graders: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
    """Delete those of these graders that gave no grade, and return the policies of the deleted ones."""
    is_used = exists().where(Grade.grader_id == Grader.id) | exists().where(GraderRun.grader_id == Grader.id)
    unused = delete(Grader).where(Grader.id.in_(graders), Grader.deleted_at.is_not(None), ~is_used)
    return session.scalars(unused.returning(Grader.policy_id).execution_options(synchronize_session=False)).all()


def _delete_exports(condition: ColumnElement[bool]) -> None:
    with transaction() as session:
        exports = session.scalars(select(Export).where(condition)).all()
        files = [key for row in exports for key in (row.artifact, row.options.get("stored")) if key]
    for key in files:
        artifacts.delete(key)
    with transaction() as session:
        session.execute(delete(Export).where(condition))


def _delete_in_batches(table: Table, condition: ColumnElement[bool], size: int = BATCH) -> None:
    keys = tuple(table.primary_key.columns)
    some = delete(table).where(tuple_(*keys).in_(select(*keys).where(condition).limit(size))).returning(keys[0])
    deleted = size
    while deleted == size:
        with transaction() as session:
            deleted = len(session.execute(some).all())


def _delete_checkpoint(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint with its weights, unless something that stays needs them."""
    with transaction() as session:
        if _NEEDED & uses_of(session, [checkpoint.id])[checkpoint.id]:
            session.execute(
                update(Checkpoint).where(Checkpoint.id == checkpoint.id).values(run_id=None, deletion_id=None)
            )
            return
        session.execute(delete(Checkpoint).where(Checkpoint.id == checkpoint.id))
    artifacts.delete(checkpoint.artifact)
