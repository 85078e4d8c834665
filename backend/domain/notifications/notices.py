"""Notices: kinds, destinations, and when a delivery is retried."""

import uuid
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum


class NoticeKind(StrEnum):
    """The subject of a notice. A destination selects some kinds or all."""

    ALARM = "alarm"
    INTERVENTION = "intervention"
    RUN_FAILED = "run_failed"
    RUN_FINISHED = "run_finished"
    """An evaluation or training run of the recipient was completed. Destinations that select it get all of them."""
    REVIEW_WAITING = "review_waiting"
    """Flagged items wait for review; once per day."""
    REGRESSION = "regression"
    """A policy earns significantly less than in its last evaluation on the same tasks."""
    CERTIFICATE_EXPIRED = "certificate_expired"
    ONSET = "onset"
    JUDGING = "judging"
    RESCORING = "rescoring"
    ASSIGNED = "assigned"
    """Items to review were assigned to the recipient."""
    MENTIONED = "mentioned"
    """A comment names the recipient."""
    DIGEST = "digest"
    """The unread notices of one member, for a mail. Never shown."""
    TEST = "test"
    """Sent by a person to test a destination. Never shown to others."""


class DestinationKind(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"


class EmailFrequency(StrEnum):
    """When a member gets notices by email."""

    NEVER = "never"
    IMMEDIATELY = "immediately"
    DAILY = "daily"
    """The unread notices of a day, in one message."""
    WEEKLY = "weekly"


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
    NoticeKind.RUN_FINISHED: "an evaluation or training run was completed",
    NoticeKind.REVIEW_WAITING: "flagged rollouts wait for review, once per day",
    NoticeKind.REGRESSION: "a policy earned significantly less than in its last evaluation on the same tasks",
    NoticeKind.CERTIFICATE_EXPIRED: "nightly checks revoked or weakened a certificate, or broke off twice",
    NoticeKind.ONSET: "the onset of a confirmed hack was found",
    NoticeKind.JUDGING: "a question or a monitor flagged rollouts, or a judge can be injected",
    NoticeKind.RESCORING: "regrading changed the conclusions from a run's history",
}
"""Kinds that a destination can select."""
PERSONAL_KINDS = KIND_DESCRIPTIONS | {
    NoticeKind.RUN_FINISHED: "an evaluation or training run that you started was completed",
    NoticeKind.ASSIGNED: "another member assigned you items to review",
    NoticeKind.MENTIONED: "a comment names you with @",
}
"""Kinds that a member can hide or get by email."""
HIDDEN_KINDS = (NoticeKind.TEST, NoticeKind.DIGEST)
DIGEST_PAUSES = {EmailFrequency.DAILY: timedelta(days=1), EmailFrequency.WEEKLY: timedelta(days=7)}

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
