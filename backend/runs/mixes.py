"""The environments of a training run that plays several."""

from collections.abc import Sequence

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session, joinedload

from backend.domain.training.mix import MixPart
from backend.environments.tables import Environment, EnvironmentVersion
from backend.runs.tables import Run


def is_mixed(run: Run) -> bool:
    return bool(run.configuration.get("mix"))


def versions_of(session: Session, run: Run) -> Sequence[EnvironmentVersion]:
    """The run's own version, then the existing versions of its mix, with their environments."""
    parts = [MixPart.parse(text) for text in run.configuration.get("mix") or ()]
    if not parts:
        return [run.version]
    named = (and_(Environment.name == part.environment, EnvironmentVersion.number == part.version) for part in parts)
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .where(or_(*named))
        .order_by(Environment.name, EnvironmentVersion.number)
    )
    return [run.version, *session.scalars(statement)]


def names_of(versions: Sequence[EnvironmentVersion]) -> list[str]:
    """Names in the run's curves: with the version if two versions have the same environment."""
    names = [version.environment.name for version in versions]
    return [
        name if names.count(name) == 1 else f"{name}_v{version.number}"
        for name, version in zip(names, versions, strict=True)
    ]
