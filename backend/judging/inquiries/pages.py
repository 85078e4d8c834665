"""What the pages of judges and questions have in common."""

from collections.abc import Sequence

from backend.db.models import Inquiry, Policy


def name_of_copy(row: Inquiry) -> str:
    return f"{row.name[:36]}_2" if row.deleted_at is None else ""


def policy_choices(policies: Sequence[Policy]) -> list[tuple[str, str]]:
    """Each with what it acts through."""
    return [(str(policy.id), f"{policy.name} ({_acts_through(policy)})") for policy in policies]


def inquiry_choices(rows: Sequence[Inquiry]) -> list[tuple[str, str]]:
    """Each with its policy."""
    return [(str(row.id), f"{row.name} ({row.policy.name})") for row in rows]


def _acts_through(policy: Policy) -> str:
    return str(policy.configuration.get("model") or policy.configuration.get("script") or policy.kind)
