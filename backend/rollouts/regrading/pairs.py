"""A rollout that was scored or played again, step by step beside its original, with what differs marked."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.domain.rollouts.divergence import Difference, Recorded, differences, prompts_of
from backend.domain.rollouts.regrading import copy_id
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.listing import columns_of
from backend.rollouts.regrading.queries import KINDS
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run

MAX_VALUE = 2000
"""Characters of one shown value."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A field of an observation or a reward column."""

    name: str
    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One step on one side."""

    reply: str
    action: str
    """As it was understood; empty where it was not."""
    note: str
    fields: list[Shown]
    rewards: list[Shown]
    done: bool


@dataclass(frozen=True, slots=True)
class StepPair:
    """One step on both sides; None where a side had none."""

    number: int
    """0 is the reset."""
    before: Side | None
    after: Side | None
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """One column of a rollout on both sides."""

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Again:
    """A rollout in a run that scored or played it again."""

    run: Run
    rollout: Rollout
    columns: dict[str, float]


def original_of(session: Session, rollout: Rollout) -> Rollout | None:
    """What was scored or played again; None where it was deleted, or nothing was."""
    if rollout.source_id is None:
        return None
    wanted = [
        undefer(Rollout.opening),
        undefer(Rollout.steps),
        undefer(Rollout.messages),
        joinedload(Rollout.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
    ]
    return session.get(Rollout, rollout.source_id, options=wanted)


def again(session: Session, rollout: Rollout) -> list[Again]:
    """The same rollout in every run that took it over, oldest first, found by the ids that follow from its place."""
    options = joinedload(Run.version).joinedload(EnvironmentVersion.environment)
    taken_over = select(Run).options(options).where(Run.source_run_id == rollout.run_id, Run.kind.in_(KINDS))
    place = rollout.training_step, rollout.group.ordinal, rollout.member
    runs = {copy_id(run.id, *place): run for run in session.scalars(taken_over)}
    found = session.scalars(
        select(Rollout).options(joinedload(Rollout.group).joinedload(Group.task)).where(Rollout.id.in_(runs))
    )
    pairs = [(runs[copy.id], copy) for copy in found if copy.source_id == rollout.id]
    pairs.sort(key=lambda pair: pair[0].id)
    return [Again(run, copy, columns_of(run, copy)) for run, copy in pairs]


def column_pairs(before: Rollout | None, after: Rollout, run: Run) -> list[ColumnPair]:
    """The reward first, then every column that one of both has."""
    old = columns_of(before.run, before) if before else {}
    new = columns_of(run, after)
    names = dict.fromkeys([*new, *old])
    rewards = ColumnPair("reward", before.reward if before else None, after.reward)
    return [rewards, *(ColumnPair(name, old.get(name), new.get(name)) for name in names)]


def step_pairs(before: Rollout, after: Rollout, noise: float = 0.0) -> list[StepPair]:
    """The reset, then every step of either side."""
    marked = {each.step: each for each in differences(recorded(before), recorded(after), noise)}
    return list(_pairs(before, after, marked))


def recorded(rollout: Rollout) -> Recorded:
    return Recorded(rollout.opening, rollout.steps, prompts_of(rollout.messages))


def _pairs(before: Rollout, after: Rollout, marked: Mapping[int, Difference]) -> Iterator[StepPair]:
    first = marked.get(0)
    yield StepPair(0, _opening(before.opening, first), _opening(after.opening, first), first)
    for number, (one, other) in enumerate(zip_longest(before.steps, after.steps), start=1):
        difference = marked.get(number)
        yield StepPair(number, _side(one, difference), _side(other, difference), difference)


def _opening(observation: Mapping[str, Any], difference: Difference | None) -> Side:
    return Side("", "", "", _shown(observation, difference), [], done=False)


def _side(step: Mapping[str, Any] | None, difference: Difference | None) -> Side | None:
    if step is None:
        return None
    action = step.get("action")
    return Side(
        reply=_cut(str(step.get("reply") or "")),
        action=_text(action) if action is not None else "",
        note=_cut(str(step.get("note") or "")),
        fields=_shown(step.get("observation") or {}, difference),
        rewards=_shown(step.get("rewards") or {}, difference),
        done=bool(step.get("done")),
    )


def _shown(values: Mapping[str, Any], difference: Difference | None) -> list[Shown]:
    other: Sequence[str] = difference.fields if difference else ()
    return [Shown(name, _text(value), name in other) for name, value in values.items()]


def _text(value: Any) -> str:
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} … and {len(text) - MAX_VALUE:,} more characters"
