"""What an evaluation will take, before it starts: tokens, money and time by what was played before."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.policies.prices import cost_of
from backend.domain.vocabulary import CheckStatus, PolicyKind, RunKind, RunStatus
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run

LOOKED_AT = 10
"""Runs of the past, the newest first."""
READS_TOKENS = (PolicyKind.OPENAI_API, PolicyKind.LOCAL)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected figures of an evaluation; None where nothing like it was played yet."""

    rollouts: int
    basis: str = ""
    """What it is judged by, in words."""
    tokens_in: float | None = None
    tokens_out: float | None = None
    cost: float | None = None
    """US dollars; None without a price or without tokens."""
    has_price: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Assurance:
    """What the certificate of a version says."""

    version: EnvironmentVersion
    status: CheckStatus | None
    """None: nobody ran the checks."""
    wrong: Sequence[str] = ()
    """What was seen by the checks that failed or warned."""


def outlook(session: Session, policy: Policy, version_id: uuid.UUID, rollouts: int) -> Outlook:
    """By runs of the same policy on this version, else by those of other models on it."""
    price = policy.configuration.get("price")
    same = _past(session, version_id, Run.policy_id == policy.id)
    others = [] if same else _past(session, version_id, Policy.kind.in_(READS_TOKENS))
    known = same or others
    played = sum(int(summary["rollouts"]) for summary in known)
    if not played:
        return Outlook(rollouts, has_price=bool(price))
    tokens_in, tokens_out = (
        sum(int(summary.get(name) or 0) for summary in known) / played * rollouts
        for name in ("tokens_in", "tokens_out")
    )
    rates = [summary["rollouts_per_second"] for summary in same if summary.get("rollouts_per_second")]
    whose = f"{len(same)} earlier runs of it" if len(same) > 1 else "an earlier run of it" if same else "other models"
    return Outlook(
        rollouts,
        f"{whose} on this version",
        tokens_in,
        tokens_out,
        _cost(price, tokens_in, tokens_out),
        bool(price),
        rollouts / rates[0] if rates else None,
    )


def assurance(session: Session, version_id: uuid.UUID) -> Assurance | None:
    version = session.get(EnvironmentVersion, version_id, options=[joinedload(EnvironmentVersion.environment)])
    if version is None:
        return None
    newest = select(Certificate).where(Certificate.version_id == version_id)
    newest = newest.order_by(Certificate.created_at.desc(), Certificate.id.desc()).limit(1)
    certificate = session.scalars(newest).one_or_none()
    if certificate is None:
        return Assurance(version, None)
    bad = [result for result in certificate.results if result.get("status") in {CheckStatus.FAILED, CheckStatus.WARNED}]
    return Assurance(
        version, certificate.status, [str(result.get("evidence") or result.get("check")) for result in bad]
    )


def _past(session: Session, version_id: uuid.UUID, condition: Any) -> list[dict[str, Any]]:
    """Summaries of finished evaluations that tell their tokens."""
    statement = (
        select(Run.summary)
        .join(Run.policy)
        .where(Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED, Run.version_id == version_id)
        .where(condition, Run.summary["rollouts"].as_integer() > 0)
        .order_by(Run.created_at.desc())
        .limit(LOOKED_AT)
    )
    return list(session.scalars(statement))


def _cost(price: Any, tokens_in: float, tokens_out: float) -> float | None:
    try:
        return cost_of(price, round(tokens_in), round(tokens_out))
    except ValidationError:  # stored by something older; then it is as good as none
        return None
