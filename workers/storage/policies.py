"""Stored policies that act for a person, a check or an evaluation."""

import uuid
from collections.abc import Mapping

from sqlalchemy.orm import Session

from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import PolicyKind
from backend.errors import Conflict
from backend.policies.service import secret_of
from backend.policies.tables import Policy as PolicyRow
from workers.policies import make_policy
from workers.policies.base import Policy


class PolicyIsGone(Conflict):
    """The policy was deleted."""


def load_policy(
    session: Session, option: Mapping[str, object], sampling: Sampling | None = None, workers: int = 1
) -> Policy | None:
    """Make the policy of an option `{policy_id, name?}`; None for a local one, which needs a process with torch.

    Raises PolicyIsGone.
    """
    policy_id = option.get("policy_id")
    row = session.get(PolicyRow, uuid.UUID(str(policy_id))) if policy_id else None
    if row is None or row.deleted_at is not None:
        name = option.get("name") or (row.name if row else "")
        raise PolicyIsGone(f"The policy {name} was deleted. Choose another one.")
    if row.kind is PolicyKind.LOCAL:
        return None
    return make_policy(row.kind, row.configuration, secret_of(row), sampling, workers)
