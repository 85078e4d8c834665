"""The conversations that an SFT warm-up learns from: stored rollouts, scripted episodes, demonstrations."""

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session, joinedload

from backend.core import artifacts
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import render_system
from backend.domain.rollouts.filters import FilterError, parse
from backend.domain.training.example_lines import read_line
from backend.domain.training.examples import Conversation, is_understood
from backend.domain.training.preferences import PreferenceChoice
from backend.domain.training.warm_up import MAX_RUNS, SftChoice
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Split, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.review.tables import VerdictRecord
from backend.rollouts.filters import condition_of
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.training.tables import ExampleFile

MAX_ROLLOUTS = 200_000
"""Number of passing rollouts that are considered."""
NEWEST_VERDICT = (
    select(VerdictRecord.verdict)
    .where(VerdictRecord.rollout_id == Rollout.id)
    .where(VerdictRecord.taken_back_at.is_(None), VerdictRecord.verdict != Verdict.UNSURE)
    .order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
    .limit(1)
    .scalar_subquery()
)
"""The latest verdict on a rollout that is not unsure."""
_BATCH = 500
_PLAYED = (RunKind.EVALUATION, RunKind.TRAINING, RunKind.PLAY)
"""Kinds of runs that are searched by default. Runs that regrade or replay rollouts have no new conversations."""


@dataclass(frozen=True, slots=True)
class LearningScope:
    """The training run that the examples are for."""

    version_ids: tuple[uuid.UUID, ...]
    """Versions of the environments that it trains on."""
    seed: int = 0
    run_id: uuid.UUID | None = None
    """The training run, whose own rollouts are never used."""
    before: datetime | None = None
    """Rollouts stored later are never used, so that a resumed run learns from the same ones."""


@dataclass
class RolloutSelection:
    """Stored rollouts that pass, and the number of others by reason."""

    ids: list[uuid.UUID] = field(default_factory=list)
    """In random order, by the seed."""
    passing: int = 0
    heldout: int = 0
    judged: int = 0
    """Rollouts that were reviewed as a hack or a broken reward."""
    runs: list[Run] = field(default_factory=list)
    """Runs that were searched."""
    skipped: list[str] = field(default_factory=list)
    """Names of runs without the columns of the filter."""
    foreign: int = 0
    """Rollouts of another version of the environment."""


def passing_rollouts(
    session: Session,
    block: str,
    choice: SftChoice | PreferenceChoice,
    scope: LearningScope,
    selection: RolloutSelection,
) -> Select[uuid.UUID, Split, uuid.UUID, Verdict | None, float | None, uuid.UUID] | None:
    """Return the completed rollouts of the searched runs that pass the filter, and note the runs in the selection.

    `block`: name of the settings. None: there is no run to search. Raises InvalidInput with the wrong setting.
    """
    of_versions = select(EnvironmentVersion.environment_id).where(EnvironmentVersion.id.in_(scope.version_ids))
    environment_ids = session.scalars(of_versions.distinct()).all()
    conditions: list[ColumnElement[bool]] = []
    wrong: FilterError | None = None
    for run in _searched_runs(session, block, choice.runs, scope, environment_ids):
        try:
            condition: ColumnElement[bool] = Rollout.run_id == run.id
            if choice.where.strip():  # the fields of a filter depend on the run; FilterError if it lacks one
                fields = scope_of(session, run, for_learning=True)
                if tree := parse(choice.where, fields.fields):
                    condition &= condition_of(tree, fields)
            conditions.append(condition)
            selection.runs.append(run)
        except FilterError as error:
            wrong = error
            selection.skipped.append(run.name)
    if wrong is not None and (choice.runs or not conditions):
        raise InvalidInput(fields={f"{block}.where": f"{wrong.message} (at character {wrong.start + 1})"}) from wrong
    if not conditions:
        return None
    passing = (
        select(Rollout.id, Task.split, Task.version_id, NEWEST_VERDICT.label("verdict"), Rollout.reward, Group.task_id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
        .where(
            Rollout.status == RolloutStatus.COMPLETED,
            Rollout.turns > 0,
            EnvironmentVersion.environment_id.in_(environment_ids),  # a run may mix environments
            or_(*conditions),
        )
        .order_by(Rollout.run_id, Rollout.seq)
    )
    if scope.before is not None:
        passing = passing.where(Rollout.created_at <= scope.before)
    return passing.limit(MAX_ROLLOUTS)


def selected_rollouts(session: Session, sft: SftChoice, scope: LearningScope) -> RolloutSelection:
    """Select stored rollouts to learn from. Raises InvalidInput with the wrong setting."""
    selection = RolloutSelection()
    passing = passing_rollouts(session, "sft", sft, scope, selection)
    usable = []
    for row in session.execute(passing) if passing is not None else ():
        if row.split is Split.HELDOUT:
            selection.heldout += 1
        elif row.verdict in {Verdict.HACK, Verdict.BROKEN_REWARD}:
            selection.judged += 1
        else:
            usable.append(row)
    selection.passing = len(usable)
    sample = random.Random(f"lessons/{scope.seed}").sample(usable, min(sft.most, len(usable)))
    selection.ids = [row.id for row in sample]
    selection.foreign = sum(row.version_id not in scope.version_ids for row in sample)
    return selection


def _searched_runs(
    session: Session,
    block: str,
    run_ids: Sequence[uuid.UUID],
    scope: LearningScope,
    environment_ids: Sequence[uuid.UUID],
) -> Sequence[Run]:
    """The selected runs, else the latest ones of the environments. Raises InvalidInput for other runs."""
    statement = (
        select(Run)
        .join(Run.version)
        .options(joinedload(Run.version))
        .where(EnvironmentVersion.environment_id.in_(environment_ids), Run.id != (scope.run_id or uuid.UUID(int=0)))
        .order_by(Run.id.desc())
    )
    if not run_ids:
        statement = statement.where(Run.kind.in_(_PLAYED), Run.next_seq > 1)
        if scope.before is not None:
            statement = statement.where(Run.created_at <= scope.before)
        return session.scalars(statement.limit(MAX_RUNS)).all()
    found = session.scalars(statement.where(Run.id.in_(run_ids))).all()
    if missing := set(run_ids) - {run.id for run in found}:
        names = ", ".join(map(str, sorted(missing, key=str)))
        raise InvalidInput(fields={f"{block}.runs": f"No run of this environment: {names}."})
    return found


def conversations_of(session: Session, ids: Sequence[uuid.UUID]) -> Iterator[Conversation]:
    """The conversations of these rollouts, in the same order, read in batches."""
    for start in range(0, len(ids), _BATCH):
        batch = ids[start : start + _BATCH]
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
                EnvironmentVersion.manifest["proctor"]["agent"]["reasoning"].as_string().label("reasons"),
            )
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
            .where(Rollout.id.in_(batch))
        )
        found = {}
        for row in session.execute(statement):
            replies = sum(message["role"] == "assistant" for message in row.messages)
            learned = tuple(is_understood(step) for step in row.steps[:replies])
            messages = []
            for message in row.messages:
                # Imported conversations also have tool results, which are the environment's turn.
                role = message["role"] if message["role"] in {"system", "assistant"} else "user"
                messages.append({"role": role, "content": str(message["content"])})
                if role == "assistant" and row.reasons == "think":
                    messages[-1]["reasoning"] = str(message.get("reasoning") or "")
            found[row.id] = Conversation(
                messages,
                learned + (False,) * (replies - len(learned)),
                reward=row.reward,
                level=row.level,
                task=f"{row.split}/{row.index}",
                version=row.number,
                source=str(row.id),
                reasoning=0
                if row.reasons == "think"
                else sum(bool(message.get("reasoning")) for message in row.messages),
            )
        yield from (found[each] for each in batch if each in found)


def scripted_rollouts(session: Session, version_id: uuid.UUID, script: str, limit: int) -> list[uuid.UUID]:
    """The latest warm-up episodes of this scripted policy on this version, from earlier training runs."""
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
    """Completed episodes on training tasks of these versions that are marked as demonstrations, oldest first."""
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


def conversations_in(file: ExampleFile) -> Iterator[Conversation]:
    """All conversations of an uploaded file, as they were checked."""
    with artifacts.open_file(file.artifact) as lines:
        for line in lines:
            yield read_line(line)


def sampled_conversations(file: ExampleFile, sft: SftChoice, seed: int) -> list[Conversation]:
    """Up to `sft.most` conversations of an uploaded file, in random order, by the seed."""
    chance = random.Random(f"lessons/{seed}")
    places = chance.sample(range(file.conversations), min(sft.most, file.conversations))
    wanted = set(places)
    found = {place: each for place, each in enumerate(conversations_in(file)) if place in wanted}
    return [found[place] for place in places if place in found]


def environment_system(manifest: Manifest) -> str | None:
    """The system prompt of the environment for a policy that writes plain text; None if tools differ by episode."""
    action = manifest.proctor.agent.action
    if action.format == "tool" and not isinstance(action.tools, list):
        return None
    return render_system(manifest.proctor.agent, action.tools if isinstance(action.tools, list) else ())


def own_episodes(
    session: Session, run_id: uuid.UUID, where: str, *, training_step: int | None = None
) -> list[uuid.UUID]:
    """The run's own episodes to learn from that pass the filter, in the order of their tasks.

    Of a step, else of the warm-up. Failed episodes and those reviewed as a hack or a broken reward never pass.
    """
    scope = scope_of(session, session.get_one(Run, run_id), for_learning=True)
    tree = parse(where, scope.fields) if where.strip() else None
    verdict = func.coalesce(NEWEST_VERDICT, Verdict.HONEST)
    phase = Phase.WARM_UP if training_step is None else Phase.TRAIN
    statement = (
        select(Rollout.id)
        .join(Group, Rollout.group_id == Group.id)
        .where(
            Rollout.run_id == run_id,
            Rollout.phase == phase,
            Rollout.training_step.is_not_distinct_from(training_step),
            Rollout.status == RolloutStatus.COMPLETED,
            verdict.not_in((Verdict.HACK, Verdict.BROKEN_REWARD)),
        )
        .order_by(Group.ordinal, Rollout.member)
    )
    return list(session.scalars(statement if tree is None else statement.where(condition_of(tree, scope))))
