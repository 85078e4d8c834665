"""Stored policies that can act in an environment: those a person may hand an episode to, or measure the checks with."""

import uuid
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import PolicyKind, Queue
from backend.errors import InvalidInput
from backend.policies.tables import Policy

_BASELINES = frozenset({"random", "constant", "empty", "echo", "repeat"})
SHOWN_CHECKPOINTS = 40


@dataclass(frozen=True, slots=True)
class Mover:
    """A script, an endpoint or a checkpoint."""

    key: str
    """`<policy id>` or `<policy id>:<checkpoint id>`"""
    label: str


def movers(session: Session, manifest: Manifest) -> list[Mover]:
    """Scripts that this environment offers and baselines first, then endpoints, then checkpoints, the best first."""
    found = session.scalars(
        select(Policy)
        .where(Policy.deleted_at.is_(None), Policy.kind.in_([PolicyKind.SCRIPTED, PolicyKind.OPENAI_API]))
        .order_by(Policy.kind.desc(), Policy.name)
    )
    offered = set(manifest.proctor.scripts) | _BASELINES
    plain = [
        Mover(str(row.id), row.name)
        for row in found
        if row.kind is not PolicyKind.SCRIPTED or row.configuration.get("script") in offered
    ]
    checkpoints = session.scalars(
        select(Checkpoint)
        .join(Checkpoint.policy)
        .options(contains_eager(Checkpoint.policy))
        .where(Policy.deleted_at.is_(None), Checkpoint.pruned_at.is_(None))
        .order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc())
        .limit(SHOWN_CHECKPOINTS)
    )
    return plain + [Mover(f"{row.policy_id}:{row.id}", checkpoint_label(row)) for row in checkpoints]


def checkpoint_label(row: Checkpoint) -> str:
    return f"{row.policy.name}, {row.stage} step {row.step}{' (best)' if row.is_best else ''}"


def chosen_mover(session: Session, key: str) -> dict[str, str | None]:
    """What a job needs to let it act: {policy_id, checkpoint_id, name, queue}. Raises InvalidInput.

    `key`: a policy's id or name, or `<policy id>:<checkpoint id>`. A local policy without a checkpoint plays with its
    best one.
    """
    wanted, _, checkpoint_id = key.partition(":")
    policy = _find_policy(session, key if _as_id(wanted) is None else wanted)
    if policy is None or policy.deleted_at is not None or policy.kind is PolicyKind.HUMAN:
        raise InvalidInput(fields={"policy": "Choose a policy that can play."})
    checkpoint = _checkpoint(session, policy, checkpoint_id if _as_id(wanted) else "")
    queue = Queue.GPU if policy.kind is PolicyKind.LOCAL else Queue.CPU
    return {
        "policy_id": str(policy.id),
        "checkpoint_id": str(checkpoint.id) if checkpoint else None,
        "name": checkpoint_label(checkpoint) if checkpoint else policy.name,
        "queue": str(queue),
    }


def _find_policy(session: Session, wanted: str) -> Policy | None:
    identifier = _as_id(wanted)
    condition = Policy.name == wanted if identifier is None else Policy.id == identifier
    return session.scalars(select(Policy).where(condition)).one_or_none()


def _checkpoint(session: Session, policy: Policy, asked: str) -> Checkpoint | None:
    """The one that was asked for; of a local policy without a base model, else its best. None: it needs none."""
    statement = select(Checkpoint).where(Checkpoint.policy_id == policy.id).options(joinedload(Checkpoint.policy))
    if asked:
        identifier = _as_id(asked)
        found = session.scalars(statement.where(Checkpoint.id == identifier)).one_or_none() if identifier else None
        if found is None:
            raise InvalidInput(fields={"policy": "There is no such checkpoint."})
        if found.unusable:
            raise InvalidInput(fields={"policy": found.unusable})
        return found
    if policy.kind is not PolicyKind.LOCAL or policy.configuration.get("base"):
        return None
    there = statement.where(Checkpoint.pruned_at.is_(None))
    best_first = there.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc()).limit(1)
    found = session.scalars(best_first).first()
    if found is None:
        raise InvalidInput(fields={"policy": f"{policy.name} has no weights of its own yet: train it first."})
    return found


def _as_id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
