"""Check the newest certified versions again every night, one at a time, and report drift.

Housekeeping starts the checks; they run like any other. The newest certificate counts, so a failed one replaces a valid
one. A check run that fails leaves the older certificate in force; people are notified if that happens twice in a row.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

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
"""Age at which a version is checked at any hour, for machines that are off at night."""

logger = structlog.get_logger(__name__)


def check_again(now: datetime | None = None) -> str | None:
    """Queue the checks of the version that was checked longest ago, if it is due and no other check is open.

    Only the newest version of an environment in use counts, and only if it has a certificate. Failed check runs count
    as checks.
    """
    now = now or datetime.now(UTC)
    newest = (
        select(EnvironmentVersion.environment_id, func.max(EnvironmentVersion.number).label("number"))
        .group_by(EnvironmentVersion.environment_id)
        .subquery()
    )
    checks = (
        select(Run.version_id, func.max(Run.created_at).label("at"))
        .where(Run.kind == RunKind.CHECK)
        .group_by(Run.version_id)
        .subquery()
    )
    due = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .join(newest, newest.c.environment_id == EnvironmentVersion.environment_id)
        .join(checks, checks.c.version_id == EnvironmentVersion.id)
        .options(joinedload(EnvironmentVersion.environment))
        .where(
            EnvironmentVersion.number == newest.c.number,
            Environment.archived_at.is_(None),
            Environment.deletion_id.is_(None),
            select(Certificate.id).where(Certificate.version_id == EnvironmentVersion.id).exists(),
            checks.c.at < now - (OLD_AFTER if now.hour in NIGHT else OVERDUE_AFTER),
        )
        .order_by(checks.c.at)
        .limit(1)
    )
    is_open = select(Run.id).where(Run.kind == RunKind.CHECK, Run.status.in_([RunStatus.QUEUED, RunStatus.RUNNING]))
    with transaction() as session:
        version = session.scalars(due).first()
        if version is None or session.scalar(is_open.limit(1)) is not None:
            return None
        name = version.environment.name
        run = start_check(session, None, version, name)
        logger.info("checked again", environment=name, version=version.number, run_id=str(run.id))
        return name


def compare_results(
    before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]
) -> tuple[list[str], list[str]]:
    """Return the checks that drifted (did not fail before and fail now) and weakened (passed, and are doubtful now)."""
    earlier = {each["check"]: each["status"] for each in before}
    drifted, weakened = [], []
    for each in after:
        name, was = str(each["check"]), earlier.get(each["check"])
        if each["status"] == CheckStatus.FAILED and was not in (None, CheckStatus.FAILED):
            drifted.append(name)
        if each["status"] in {CheckStatus.WARNED, CheckStatus.SKIPPED} and each.get("applies", True):
            weakened += [name] if was == CheckStatus.PASSED else []
    return drifted, weakened


def announce_drift(session: Session, run: Run, drift: Sequence[str], weaker: Sequence[str] = ()) -> None:
    """Notify people that a nightly check invalidated a certificate, or that it has weakened."""
    if drift:
        title = "is out of force"
        text = (
            f"The nightly checks found drift: {', '.join(drift)} held before and fails now. Training on this version"
            " requires an override until it is certified again."
        )
    else:
        title = "is weaker"
        text = (
            f"The nightly checks found drift: {', '.join(weaker)} passed before and is doubtful now. The certificate"
            " stays in force with a warning."
        )
    _announce(session, run, title, text, {"checks": list(drift or weaker)})


def announce_failed_nights(session: Session, run: Run, reason: str) -> None:
    """Notify people when a nightly check run fails for the second time in a row.

    The older certificate still counts, but nothing confirms it. One failure may be the machine's fault, and every
    failed run is announced as such anyway.
    """
    if run.created_by is not None:
        return
    of_version = Run.kind == RunKind.CHECK, Run.version_id == run.version_id, Run.id != run.id
    completed = select(func.max(Run.created_at)).where(*of_version, Run.status == RunStatus.COMPLETED)
    failures = select(func.count()).where(
        *of_version,
        Run.status == RunStatus.FAILED,
        Run.created_by.is_(None),
        Run.created_at > func.coalesce(completed.scalar_subquery(), datetime.min.replace(tzinfo=UTC)),
    )
    if session.scalar(failures) == 1:
        text = (
            f"The nightly checks failed twice in a row. Last reason: {reason} The older certificate still counts, but"
            " it is not confirmed. Check the version by hand."
        )
        _announce(session, run, "could not be confirmed for two nights", text, {"reason": reason})


def _announce(session: Session, run: Run, title: str, text: str, evidence: Mapping[str, object]) -> None:
    version = session.scalars(
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.environment))
        .where(EnvironmentVersion.id == run.version_id)
    ).one()
    name = version.environment.name
    announce(
        session,
        kind=NoticeKind.CERTIFICATE_EXPIRED,
        title=f"The certificate of {name} v{version.number} {title}",
        text=text,
        path=f"/environments/{name}/versions/{version.number}#certificate",
        run_id=run.id,
        evidence={"environment": name, "version": version.number, **evidence},
    )
