"""Reading policies, and the choices of a policy that can act in an environment."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import PolicyKind, Queue
from backend.errors import InvalidInput, NotFound
from backend.policies.tables import Policy
from backend.web.paging import Key, Slice, slice_of

BASELINES = frozenset({"random", "constant", "empty", "echo", "repeat"})
"""Scripted policies that every environment can play against; the others need a script in its manifest."""


def policies(
    session: Session,
    *,
    after: str | None = None,
    limit: int = 100,
    project_id: uuid.UUID | None = None,
    with_archived: bool = False,
) -> Slice[Policy]:
    """Policies by name, without deleted ones. Default: of all projects."""
    statement = select(Policy).where(Policy.deleted_at.is_(None))
    if not with_archived:
        statement = statement.where(Policy.archived_at.is_(None))
    if project_id is not None:
        statement = statement.where(Policy.project_id == project_id)
    return slice_of(session, statement, (Key(Policy.name, descending=False),), after=after, limit=limit)


def evaluable_policies(session: Session) -> Sequence[Policy]:
    """Policies that an evaluation can use: a local one needs stored weights or a base model."""
    checkpoints = select(Checkpoint.id).where(Checkpoint.policy_id == Policy.id, Checkpoint.pruned_at.is_(None))
    statement = (
        select(Policy)
        .where(Policy.deleted_at.is_(None), Policy.archived_at.is_(None))
        .where(Policy.kind.not_in((PolicyKind.HUMAN, PolicyKind.EXTERNAL)))
        .where(or_(Policy.kind != PolicyKind.LOCAL, checkpoints.exists()))
        .order_by(Policy.kind, Policy.created_at.desc(), Policy.name)
    )
    return session.scalars(statement).all()


def get_policy(session: Session, text: str) -> Policy:
    """By name or id. Raises NotFound."""
    if policy := find_policy(session, text):
        return policy
    raise NotFound(f"There is no policy {text[:100]}. `proctor policy list` shows all.")


def find_policy(session: Session, text: str) -> Policy | None:
    if found := session.scalar(select(Policy).where(Policy.name == text)):
        return found
    with suppress(ValueError):
        return session.get(Policy, uuid.UUID(text))
    return None


@dataclass(frozen=True, slots=True)
class PolicyOption:
    """A script, an endpoint or a checkpoint that can act in an environment."""

    key: str
    """`<policy id>` or `<policy id>:<checkpoint id>`"""
    label: str


def policy_options(session: Session, manifest: Manifest) -> list[PolicyOption]:
    """Scripts of this environment and baselines first, then endpoints, then checkpoints with the best first."""
    rows = session.scalars(
        select(Policy)
        .where(Policy.deleted_at.is_(None), Policy.archived_at.is_(None))
        .where(Policy.kind.in_([PolicyKind.SCRIPTED, PolicyKind.OPENAI_API]))
        .order_by(Policy.kind.desc(), Policy.name)
    )
    scripts = set(manifest.proctor.scripts) | BASELINES
    options = [
        PolicyOption(str(row.id), row.name)
        for row in rows
        if row.kind is not PolicyKind.SCRIPTED or row.configuration.get("script") in scripts
    ]
    checkpoints = session.scalars(
        select(Checkpoint)
        .join(Checkpoint.policy)
        .options(contains_eager(Checkpoint.policy))
        .where(Policy.deleted_at.is_(None), Policy.archived_at.is_(None), Checkpoint.pruned_at.is_(None))
        .order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc())
        .limit(40)
    )
    return options + [PolicyOption(f"{row.policy_id}:{row.id}", checkpoint_label(row)) for row in checkpoints]


def checkpoint_label(row: Checkpoint) -> str:
    return f"{row.policy.name}, {row.stage} step {row.step}{' (best)' if row.is_best else ''}"


def get_policy_option(session: Session, key: str) -> dict[str, str | None]:
    """Return a policy for a job: {policy_id, checkpoint_id, name, queue}. Raises InvalidInput.

    `key` is a policy's name or id, or `<policy id>:<checkpoint id>`. A local policy without a checkpoint plays with its
    best one, unless it is a base model.
    """
    policy, checkpoint_id = find_policy(session, key), ""
    if policy is None:
        identifier, _, checkpoint_id = key.partition(":")
        policy = find_policy(session, identifier)
    if policy is None or policy.deleted_at is not None or policy.kind is PolicyKind.HUMAN:
        raise InvalidInput(fields={"policy": "Choose a policy that can play."})
    checkpoint = None
    rows = select(Checkpoint).where(Checkpoint.policy_id == policy.id).options(joinedload(Checkpoint.policy))
    if checkpoint_id:
        with suppress(ValueError):
            checkpoint = session.scalar(rows.where(Checkpoint.id == uuid.UUID(checkpoint_id)))
        if checkpoint is None:
            raise InvalidInput(fields={"policy": "There is no such checkpoint."})
        if checkpoint.unusable:
            raise InvalidInput(fields={"policy": checkpoint.unusable})
    elif policy.kind is PolicyKind.LOCAL and not policy.configuration.get("base"):
        stored = rows.where(Checkpoint.pruned_at.is_(None))
        checkpoint = session.scalars(stored.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc()).limit(1)).first()
        if checkpoint is None:
            raise InvalidInput(fields={"policy": f"{policy.name} has no weights yet. Train it first."})
    return {
        "policy_id": str(policy.id),
        "checkpoint_id": str(checkpoint.id) if checkpoint else None,
        "name": checkpoint_label(checkpoint) if checkpoint else policy.name,
        "queue": str(Queue.GPU if policy.kind is PolicyKind.LOCAL else Queue.CPU),
    }
