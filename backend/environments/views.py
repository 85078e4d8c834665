"""The views with which pages show the observations of an environment version."""

import uuid
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.environments.view_specs import ViewSpec
from backend.domain.environments.views import ViewRenderer
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Rollout
from backend.web.transcripts import Entry, with_views


def view_renderer(session: Session, version_id: uuid.UUID) -> ViewRenderer:
    """Return the renderer of a version for one page.

    A version that declares no view, perhaps because it is older, is shown with that of the environment's newest version
    that has one, as far as it fits.
    """
    declared = EnvironmentVersion.manifest["proctor"]["view"]
    own = select(EnvironmentVersion.environment_id).where(EnvironmentVersion.id == version_id).scalar_subquery()
    statement = (
        select(EnvironmentVersion.id, declared)
        .where(EnvironmentVersion.environment_id == own, func.jsonb_typeof(declared).in_(["array", "object"]))
        .order_by((EnvironmentVersion.id == version_id).desc(), EnvironmentVersion.number.desc())
        .limit(1)
    )
    found = session.execute(statement).one_or_none()
    if found is None:
        return ViewRenderer(())
    declaring, views = found
    specs = [ViewSpec.model_validate(each) for each in (views if isinstance(views, list) else [views])]
    return ViewRenderer(specs, is_lenient=declaring != version_id)


def with_rollout_views(
    session: Session, rollout: Rollout, entries: Sequence[Entry], *, is_end_shown: bool = True
) -> list[Entry]:
    """Add the views of the rollout's version to its conversation, or to a part without its end."""
    renderer = view_renderer(session, rollout.group.task.version_id)
    return with_views(entries, renderer, rollout.opening, rollout.steps, is_end_shown=is_end_shown)
