"""Which rollouts a contrast shows side by side: of one task those that earned most and those that earned least."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.vocabulary import RolloutStatus
from backend.errors import InvalidInput
from backend.rollouts.filters import SAME_REWARD
from backend.rollouts.queries import matching
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run

MOST_SCENES = 200
"""Sets of rollouts that one contrast looks at."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Rollouts of one task by one policy."""

    key: str
    """The group's id."""
    label: str
    high: tuple[uuid.UUID, ...]
    low: tuple[uuid.UUID, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    id: uuid.UUID
    reward: float
    is_suspected: bool


def scenes(session: Session, run: Run, each: int, where: str = "", cluster: str = "") -> list[Scene]:
    """Groups whose members earned differently, the widest apart first, of the rollouts that pass the filter.

    With a cluster (`detector: cluster`): of its groups, those in it against those that earned little and are not in it.
    """
    wanted = [Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED, Rollout.reward.is_not(None)]
    if where.strip():
        wanted.append(Rollout.id.in_(matching(session, run, where)))
    in_cluster = _in_cluster(run, cluster)
    if cluster:
        wanted.append(Rollout.group_id.in_(select(Rollout.group_id).where(Rollout.id.in_(in_cluster))))
    spread = func.max(Rollout.reward) - func.min(Rollout.reward)
    apart = select(Rollout.group_id).where(*wanted).group_by(Rollout.group_id).having(spread > SAME_REWARD)
    groups = session.scalars(apart.order_by(spread.desc(), Rollout.group_id).limit(MOST_SCENES)).all()
    statement = (
        select(Rollout.id, Rollout.group_id, Rollout.reward, Rollout.id.in_(in_cluster), Task.split, Task.index)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(*wanted, Rollout.group_id.in_(groups))
        .order_by(Rollout.seq)
    )
    members: dict[uuid.UUID, list[_Member]] = {}
    labels: dict[uuid.UUID, str] = {}
    for id, group_id, reward, is_suspected, split, index in session.execute(statement):
        members.setdefault(group_id, []).append(_Member(id, reward or 0.0, is_suspected))
        labels[group_id] = f"{split}/{index}"
    found = [_scene(group, labels[group], members[group], each, by_cluster=bool(cluster)) for group in groups]
    return [scene for scene in found if scene is not None]


def _in_cluster(run: Run, cluster: str) -> Select[Any]:
    detector, _, name = cluster.partition(": ")
    if cluster and not name:
        raise InvalidInput(fields={"cluster": "Write it as `detector: cluster`, as the review queue names it."})
    flagged = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.rollout_id.is_not(None))
    return flagged.where(Flag.detector == detector, Flag.cluster == name)


def _scene(group: uuid.UUID, label: str, members: Sequence[_Member], each: int, *, by_cluster: bool) -> Scene | None:
    """Never the same rollout on both sides, and nobody in the middle."""
    ordered = sorted(members, key=lambda member: -member.reward)
    middle = (ordered[0].reward + ordered[-1].reward) / 2
    if by_cluster:
        high = [member for member in ordered if member.is_suspected]
        low = [member for member in ordered if not member.is_suspected]
    else:
        high = [member for member in ordered if member.reward > middle]
        low = [member for member in ordered if member.reward <= middle]
    if not high or not low:
        return None
    chosen = [member.id for member in high[:each]], [member.id for member in low[-each:]]
    return Scene(str(group), label, tuple(chosen[0]), tuple(chosen[1]))
