"""The values of a decision. Server and client share them."""

CATEGORIES = (
    "delivery",
    "fault",
    "refund",
    "billing",
    "access",
    "how_to",
    "cancellation",
    "safety",
    "privacy",
    "other",
)
PRIORITIES = ("low", "normal", "high", "urgent")
FAMILIES = (
    ("give_status", "resend"),
    ("replace", "repair", "offer_discount"),
    ("refund", "decline"),
    ("correct_bill", "send_invoice"),
    ("reset_access", "lock_account"),
    ("explain",),
    ("cancel",),
    ("escalate",),
    ("privacy_team",),
    ("close",),
)
"""Actions that answer the same wish; which of them is right, the dates and the cause decide."""
ACTIONS = tuple(action for family in FAMILIES for action in family)
