"""The house rules: what a message's category, the dates and the urgency make of it.

The system prompt in `openenv.yaml` states the same rules.
"""

from typing import NamedTuple

try:
    from ..words import ACTIONS, CATEGORIES, FAMILIES, PRIORITIES
except ImportError:  # used from inside the package's folder
    from words import ACTIONS, CATEGORIES, FAMILIES, PRIORITIES

__all__ = ["ACTIONS", "CATEGORIES", "FAMILIES", "PRIORITIES", "Decision", "Ticket", "decide", "family_of"]

NEW_DAYS = 30
"""So long after the purchase it is replaced or the money is given back."""
WARRANTY_DAYS = 730
PATIENCE_DAYS = 10
"""So long a parcel may be on its way."""


class Ticket(NamedTuple):
    """The subject of a message: everything that the rules need."""

    cause: str
    """One of CAUSES."""
    days: int
    """Since the purchase, or since the parcel left."""
    is_pressing: bool
    """It names a deadline within two days."""
    order: str
    """The order that it is about; empty when it names none."""


class Decision(NamedTuple):
    """The right decision for a message."""

    category: str
    action: str
    priority: str
    order: str


CAUSES = {
    "late_parcel": "delivery",
    "broken": "fault",
    "unwanted": "refund",
    "overcharged": "billing",
    "needs_invoice": "billing",
    "locked_out": "access",
    "stranger_inside": "access",
    "question": "how_to",
    "leaving": "cancellation",
    "danger": "safety",
    "data": "privacy",
    "praise": "other",
    "advertising": "other",
}
_ACTION_OF = {
    "overcharged": "correct_bill",
    "needs_invoice": "send_invoice",
    "locked_out": "reset_access",
    "stranger_inside": "lock_account",
    "question": "explain",
    "leaving": "cancel",
    "danger": "escalate",
    "data": "privacy_team",
    "praise": "close",
    "advertising": "close",
}


def decide(ticket: Ticket) -> Decision:
    """The only right decision."""
    return Decision(CAUSES[ticket.cause], _action(ticket), _priority(ticket), ticket.order)


def _action(ticket: Ticket) -> str:
    match ticket.cause:
        case "late_parcel":
            return "give_status" if ticket.days <= PATIENCE_DAYS else "resend"
        case "unwanted":
            return "refund" if ticket.days <= NEW_DAYS else "decline"
        case "broken" if ticket.days <= NEW_DAYS:
            return "replace"
        case "broken":
            return "repair" if ticket.days <= WARRANTY_DAYS else "offer_discount"
        case cause:
            return _ACTION_OF[cause]


def _priority(ticket: Ticket) -> str:
    if ticket.cause in {"danger", "stranger_inside"}:
        return "urgent"
    if ticket.is_pressing or ticket.cause == "overcharged":
        return "high"
    return "low" if ticket.cause in {"question", "praise", "advertising"} else "normal"


def family_of(action: str) -> tuple[str, ...]:
    return next((family for family in FAMILIES if action in family), ())
