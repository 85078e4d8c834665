"""Groups in parts that fit side by side: one batch then holds the same episodes whenever it is played."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from workers.rollouts.engine import GroupPlan

Tag = uuid.UUID | None
"""Which of a run's environments: None for its own."""


@dataclass(frozen=True, slots=True)
class EnvCapacity:
    """How many episodes of one environment are played at a time."""

    capacity: int
    is_grouped: bool = False
    """A group is never cut, because its members are scored together."""

    def waves_of(self, plans: Sequence[GroupPlan]) -> int:
        """How many waves these need at least."""
        if self.is_grouped:
            fitting = max(1, self.capacity // max((len(plan.whole) for plan in plans), default=1))
            return -(-len(plans) // fitting)
        return -(-_members(plans) // self.capacity)


def by_room(plans: Sequence[GroupPlan]) -> dict[Tag, list[GroupPlan]]:
    """The plans of each environment, in their order."""
    found: dict[Tag, list[GroupPlan]] = {}
    for plan in plans:
        found.setdefault(plan.task.version_id, []).append(plan)
    return found


def waves(plans: Sequence[GroupPlan], rooms: Mapping[Tag, EnvCapacity], concurrency: int) -> list[list[GroupPlan]]:
    """Parts as equal as can be, each with its share of every environment."""
    own = by_room(plans)
    count = max((rooms[tag].waves_of(each) for tag, each in own.items()), default=0)
    while True:
        parts = [_cut(each, count, is_grouped=rooms[tag].is_grouped) for tag, each in own.items()]
        found = [[plan for part in wave for plan in part] for wave in zip_longest(*parts, fillvalue=())]
        largest = max(map(_members, found), default=0)
        if largest <= concurrency or len(found) < count or count >= _members(plans):
            return found
        count += 1


def _cut(plans: Sequence[GroupPlan], parts: int, *, is_grouped: bool) -> list[list[GroupPlan]]:
    """At most so many equal parts."""
    if is_grouped:
        limit = -(-len(plans) // parts)
        return [list(plans[first : first + limit]) for first in range(0, len(plans), limit)]
    limit = -(-_members(plans) // parts)
    cut: list[list[GroupPlan]] = []
    room = 0
    for plan in plans:
        members = plan.members
        while members:
            if room == 0:
                cut.append([])
                room = limit
            taken, members = members[:room], members[room:]
            cut[-1].append(replace(plan, members=taken))
            room -= len(taken)
    return cut


def _members(plans: Sequence[GroupPlan]) -> int:
    return sum(len(plan.members) for plan in plans)
