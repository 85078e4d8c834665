"""Which of the script's episodes a warm-up imitates."""

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.filters import FilterError, parse
from backend.domain.training.mix import union_columns
from backend.domain.vocabulary import Phase
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.rollouts.filters import condition_of
from backend.rollouts.scope import FilterScope, scope_of
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run

FIELD = "sft.script_where"


def check_script_filter(session: Session, where: str, version_ids: Sequence[uuid.UUID]) -> None:
    """Before anything is played: are its names those of the environments? Raises InvalidInput."""
    manifests = session.scalars(select(EnvironmentVersion.manifest).where(EnvironmentVersion.id.in_(version_ids)))
    columns = [column.name for column in union_columns(map(Manifest.model_validate, manifests))]
    try:
        parse(where, _scope(session, columns).fields)
    except FilterError as error:
        raise InvalidInput(fields={FIELD: f"{error.message} (at character {error.start + 1})"}) from error


def passing_episodes(session: Session, run_id: uuid.UUID, where: str) -> set[int]:
    """Numbers of the run's own warm-up episodes that pass the filter."""
    scope = scope_of(session, session.get_one(Run, run_id), for_learning=True)
    tree = parse(where, scope.fields)
    of_warm_up = (
        select(Group.ordinal)
        .join(Rollout, Rollout.group_id == Group.id)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.WARM_UP)
    )
    return set(session.scalars(of_warm_up if tree is None else of_warm_up.where(condition_of(tree, scope))))


def _scope(session: Session, columns: list[str]) -> FilterScope:
    """Of a run that is not there yet."""
    return scope_of(session, Run(id=uuid.UUID(int=0), columns=columns, configuration={}), for_learning=True)
