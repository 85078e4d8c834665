"""Certificates and judged fixtures of the newest versions again, every night: what drifted does not stay certified.

Housekeeping asks, one version at a time; the checks run as everybody else's do. The newest certificate counts, so one
that fails puts the older one out of force. A check that breaks off certifies nothing: the older one stays in force, and
people are told when it happens twice in a row.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.session import transaction
from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.service import start_check
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.notifications.outbox import announce
from backend.runs.tables import Run

NIGHT = range(1, 5)
"""Hours, in UTC."""
OLD_AFTER = timedelta(hours=20)
OVERDUE_AFTER = timedelta(hours=48)
"""An installation that sleeps at night checks by day."""

logger = structlog.get_logger(__name__)


def check_again(now: datetime | None = None) -> str | None:
    """Queue the checks of the version that was certified longest ago, if it is time and no other check is open."""
    now = now or datetime.now(UTC)
    with transaction() as session:
        version = _due(session, now - (OLD_AFTER if now.hour in NIGHT else OVERDUE_AFTER))
        if version is None or _is_checking(session):
            return None
        name = version.environment.name
        run = start_check(session, None, version, name)
        logger.info("checked again", environment=name, version=version.number, run_id=str(run.id))
        return name


def drifted(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[str]:
    """Checks that did not fail then and fail now."""
    held = {each["check"] for each in before if each["status"] != CheckStatus.FAILED}
    return [str(each["check"]) for each in after if each["status"] == CheckStatus.FAILED and each["check"] in held]


def weakened(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[str]:
    """Checks that passed then, and are doubtful now or cannot be looked at any more."""
    passed = {each["check"] for each in before if each["status"] == CheckStatus.PASSED}
    doubtful = {CheckStatus.WARNED, CheckStatus.SKIPPED}
    return [
        str(each["check"])
        for each in after
        if each["status"] in doubtful and each.get("applies", True) and each["check"] in passed
    ]


def tell_of_expiry(session: Session, run: Run, drift: Sequence[str]) -> None:
    """People are told that what held before does not any more."""
    _tell(
        session,
        run,
        "is out of force",
        f"The checks of the night found drift: {', '.join(drift)} held before, and fails now."
        " Training on this version asks for an override until it is certified again.",
        {"checks": list(drift)},
    )


def tell_of_weakening(session: Session, run: Run, doubtful: Sequence[str]) -> None:
    """It stays in force, but says less than it did."""
    _tell(
        session,
        run,
        "is weaker",
        f"The checks of the night found drift: {', '.join(doubtful)} passed before, and is doubtful now."
        " The certificate stays in force with a warning.",
        {"checks": list(doubtful)},
    )


def tell_of_breaking(session: Session, run: Run, reason: str) -> None:
    """A check of the night breaks off for good and certifies nothing, so the older certificate still counts. Once, that
    may be the machine's fault; the second time in a row people are told that nobody knows whether it holds."""
    if run.created_by is not None:
        return
    of_version = Run.kind == RunKind.CHECK, Run.version_id == run.version_id, Run.id != run.id
    completed = select(func.max(Run.created_at)).where(*of_version, Run.status == RunStatus.COMPLETED)
    broken = select(func.count()).where(
        *of_version,
        Run.status == RunStatus.FAILED,
        Run.created_by.is_(None),
        Run.created_at > func.coalesce(completed.scalar_subquery(), datetime.min.replace(tzinfo=UTC)),
    )
    if session.scalar(broken) == 1:  # the second; each is told as a run that failed besides
        _tell(
            session,
            run,
            "could not be looked at for two nights",
            f"The checks of the night broke off twice in a row, the last time because: {reason} The older certificate"
            " still counts, but nobody knows whether what it says holds. Check the version by hand.",
            {"reason": reason},
        )


def _tell(session: Session, run: Run, what: str, text: str, evidence: dict[str, Any]) -> None:
    version = session.scalars(
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.environment))
        .where(EnvironmentVersion.id == run.version_id)
    ).one()
    name = version.environment.name
    announce(
        session,
        kind=NoticeKind.CERTIFICATE_EXPIRED,
        title=f"The certificate of {name} v{version.number} {what}",
        text=text,
        path=f"/environments/{name}/versions/{version.number}#certificate",
        run_id=run.id,
        evidence={"environment": name, "version": version.number, **evidence},
    )


def _due(session: Session, certified_before: datetime) -> EnvironmentVersion | None:
    """Of each environment in use the newest version, if anybody had it certified. A check that broke counts as one."""
    newest = (
        select(EnvironmentVersion.environment_id, func.max(EnvironmentVersion.number).label("number"))
        .group_by(EnvironmentVersion.environment_id)
        .subquery()
    )
    looked = (
        select(Run.version_id, func.max(Run.created_at).label("at"))
        .where(Run.kind == RunKind.CHECK)
        .group_by(Run.version_id)
        .subquery()
    )
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .join(newest, newest.c.environment_id == EnvironmentVersion.environment_id)
        .join(looked, looked.c.version_id == EnvironmentVersion.id)
        .options(joinedload(EnvironmentVersion.environment))
        .where(
            EnvironmentVersion.number == newest.c.number,
            Environment.archived_at.is_(None),
            select(Certificate.id).where(Certificate.version_id == EnvironmentVersion.id).exists(),
            looked.c.at < certified_before,
        )
        .order_by(looked.c.at)
        .limit(1)
    )
    return session.scalars(statement).first()


def _is_checking(session: Session) -> bool:
    is_open = select(Run.id).where(Run.kind == RunKind.CHECK, Run.status.in_([RunStatus.QUEUED, RunStatus.RUNNING]))
    return session.scalar(is_open.limit(1)) is not None
