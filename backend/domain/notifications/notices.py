"""What Proctor tells people by itself: the kinds of news, where it may go, how a delivery stands."""

import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class NoticeKind(StrEnum):
    """What a notice is about. A destination takes some kinds or all."""

    ALARM = "alarm"
    """An alarm paused, stopped or rolled back a training run."""
    INTERVENTION = "intervention"
    """A detector's action was carried out: a run was paused, rolled back, or rollouts were masked."""
    RUN_FAILED = "run_failed"
    CERTIFICATE_EXPIRED = "certificate_expired"
    """The checks of the night put a certificate out of force, weakened it, or broke off twice in a row."""
    ONSET = "onset"
    """The checkpoint was found from which on a confirmed hack is played."""
    JUDGING = "judging"
    """A question or a monitor flagged rollouts, or who judges does what the data demands."""
    RESCORING = "rescoring"
    """Other rewards over a stored history changed what follows from it."""
    TEST = "test"
    """Asked for by a person, to see whether a destination works. Never shown to others."""


class DestinationKind(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"


class DeliveryStatus(StrEnum):
    WAITING = "waiting"
    """To be sent, or sent again."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up; a person can have it sent again."""


class Security(StrEnum):
    """How an SMTP connection is protected."""

    STARTTLS = "starttls"
    TLS = "tls"
    """From the first byte."""
    NONE = "none"
    """In the clear: without a user and a password."""


KIND_WORDS = {
    NoticeKind.ALARM: "an alarm paused, stopped or rolled back a training run",
    NoticeKind.INTERVENTION: "a detector acted on a training run",
    NoticeKind.RUN_FAILED: "a run failed",
    NoticeKind.CERTIFICATE_EXPIRED: "a nightly check put a certificate out of force or weakened it, or broke off twice",
    NoticeKind.ONSET: "the onset of a confirmed hack was found",
    NoticeKind.JUDGING: "a question or a monitor flagged rollouts, or a judge does what the data demands",
    NoticeKind.RESCORING: "other rewards changed what follows from a history",
}
"""What a destination can choose."""

PAUSES_SECONDS = (10, 60, 300, 1800, 7200)
"""Between the attempts of one delivery; after the last one it is given up."""


MOST_EXAMPLES = 3


def examples_of(evidence: Mapping[str, Any]) -> list[uuid.UUID]:
    """The first of the rollouts that it names (`rollouts`, as in the evidence of flags and alarms)."""
    named = evidence.get("rollouts")
    if not isinstance(named, list):
        return []
    return [id for each in named[:MOST_EXAMPLES] if (id := _as_id(each)) is not None]


def _as_id(text: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(text))
    except ValueError:
        return None


def next_pause(attempts: int) -> int | None:
    """Seconds after so many failed attempts; None: it is given up."""
    return PAUSES_SECONDS[attempts - 1] if attempts <= len(PAUSES_SECONDS) else None
