"""The further environments of a training run: found by name, pinned to a version, and listed beside its own."""

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import MixPart
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput


def pinned(
    session: Session, own: EnvironmentVersion, configuration: TrainingConfiguration
) -> tuple[TrainingConfiguration, list[EnvironmentVersion]]:
    """The choices with the version of each environment of the mix written out, and all versions, the run's own first.

    Raises InvalidInput where there is none, or where the same version would be played twice.
    """
    versions = [own]
    parts = []
    for part in configuration.mix:
        version = version_of_part(session, part)
        if version.id in {each.id for each in versions}:
            raise InvalidInput(fields={"mix": f"{_name(version)} is in the run twice. Give it once, with its weight."})
        versions.append(version)
        parts.append(part.model_copy(update={"version": version.number}))
    return configuration.model_copy(update={"mix": parts}), versions


def version_of_part(session: Session, part: MixPart) -> EnvironmentVersion:
    """Raises InvalidInput with what is wrong in the field `mix`."""
    version = _find(session, part)
    if version is None:
        what = "published version" if part.version is None else f"version {part.version}"
        raise InvalidInput(fields={"mix": f"There is no {what} of an environment called {part.environment}."})
    if version.environment.archived_at is not None:
        raise InvalidInput(fields={"mix": f"{part.environment} is archived: bring it back first."})
    return version


def _find(session: Session, part: MixPart) -> EnvironmentVersion | None:
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .where(Environment.name == part.environment)
    )
    if part.version is not None:
        statement = statement.where(EnvironmentVersion.number == part.version)
    return session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).first()


def _name(version: EnvironmentVersion) -> str:
    return f"{version.environment.name} v{version.number}"
