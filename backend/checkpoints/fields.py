"""The fields of checkpoints as SQL."""

from typing import Any

from sqlalchemy import ColumnElement, Double, Select, cast, func, select
from sqlalchemy.orm import aliased, contains_eager

from backend.checkpoints.tables import Checkpoint, Export
from backend.domain.checkpoints.fields import CHECKPOINT_FIELDS
from backend.domain.vocabulary import ExportStatus, RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.runs.tables import Run
from backend.web.item_table import ItemTable

_EVALUATION = aliased(Run, name="evaluation")


def _count(statement: Select[int]) -> ColumnElement[float]:
    return cast(statement.correlate(Checkpoint).scalar_subquery(), Double)


_VALUES: dict[str, ColumnElement[Any]] = {
    "name": func.concat(Checkpoint.stage, " ", Checkpoint.step),
    "run": Run.name.expression,
    "policy": Policy.name.expression,
    "environment": Environment.name.expression,
    "version": cast(EnvironmentVersion.number, Double),
    "stage": Checkpoint.stage.expression,
    "step": cast(Checkpoint.step, Double),
    "heldout": Checkpoint.heldout_reward.expression,
    "best": Checkpoint.is_best.expression,
    "size": cast(Checkpoint.size_bytes, Double),
    "stored": Checkpoint.pruned_at.is_(None),
    "kept": Checkpoint.is_kept.expression,
    "exports": _count(
        select(func.count(Export.id)).where(
            Export.checkpoint_id == Checkpoint.id, Export.status == ExportStatus.COMPLETED
        )
    ),
    "evaluations": _count(
        select(func.count(_EVALUATION.id)).where(
            _EVALUATION.checkpoint_id == Checkpoint.id, _EVALUATION.kind == RunKind.EVALUATION
        )
    ),
    "pinned": Checkpoint.is_pinned.expression,
    "note": func.nullif(Checkpoint.note, ""),
    "project": select(Project.name).where(Project.id == Policy.project_id).correlate(Policy).scalar_subquery(),
    "created": Checkpoint.created_at.expression,
}
CHECKPOINT_TABLE = ItemTable(
    CHECKPOINT_FIELDS,
    Checkpoint,
    Checkpoint.id,
    _VALUES,
    drawn=frozenset({"name", "policy", "stage", "step", "heldout", "best", "size", "stored", "kept", "tag", "created"}),
)
"""Of statements from `select_checkpoints`."""


def select_checkpoints() -> Select[Checkpoint]:
    """Checkpoints of policies that exist, with the run, version and environment of their training as far as known."""
    return (
        select(Checkpoint)
        .join(Checkpoint.policy)
        .outerjoin(Run, Run.id == Checkpoint.run_id)
        .outerjoin(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .outerjoin(Environment, Environment.id == EnvironmentVersion.environment_id)
        .options(contains_eager(Checkpoint.policy))
        .where(Policy.deleted_at.is_(None))
    )
