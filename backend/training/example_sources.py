"""The conversations that an SFT warm-up learns from: stored rollouts, scripted episodes, uploaded files."""

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, or_, select
from sqlalchemy.orm import Session, joinedload

from backend.core import artifacts
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import render_system
from backend.domain.rollouts.filters import FilterError, parse
from backend.domain.training.example_lines import read_line
from backend.domain.training.examples import Conversation, is_understood
from backend.domain.training.mix import union_columns
from backend.domain.training.warm_up import MAX_RUNS, SftChoice
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Split, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.review.tables import VerdictRecord
from backend.rollouts.filters import condition_of
from backend.rollouts.scope import FilterScope, scope_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.training.tables import ExampleFile

MOST_LOOKED_AT = 200_000
"""Rollouts that pass the filter."""
_AT_ONCE = 500
_PLAYED = (RunKind.EVALUATION, RunKind.TRAINING, RunKind.PLAY)
"""Runs that are looked through where none is named. What was re-scored or replayed holds no new conversations."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose warm-up wants to learn."""

    version_ids: tuple[uuid.UUID, ...]
    """Of the environments that are trained on."""
    seed: int = 0
    run_id: uuid.UUID | None = None
    """The training run itself, of which nothing comes in."""
    before: datetime | None = None
    """What was stored later does not come in, so that a resumed run learns from the same."""


@dataclass
class Chosen:
    """Stored rollouts that pass, and what was left out."""

    ids: list[uuid.UUID] = field(default_factory=list)
    """In the order in which they are taken: drawn by the seed."""
    passing: int = 0
    heldout: int = 0
    judged: int = 0
    """Left out, because a person judged them a hack or a broken reward."""
    runs: list[Run] = field(default_factory=list)
    """Those that were looked through."""
    skipped: list[str] = field(default_factory=list)
    """Names of runs that the filter does not fit: they have no such column."""
    foreign: int = 0
    """How many were played on another version of the environment."""


def chosen_rollouts(session: Session, choice: SftChoice, asked: Asked) -> Chosen:
    """Raises InvalidInput with the field that is wrong."""
    of_versions = select(EnvironmentVersion.environment_id).where(EnvironmentVersion.id.in_(asked.version_ids))
    environment_ids = session.scalars(of_versions.distinct()).all()
    chosen = Chosen()
    conditions = _conditions(session, choice, _runs(session, choice, asked, environment_ids), chosen)
    if not conditions:
        return chosen
    statement = _passing(conditions, asked, environment_ids)
    rows = session.execute(statement.limit(MOST_LOOKED_AT)).all()
    usable = [row for row in rows if _is_usable(row, chosen)]
    chosen.passing = len(usable)
    drawn = random.Random(f"lessons/{asked.seed}").sample(usable, min(choice.most, len(usable)))
    chosen.ids = [row.id for row in drawn]
    chosen.foreign = sum(row.version_id not in asked.version_ids for row in drawn)
    return chosen


def _is_usable(row: Row[Any], chosen: Chosen) -> bool:
    if row.split is Split.HELDOUT:
        chosen.heldout += 1
        return False
    if row.verdict in {Verdict.HACK, Verdict.BROKEN_REWARD}:
        chosen.judged += 1
        return False
    return True


def _runs(session: Session, choice: SftChoice, asked: Asked, environment_ids: Sequence[uuid.UUID]) -> Sequence[Run]:
    of_environment = (
        select(Run)
        .join(Run.version)
        .options(joinedload(Run.version))
        .where(EnvironmentVersion.environment_id.in_(environment_ids), Run.id != (asked.run_id or uuid.UUID(int=0)))
    )
    if not choice.runs:
        found = of_environment.where(Run.kind.in_(_PLAYED), Run.next_seq > 1)
        if asked.before is not None:
            found = found.where(Run.created_at <= asked.before)
        return session.scalars(found.order_by(Run.id.desc()).limit(MAX_RUNS)).all()
    named = session.scalars(of_environment.where(Run.id.in_(choice.runs)).order_by(Run.id.desc())).all()
    if missing := set(choice.runs) - {run.id for run in named}:
        told = ", ".join(map(str, sorted(missing, key=str)))
        raise InvalidInput(fields={"sft.runs": f"No run of this environment: {told}."})
    return named


def _conditions(session: Session, choice: SftChoice, runs: Sequence[Run], chosen: Chosen) -> list[ColumnElement[bool]]:
    """One for each run: a filter's fields are those of the run. A run that was named must have them."""
    conditions: list[ColumnElement[bool]] = []
    wrong: FilterError | None = None
    for run in runs:
        try:
            conditions.append(_of_run(session, run, choice.where))
            chosen.runs.append(run)
        except FilterError as error:
            wrong = error
            chosen.skipped.append(run.name)
    if wrong is not None and (choice.runs or not conditions):
        raise InvalidInput(fields={"sft.where": f"{wrong.message} (at character {wrong.start + 1})"}) from wrong
    return conditions


def _of_run(session: Session, run: Run, where: str) -> ColumnElement[bool]:
    if not where.strip():
        return Rollout.run_id == run.id
    scope = scope_of(session, run, for_learning=True)
    tree = parse(where, scope.fields)
    return and_(Rollout.run_id == run.id, condition_of(tree, scope)) if tree else Rollout.run_id == run.id


def _passing(
    conditions: Sequence[ColumnElement[bool]], asked: Asked, environment_ids: Sequence[uuid.UUID]
) -> Select[Any]:
    """A run may mix environments: what it played on others does not come in."""
    newest = (
        select(VerdictRecord.verdict)
        .where(VerdictRecord.rollout_id == Rollout.id)
        .where(VerdictRecord.taken_back_at.is_(None), VerdictRecord.verdict != Verdict.UNSURE)
        .order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    found = (
        select(Rollout.id, Task.split, Task.version_id, newest.label("verdict"))
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
        .where(
            Rollout.status == RolloutStatus.COMPLETED,
            Rollout.turns > 0,
            EnvironmentVersion.environment_id.in_(environment_ids),
            or_(*conditions),
        )
        .order_by(Rollout.run_id, Rollout.seq)
    )
    return found if asked.before is None else found.where(Rollout.created_at <= asked.before)


def conversations_of(session: Session, ids: Sequence[uuid.UUID]) -> Iterator[Conversation]:
    """In the order of the ids, some hundred at a time."""
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        statement = (
            select(
                Rollout.id,
                Rollout.reward,
                Rollout.messages,
                Rollout.steps,
                Task.split,
                Task.index,
                Task.level,
                EnvironmentVersion.number,
            )
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
            .where(Rollout.id.in_(part))
        )
        found = {row.id: _conversation(row) for row in session.execute(statement)}
        yield from (found[each] for each in part if each in found)


def _conversation(row: Row[Any]) -> Conversation:
    replies = sum(message["role"] == "assistant" for message in row.messages)
    learned = tuple(is_understood(step) for step in row.steps[:replies])
    return Conversation(
        [{"role": _role(message["role"]), "content": str(message["content"])} for message in row.messages],
        learned + (False,) * (replies - len(learned)),
        reward=row.reward,
        level=row.level,
        task=f"{row.split}/{row.index}",
        version=row.number,
        source=str(row.id),
        reasoning=sum(bool(message.get("reasoning")) for message in row.messages),
    )


def _role(role: str) -> str:
    """What is neither the system's nor the policy's is the environment's: imports also hold tools' results."""
    return role if role in {"system", "assistant"} else "user"


def scripted_rollouts(session: Session, version_id: uuid.UUID, script: str, limit: int) -> list[uuid.UUID]:
    """The newest warm-up episodes that the script played on this version in an earlier training run."""
    statement = (
        select(Rollout.id)
        .join(Run, Run.id == Rollout.run_id)
        .where(
            Run.version_id == version_id,
            Run.configuration["sft"]["script"].astext == script,
            Rollout.phase == Phase.WARM_UP,
            Rollout.status == RolloutStatus.COMPLETED,
        )
        .order_by(Run.id.desc(), Rollout.seq)
        .limit(limit)
    )
    return list(session.scalars(statement))


def demonstrated_rollouts(session: Session, version_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Completed episodes on training tasks of these versions that people marked, oldest first."""
    statement = (
        select(Rollout.id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(
            Task.version_id.in_(version_ids),
            Rollout.is_demonstration,
            Rollout.status == RolloutStatus.COMPLETED,
            Task.split == Split.TRAIN,
        )
        .order_by(Rollout.created_at, Rollout.id)
    )
    return list(session.scalars(statement))


def system_of(manifest: Manifest) -> str | None:
    """The prompt of a policy that writes plain text; None where only a running episode lists the tools."""
    action = manifest.proctor.agent.action
    if action.format == "tool" and not isinstance(action.tools, list):
        return None
    return render_system(manifest.proctor.agent, action.tools if isinstance(action.tools, list) else ())


def conversations_in(file: ExampleFile) -> Iterator[Conversation]:
    """All of a file, as it was checked when it came."""
    with artifacts.open_file(file.artifact) as lines:
        for line in lines:
            yield read_line(line)


def drawn_from(file: ExampleFile, choice: SftChoice, seed: int) -> list[Conversation]:
    """At most as many as are wanted, in the order in which they are taken: drawn by the seed."""
    chance = random.Random(f"lessons/{seed}")
    places = chance.sample(range(file.conversations), min(choice.most, file.conversations))
    wanted = set(places)
    found = {place: each for place, each in enumerate(conversations_in(file)) if place in wanted}
    return [found[place] for place in places if place in found]


FIELD = "sft.script_where"


def check_script_filter(session: Session, where: str, version_ids: Sequence[uuid.UUID]) -> None:
    """Before anything is played: are its names those of the environments? Raises InvalidInput."""
    manifests = session.scalars(select(EnvironmentVersion.manifest).where(EnvironmentVersion.id.in_(version_ids)))
    columns = [column.name for column in union_columns(map(Manifest.model_validate, manifests))]
    try:
        parse(where, _scope(session, columns).fields)
    except FilterError as error:
        raise InvalidInput(fields={FIELD: f"{error.message} (at character {error.start + 1})"}) from error


def passing_episodes(session: Session, run_id: uuid.UUID, where: str) -> set[int]:
    """Numbers of the run's own warm-up episodes that pass the filter."""
    scope = scope_of(session, session.get_one(Run, run_id), for_learning=True)
    tree = parse(where, scope.fields)
    of_warm_up = (
        select(Group.ordinal)
        .join(Rollout, Rollout.group_id == Group.id)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.WARM_UP)
    )
    return set(session.scalars(of_warm_up if tree is None else of_warm_up.where(condition_of(tree, scope))))


def _scope(session: Session, columns: list[str]) -> FilterScope:
    """Of a run that is not there yet."""
    return scope_of(session, Run(id=uuid.UUID(int=0), columns=columns, configuration={}), for_learning=True)
