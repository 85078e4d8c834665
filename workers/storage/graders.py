"""What those who judge and those who answer questions read and write alike: who is asked, about which rollouts."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import orjson
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, judges_topic
from backend.core.session import transaction
from backend.domain.graders.judge_prompts import Facts
from backend.domain.ids import new_id
from backend.domain.policies.prices import sum_of_costs
from backend.domain.vocabulary import JudgementStatus, PolicyKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.graders.tables import Inquiry, Judgement, QuestionAnswer
from backend.policies.service import secret_of
from backend.rollouts.tables import Group, Rollout, Task

CHUNK = 64
"""Rollouts read at a time."""
LARGEST_COUNT = 2**31 - 1
"""What a count of tokens in the database holds."""
MAX_REFERENCE = 20_000
REFERENCE = "reference"
"""The field of an observation, or of its metadata, in which an environment tells judges the right answer."""


class Configuration(Protocol):
    """How it is asked."""

    @property
    def concurrency(self) -> int: ...

    @classmethod
    def model_validate(cls, obj: Any) -> Any: ...


C = TypeVar("C", bound=Configuration)


class Spender(Protocol):
    """What was spent, of one request or of all."""

    tokens_in: int
    tokens_out: int
    cost: float | None


class Said(Spender, Protocol):
    """What became of one request."""

    error: str


@dataclass(frozen=True, slots=True)
class Asked(Generic[C]):
    """A judge or a question with all that is needed to ask it."""

    id: uuid.UUID
    name: str
    configuration: C
    kind: PolicyKind
    policy: Mapping[str, Any]
    secret: str | None = field(repr=False)

    @property
    def concurrency(self) -> int:
        """As it says, and never more than the endpoint bears."""
        most = (self.policy.get("limits") or {}).get("concurrency")
        return min(self.configuration.concurrency, int(most)) if most else self.configuration.concurrency


@dataclass(frozen=True, slots=True)
class Case:
    """A rollout before a judge."""

    rollout_id: uuid.UUID
    facts: Facts

    @property
    def seed(self) -> int:
        """The same for the same rollout."""
        return self.rollout_id.int & 0x3FFFFFFF


def take(rows: type[Inquiry], id: uuid.UUID, configuration: type[C], gone: type[Conflict]) -> Asked[C]:
    """Raises `gone` where it or its policy was deleted."""
    with transaction() as session:
        found = session.get(rows, id, options=[joinedload(rows.policy)])
        if found is None or found.deleted_at is not None or found.policy.deleted_at is not None:
            raise gone
        policy = found.policy
        put: C = configuration.model_validate(found.configuration)
        return Asked(found.id, found.name, put, policy.kind, policy.configuration, secret_of(policy))


def facts_of(ids: Sequence[uuid.UUID]) -> list[Case]:
    """What a judge may know of these rollouts, in the order given."""
    statement = (
        select(Rollout)
        .options(
            undefer(Rollout.messages),
            undefer(Rollout.opening),
            undefer(Rollout.steps),
            joinedload(Rollout.run),
            joinedload(Rollout.group)
            .joinedload(Group.task)
            .joinedload(Task.version)
            .joinedload(EnvironmentVersion.environment),
        )
        .where(Rollout.id.in_(ids))
    )
    with transaction() as session:
        found = {rollout.id: Case(rollout.id, _facts(rollout)) for rollout in session.scalars(statement)}
    return [found[id] for id in ids if id in found]


async def read_cases(ids: Sequence[uuid.UUID]) -> AsyncIterator[Case]:
    """The same, one after the other, read in chunks."""
    for start in range(0, len(ids), CHUNK):
        for case in await asyncio.to_thread(facts_of, ids[start : start + CHUNK]):
            yield case


def row_of(run_id: uuid.UUID, rollout_id: uuid.UUID, said: Said, *, has_answer: bool) -> dict[str, Any]:
    """What a judgement and an answer have in common."""
    return {
        "id": new_id(),
        "run_id": run_id,
        "rollout_id": rollout_id,
        "status": JudgementStatus.COMPLETED if has_answer else JudgementStatus.FAILED,
        "error_message": said.error or None,
        "tokens_in": said.tokens_in,
        "tokens_out": said.tokens_out,
        "cost": said.cost,
    }


def store_said(
    session: Session, table: type[Judgement] | type[QuestionAnswer], rows: Sequence[Mapping[str, Any]]
) -> set[uuid.UUID]:
    """One row a rollout; a failed one gives way to a new one, a completed one stays. The rollouts that are there."""
    by = "judge_id" if table is Judgement else "question_id"
    new = insert(table)
    statement = new.on_conflict_do_update(
        index_elements=[by, "rollout_id"],
        set_={name: new.excluded[name] for name in rows[0] if name not in {"id", by, "run_id", "rollout_id"}},
        where=table.status == JudgementStatus.FAILED,
    )
    there = set(session.scalars(select(Rollout.id).where(Rollout.id.in_([row["rollout_id"] for row in rows]))))
    if kept := [row for row in rows if row["rollout_id"] in there]:
        session.execute(statement, kept)
        announce(session, judges_topic(kept[0]["run_id"]))
    return there


def add_spent(account: Spender, spent: Sequence[Spender]) -> None:
    account.tokens_in = min(account.tokens_in + sum(each.tokens_in for each in spent), LARGEST_COUNT)
    account.tokens_out = min(account.tokens_out + sum(each.tokens_out for each in spent), LARGEST_COUNT)
    account.cost = sum_of_costs([account.cost, *(each.cost for each in spent)])


def _facts(rollout: Rollout) -> Facts:
    run, task = rollout.run, rollout.group.task
    return Facts(
        messages=rollout.messages,
        split=str(task.split),
        index=task.index,
        level=task.level,
        arguments=task.arguments,
        environment=task.version.environment.name,
        columns=dict(zip(run.columns, rollout.columns or (), strict=False)),
        reward=rollout.reward,
        reference=_reference(rollout),
        stop_reason=str(rollout.stop_reason or ""),
    )


def _reference(rollout: Rollout) -> str:
    """From the last observation that gives one; the opening counts too."""
    observations = [rollout.opening, *(step.get("observation") or {} for step in rollout.steps)]
    for observation in reversed(observations):
        for place in (observation, observation.get("metadata")):
            if isinstance(place, Mapping) and place.get(REFERENCE):
                found = place[REFERENCE]
                return (found if isinstance(found, str) else orjson.dumps(found).decode())[:MAX_REFERENCE]
    return ""
