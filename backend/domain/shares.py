"""What can be shared with people outside of the team."""

from enum import StrEnum


class ShareKind(StrEnum):
    RUN = "run"
    COMPARISON = "comparison"
    ENVIRONMENT = "environment"
    LEADERBOARD = "leaderboard"
    SAFEGUARDS = "safeguards"
    """The safeguards report of a run."""
