"""Notices: kinds, destinations, and when a delivery is retried."""

import uuid
from collections.abc import Mapping
from enum import StrEnum


class NoticeKind(StrEnum):
    """The subject of a notice. A destination selects some kinds or all."""

    ALARM = "alarm"
    INTERVENTION = "intervention"
    RUN_FAILED = "run_failed"
    CERTIFICATE_EXPIRED = "certificate_expired"
    ONSET = "onset"
    JUDGING = "judging"
    RESCORING = "rescoring"
    ASSIGNED = "assigned"
    """Items to review were assigned to the recipient."""
    MENTIONED = "mentioned"
    """A comment names the recipient."""
    TEST = "test"
    """Sent by a person to test a destination. Never shown to others."""


class DestinationKind(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"


class DeliveryStatus(StrEnum):
    WAITING = "waiting"
    """To be sent or retried."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up. A person can resend it."""


class Security(StrEnum):
    """How an SMTP connection is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    """From the start of the connection."""
    NONE = "none"
    """Unencrypted: without user name and password."""


KIND_DESCRIPTIONS = {
    NoticeKind.ALARM: "an alarm paused, stopped or rolled back a training run",
    NoticeKind.INTERVENTION: "a detector acted on a training run",
    NoticeKind.RUN_FAILED: "a run failed",
    NoticeKind.CERTIFICATE_EXPIRED: "nightly checks revoked or weakened a certificate, or broke off twice",
    NoticeKind.ONSET: "the onset of a confirmed hack was found",
    NoticeKind.JUDGING: "a question or a monitor flagged rollouts, or a judge can be injected",
    NoticeKind.RESCORING: "regrading changed the conclusions from a run's history",
}
"""Kinds that a destination can select. Notices to one person are sent to no destination of the team."""

PAUSES_SECONDS = (10, 60, 300, 1800, 7200)
"""Pauses between the attempts of one delivery. After the last one it is given up."""
MOST_EXAMPLES = 3


def examples_of(evidence: Mapping[str, object]) -> list[uuid.UUID]:
    """Return the first rollouts that the evidence names in `rollouts`."""
    named = evidence.get("rollouts")
    ids = []
    for each in named[:MOST_EXAMPLES] if isinstance(named, list) else ():
        try:
            ids.append(uuid.UUID(str(each)))
        except ValueError:
            continue
    return ids
