"""What the certificates say: are stored episodes of a version scored as they were, when they are played again?"""

import uuid
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import CheckStatus
from backend.environments.tables import Certificate

CHECK = "rescore_equal"


def check_statuses(session: Session, version_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, CheckStatus | None]:
    """The outcome of the check in each version's newest certificate; None where nobody looked."""
    statement = (
        select(Certificate.version_id, Certificate.results)
        .where(Certificate.version_id.in_(version_ids))
        .order_by(Certificate.created_at, Certificate.id)
    )
    found: dict[uuid.UUID, CheckStatus | None] = dict.fromkeys(version_ids)
    for version_id, results in session.execute(statement):
        found[version_id] = next((CheckStatus(each["status"]) for each in results if each["check"] == CHECK), None)
    return found


def are_certified(session: Session, version_ids: Collection[uuid.UUID]) -> bool:
    return all(status is CheckStatus.PASSED for status in check_statuses(session, version_ids).values())
