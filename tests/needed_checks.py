"""Parts of a certificate."""

from workers.environments.checks.base import Check
from workers.environments.checks.registry import CHECKS


def needed_for(*ids: str) -> tuple[Check, ...]:
    """These checks and all checks that they need, in order."""
    needed = set(ids)
    for check in reversed(CHECKS):
        if check.id in needed:
            needed.update(check.needs)
    return tuple(check for check in CHECKS if check.id in needed)
