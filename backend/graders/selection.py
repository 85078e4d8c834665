"""The rollouts of a run that a grader grades: by filter, by group for contrasts, and only ungraded ones."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings
from backend.domain.vocabulary import GradeStatus, RolloutStatus
from backend.errors import InvalidInput
from backend.graders.tables import Grade, GraderRun, GraderSample
from backend.rollouts.filters import SAME_REWARD
from backend.rollouts.queries import matching
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run

MAX_GROUPS = 200
"""Groups that one contrast compares."""
NO_REASONING = (
    "No completed rollout here has reasoning text. A monitor reads the policy's reasoning, and this policy or its "
    "endpoint does not return it separately."
)
NO_GROUPS = "No group here has members with different rewards."
_HAS_REASONING = cast(literal('$[*].reasoning ? (@ != "")'), JSONPATH)


@dataclass(frozen=True, slots=True)
class ContrastGroup:
    """Rollouts of one task by one policy, with high and with low rewards."""

    key: str
    """The group's id."""
    label: str
    high: tuple[uuid.UUID, ...]
    low: tuple[uuid.UUID, ...]


def rollouts_to_grade(
    session: Session, run: Run, settings: JudgeSettings | QuestionSettings, where: str
) -> Select[uuid.UUID]:
    """Ids of the completed rollouts that a grader grades. Raises InvalidInput for a bad filter."""
    statement = select(Rollout.id).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
    if where.strip():
        statement = statement.where(Rollout.id.in_(matching(session, run, where)))
    if settings.kind is GraderKind.MONITOR:
        statement = statement.where(func.jsonb_path_exists(Rollout.messages, _HAS_REASONING))
    return statement


def sampled_rollouts(work: GraderRun) -> Select[uuid.UUID]:
    """Ids of the rollouts that a budget chose, in the order in which to grade them."""
    sample = select(Rollout.id).join(GraderSample, GraderSample.rollout_id == Rollout.id)
    own = sample.where(GraderSample.grader_run_id == work.id, Rollout.status == RolloutStatus.COMPLETED)
    return own.order_by(GraderSample.batch, GraderSample.priority)


def without_grade(rollouts: Select[uuid.UUID], grader_id: uuid.UUID) -> Select[uuid.UUID]:
    """Those without a completed grade, in their order."""
    grade = select(Grade.id).where(
        Grade.grader_id == grader_id, Grade.rollout_id == Rollout.id, Grade.status == GradeStatus.COMPLETED
    )
    return rollouts.where(~grade.exists()).order_by(Rollout.seq)


def count_of(session: Session, rollouts: Select[uuid.UUID]) -> int:
    return session.scalar(select(func.count()).select_from(rollouts.order_by(None).subquery())) or 0


def spread_over(ids: Sequence[uuid.UUID], limit: int) -> list[uuid.UUID]:
    """At most `limit` of them, evenly spaced, with the first and the last."""
    if len(ids) <= limit:
        return list(ids)
    return [ids[round(position * (len(ids) - 1) / (limit - 1))] for position in range(limit)]


def nothing_to_grade(settings: JudgeSettings | QuestionSettings, where: str) -> str:
    match settings.kind:
        case GraderKind.CONTRAST:
            return NO_GROUPS
        case GraderKind.MONITOR:
            return NO_REASONING
        case _:
            return (
                "No completed rollout passes this filter." if where.strip() else "This run has no completed rollouts."
            )


def contrast_groups(
    session: Session,
    run: Run,
    each: int,
    where: str = "",
    cluster: str = "",
    among: Select[uuid.UUID] | None = None,
) -> list[ContrastGroup]:
    """Groups with different rewards, the widest difference first; at most `each` rollouts per side.

    `among`: ids of the only rollouts that count. With a cluster (`detector: cluster`): the group's rollouts in the
    cluster against those outside of it.
    """
    detector, _, name = cluster.partition(": ")
    if cluster and not name:
        raise InvalidInput(fields={"cluster": "Write it as `detector: cluster`, as in the review queue."})
    flagged = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.rollout_id.is_not(None))
    in_cluster = flagged.where(Flag.detector == detector, Flag.cluster == name)
    conditions: list[ColumnElement[bool]] = [
        Rollout.run_id == run.id,
        Rollout.status == RolloutStatus.COMPLETED,
        Rollout.reward.is_not(None),
    ]
    if where.strip():
        conditions.append(Rollout.id.in_(matching(session, run, where)))
    if among is not None:
        conditions.append(Rollout.id.in_(among.order_by(None)))
    if cluster:
        conditions.append(Rollout.group_id.in_(select(Rollout.group_id).where(Rollout.id.in_(in_cluster))))
    difference = func.max(Rollout.reward) - func.min(Rollout.reward)
    widest = select(Rollout.group_id).where(*conditions).group_by(Rollout.group_id).having(difference > SAME_REWARD)
    groups = session.scalars(widest.order_by(difference.desc(), Rollout.group_id).limit(MAX_GROUPS)).all()
    statement = (
        select(Rollout.id, Rollout.group_id, Rollout.reward, Rollout.id.in_(in_cluster), Task.split, Task.index)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(*conditions, Rollout.group_id.in_(groups))
        .order_by(Rollout.seq)
    )
    members: dict[uuid.UUID, list[tuple[float, uuid.UUID, bool]]] = {}
    labels: dict[uuid.UUID, str] = {}
    for id, group_id, reward, is_in_cluster, split, index in session.execute(statement):
        members.setdefault(group_id, []).append((reward or 0.0, id, is_in_cluster))
        labels[group_id] = f"{split}/{index}"
    result = []
    for group_id in groups:
        ordered = sorted(members[group_id], key=lambda member: -member[0])
        middle = (ordered[0][0] + ordered[-1][0]) / 2
        is_high = {id: in_cluster if cluster else reward > middle for reward, id, in_cluster in ordered}
        high, low = (tuple(id for id, high in is_high.items() if high is side) for side in (True, False))
        if high and low:
            result.append(ContrastGroup(str(group_id), labels[group_id], high[:each], low[-each:]))
    return result
