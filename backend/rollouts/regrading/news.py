"""Tells people once a whole history is graded and something else follows from it."""

from sqlalchemy.orm import Session, joinedload

from backend.domain.notifications.notices import NoticeKind
from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.notifications import outbox
from backend.rollouts.regrading.conclusions import Conclusions, conclusions_of
from backend.rollouts.regrading.history import history_of
from backend.runs.tables import Run


def tell_of_history(session: Session, run: Run) -> None:
    """`run` is a re-score that ended. While others are open or were not asked for, nothing is told."""
    if run.kind is not RunKind.RESCORE or not RescorePlan.model_validate(run.configuration).plays:
        return
    version = session.get_one(EnvironmentVersion, run.version_id, options=[joinedload(EnvironmentVersion.environment)])
    history = history_of(session, version)
    if history.open or history.missing or len(history.graded) < 2:
        return
    found = conclusions_of(session, history)
    if found.is_changed:
        name = version.environment.name
        outbox.announce(
            session,
            kind=NoticeKind.RESCORING,
            title=f"{name} v{version.number} changes what follows from its history",
            text=f"{changes(found)}. {len(history.graded)} of {len(history.parts)} parts are graded.",
            path=f"/environments/{name}/versions/{version.number}/history",
        )


def changes(found: Conclusions) -> str:
    """In a line."""
    turned = sum(each.turned_count for each in found.rankings)
    another = sum(each.is_changed for each in found.checkpoints)
    return (
        f"Pairs of policies that turned: {turned}; training runs with another best checkpoint: {another} of"
        f" {len(found.checkpoints)}; means that left their interval: {len(found.moved)} of {found.compared}"
    )
