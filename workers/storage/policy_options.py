"""Stored policies that act beside a person or in a check: made from the few words that the asking row keeps of them."""

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.vocabulary import PolicyKind
from backend.errors import Conflict
from backend.policies.service import secret_of
from backend.policies.tables import Policy as PolicyRow
from workers.policies import make_policy
from workers.policies.base import Policy


class PolicyIsGone(Conflict):
    """The policy was deleted."""


def make_mover(session: Session, asked: Mapping[str, Any]) -> Policy | None:
    """The policy; None for a local one, which needs a process with torch. `asked`: {policy_id, name, …}."""
    row = session.get(PolicyRow, uuid.UUID(asked["policy_id"]))
    if row is None or row.deleted_at is not None:
        raise PolicyIsGone(f"The policy {asked['name']} was deleted; choose another one.")
    if row.kind is PolicyKind.LOCAL:
        return None
    return make_policy(row.kind, row.configuration, secret_of(row))
