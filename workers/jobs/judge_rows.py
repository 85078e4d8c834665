"""What judges read and write: the judge itself, the rollouts that it shall see, and its judgements."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload, undefer

from backend.db.models import EnvironmentVersion, Group, Judge, Judgement, Rollout, Run, Task
from backend.db.session import transaction
from backend.domain.ids import new_id
from backend.domain.judge_prompts import Facts
from backend.domain.judges import JudgeConfiguration
from backend.domain.vocabulary import JudgementStatus, PolicyKind, RolloutStatus
from backend.errors import Conflict
from backend.evaluations.policies.secrets import secret_of
from backend.evaluations.rollouts.queries import matching
from backend.events import announce, judges_topic
from workers.jobs.rollout_rows import json_text
from workers.judging.judge import Judged

CHUNK = 64
"""Rollouts read at a time."""
MAX_REFERENCE = 20_000
REFERENCE = "reference"
"""The field of an observation, or of its metadata, in which an environment tells judges the right answer."""


class JudgeIsGone(Conflict):
    """The judge or its policy was deleted."""


@dataclass(frozen=True, slots=True)
class Appointed:
    """A judge with all that it needs to be asked."""

    judge_id: uuid.UUID
    name: str
    configuration: JudgeConfiguration
    kind: PolicyKind
    policy: Mapping[str, Any]
    secret: str | None = field(repr=False)

    @property
    def concurrency(self) -> int:
        """As the judge says, and never more than the endpoint bears."""
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


def appoint(judge_id: uuid.UUID) -> Appointed:
    with transaction() as session:
        judge = session.get(Judge, judge_id, options=[joinedload(Judge.policy)])
        if judge is None or judge.deleted_at is not None or judge.policy.deleted_at is not None:
            raise JudgeIsGone
        configuration = JudgeConfiguration.model_validate(judge.configuration)
        policy = judge.policy
        return Appointed(judge.id, judge.name, configuration, policy.kind, policy.configuration, secret_of(policy))


def to_judge(session: Session, run: Run, judge_id: uuid.UUID, where: str) -> tuple[int, list[uuid.UUID]]:
    """How many rollouts are wanted, and which of them have no completed judgement yet, in their order."""
    wanted = [Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED]
    if where.strip():
        wanted.append(Rollout.id.in_(matching(session, run, where)))
    is_judged = (
        select(Judgement.id)
        .where(
            Judgement.judge_id == judge_id,
            Judgement.rollout_id == Rollout.id,
            Judgement.status == JudgementStatus.COMPLETED,
        )
        .exists()
    )
    total = session.scalar(select(func.count(Rollout.id)).where(*wanted)) or 0
    missing = session.scalars(select(Rollout.id).where(*wanted, ~is_judged).order_by(Rollout.seq)).all()
    return total, list(missing)


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


def store(run_id: uuid.UUID, judge_id: uuid.UUID, batch: Iterable[tuple[uuid.UUID, Judged]]) -> None:
    """One judgement a rollout; a failed one gives way to a new one, a completed one stays."""
    rows = [_row(run_id, judge_id, rollout_id, judged) for rollout_id, judged in batch]
    new = insert(Judgement)
    changed = {name: new.excluded[name] for name in rows[0] if name not in {"id", "judge_id", "run_id", "rollout_id"}}
    statement = new.on_conflict_do_update(
        index_elements=["judge_id", "rollout_id"],
        set_=changed,
        where=Judgement.status == JudgementStatus.FAILED,
    )
    with transaction() as session:
        known = set(session.scalars(select(Rollout.id).where(Rollout.id.in_([row["rollout_id"] for row in rows]))))
        if kept := [row for row in rows if row["rollout_id"] in known]:
            session.execute(statement, kept)
            announce(session, judges_topic(run_id))


def _row(run_id: uuid.UUID, judge_id: uuid.UUID, rollout_id: uuid.UUID, judged: Judged) -> dict[str, Any]:
    status = JudgementStatus.FAILED if judged.score is None else JudgementStatus.COMPLETED
    return {
        "id": new_id(),
        "judge_id": judge_id,
        "run_id": run_id,
        "rollout_id": rollout_id,
        "status": status,
        "score": judged.score,
        "spread": judged.spread,
        "verdicts": orjson.loads(json_text(judged.verdicts)),
        "error_message": judged.error or None,
        "tokens_in": judged.tokens_in,
        "tokens_out": judged.tokens_out,
        "cost": judged.cost,
    }


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
