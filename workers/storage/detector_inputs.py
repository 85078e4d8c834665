"""Stored rollouts as detectors see them, and what is known of their run."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row, Select, cast, func, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session, aliased, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.detectors.queries import active_settings_for
from backend.detectors.scans import COPIES, PHASES
from backend.domain.detectors.context import BaseTask, EnvironmentContext, SecondVerifier, context_of, with_base
from backend.domain.detectors.run_view import SAME_REWARD, HeldoutResult, RolloutRow
from backend.domain.detectors.settings import ActiveSettings, Threshold, override_thresholds
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import declared_ranges
from backend.domain.results.pass_at_k import REWARD
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.success_rules import rule_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.mixes import is_mixed, names_of, versions_of
from backend.runs.tables import Run
from backend.training.steering import thresholds_of_run

BATCH = 2000
"""Rollouts of an evaluation that are scanned together."""


@dataclass(frozen=True, slots=True)
class SecondRun:
    """A run that scored another one's rollouts by another version."""

    id: uuid.UUID
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DetectorInput:
    """A run as far as detectors care."""

    run_id: uuid.UUID
    phases: tuple[Phase, ...]
    """Empty: the run is not scanned."""
    context: EnvironmentContext
    of_environment: Mapping[str, ActiveSettings]
    """Settings of detectors, without the run's own thresholds."""
    settings: Mapping[str, ActiveSettings]
    """With them."""
    second: SecondRun | None
    """The newest one that is complete."""
    environments: Mapping[uuid.UUID, str] = field(default_factory=dict)
    """Names by version, where the run plays several."""


def load_detector_input(run_id: uuid.UUID, thresholds: Sequence[Threshold] = ()) -> DetectorInput:
    """`thresholds`: of one look, over the run's own."""
    with transaction() as session:
        run = session.get_one(Run, run_id, options=[joinedload(Run.version).joinedload(EnvironmentVersion.environment)])
        version = run.version
        context = context_of_run(session, run, version)
        second = None
        if found := _second_run(session, run):
            second = SecondRun(found.id, tuple(found.columns))
            context = replace(context, second=_second(found))
        of_environment = active_settings_for(session, version.environment_id)
        settings = override_thresholds(override_thresholds(of_environment, thresholds_of_run(session, run)), thresholds)
        names = {each.id: name for each, name in _mixed(session, run)}
        return DetectorInput(run_id, PHASES.get(run.kind, ()), context, of_environment, settings, second, names)


def context_of_run(session: Session, run: Run, version: EnvironmentVersion) -> EnvironmentContext:
    """Of a run on several environments only what holds for all of them, and what success is in each."""
    has_steps = run.kind is RunKind.TRAINING
    manifest = Manifest.model_validate(version.manifest)
    if is_mixed(run) or manifest.column_names != list(run.columns):
        manifests = {name: Manifest.model_validate(each.manifest) for each, name in _mixed(session, run)}
        rules = {name: rule_of(run, each) for name, each in manifests.items()}
        ranges = {name: declared_ranges(each) for name, each in (manifests or {"": manifest}).items()}
        weights = dict(zip(run.columns, run.weights, strict=True))
        return EnvironmentContext(tuple(run.columns), weights, rules=rules, ranges=ranges, has_steps=has_steps)
    context = context_of(manifest, version.files, has_steps=has_steps)
    base = _base_run(session, run)
    return with_base(context, _base_tasks(session, base, context)) if base else context


def _mixed(session: Session, run: Run) -> list[tuple[EnvironmentVersion, str]]:
    """The versions of a run on several environments, as its curves name them."""
    versions = versions_of(session, run) if is_mixed(run) else ()
    return list(zip(versions, names_of(versions), strict=True))


def _base_run(session: Session, run: Run) -> Run | None:
    """The evaluation of the policy's earliest checkpoint on the same version, where this one is of a later one.

    A training run has none: what it never solved at its beginning and always solves later, it learned.
    """
    own = session.get(Checkpoint, run.checkpoint_id) if run.checkpoint_id else None
    if run.kind is not RunKind.EVALUATION or own is None:
        return None
    statement = (
        select(Run)
        .join(Checkpoint, Checkpoint.id == Run.checkpoint_id)
        .where(
            Run.kind == RunKind.EVALUATION,
            Run.status == RunStatus.COMPLETED,
            Run.version_id == run.version_id,
            Checkpoint.policy_id == own.policy_id,
            Checkpoint.created_at < own.created_at,
        )
        .order_by(Checkpoint.created_at, Run.created_at.desc())
    )
    return session.scalars(statement.limit(1)).one_or_none()


def _base_tasks(session: Session, base: Run, context: EnvironmentContext) -> dict[str, BaseTask]:
    rule = context.success
    if rule is None:
        return {}
    value = Rollout.reward if rule.column == REWARD else Rollout.columns[context.columns.index(rule.column) + 1]
    statement = (
        select(_TASK, func.count(), func.count().filter(value >= rule.at_least - SAME_REWARD))
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Rollout.run_id == base.id, Rollout.status == RolloutStatus.COMPLETED)
        .group_by(_TASK)
    )
    return {task: BaseTask(plays, passes) for task, plays, passes in session.execute(statement)}


def _second_run(session: Session, run: Run) -> Run | None:
    """The newest run that scored rollouts of this one by another version."""
    loaded = joinedload(Run.version).joinedload(EnvironmentVersion.environment)
    statement = (
        select(Run)
        .options(loaded)
        .where(
            Run.source_run_id == run.id,
            Run.kind.in_(COPIES),
            Run.status == RunStatus.COMPLETED,
            Run.version_id != run.version_id,
        )
    )
    return session.scalars(statement.order_by(Run.created_at.desc()).limit(1)).one_or_none()


def _second(run: Run) -> SecondVerifier:
    version = run.version
    manifest = Manifest.model_validate(version.manifest)
    name = f"{version.environment.name} v{version.number}"
    return SecondVerifier(name, rule_of(run, manifest), declared_ranges(manifest))


def heldout_results_of(run_id: uuid.UUID) -> list[HeldoutResult]:
    """Of a training run after its warm-up, in their order: that of the untrained model belongs to no step."""
    error = func.coalesce(func.stddev_samp(Rollout.reward), 0.0) / func.sqrt(func.count())
    statement = (
        select(Rollout.training_step, func.avg(Rollout.reward), error)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.HELDOUT, Rollout.status == RolloutStatus.COMPLETED)
        .where(Rollout.training_step.is_not(None))
        .group_by(Rollout.training_step)
        .order_by(Rollout.training_step)
    )
    with transaction() as session:
        found = session.execute(statement).all()
    return [HeldoutResult(step, float(reward), float(error)) for step, reward, error in found]


def stored_steps(run: DetectorInput) -> Iterator[tuple[int, list[RolloutRow]]]:
    """The completed rollouts of each training step; those of an evaluation in batches, as step 0."""
    if not run.phases:
        return
    if not run.context.has_steps:
        yield from ((0, batch) for batch in _batches(run))
        return
    for step in _steps(run):
        with transaction() as session:
            statement = _rows(run).where(Rollout.training_step.is_not_distinct_from(step)).order_by(Rollout.seq)
            rows = [_rollout_row(found, run) for found in session.execute(statement)]
        yield step or 0, rows


def count_rollouts(run: DetectorInput) -> int:
    """Number of rollouts that `stored_steps` returns."""
    if not run.phases:
        return 0
    completed = (Rollout.phase.in_(run.phases), Rollout.status == RolloutStatus.COMPLETED)
    with transaction() as session:
        return session.scalar(select(func.count()).where(Rollout.run_id == run.run_id, *completed)) or 0


def _steps(run: DetectorInput) -> Sequence[int | None]:
    statement = select(Rollout.training_step).where(Rollout.run_id == run.run_id, Rollout.phase.in_(run.phases))
    with transaction() as session:
        return session.scalars(statement.distinct().order_by(Rollout.training_step)).all()


def _batches(run: DetectorInput) -> Iterator[list[RolloutRow]]:
    """By a cursor of the server: a run of any size is never held as a whole."""
    with transaction() as session:
        found = session.execute(_rows(run).order_by(Rollout.seq).execution_options(yield_per=BATCH))
        for part in found.partitions():
            yield [_rollout_row(row, run) for row in part]


_TASK = func.concat(Task.split, "/", Task.index).label("task")


def _rows(run: DetectorInput) -> Select[Any]:
    """Load only the policy's part of each step and only the messages to the policy."""
    names = ("reply", "action", "rewards") if any(run.context.ranges.values()) else ("reply", "action")
    written = {name: func.jsonb_path_query_array(Rollout.steps, cast(f"$[*].{name}", JSONPATH)) for name in names}
    told = cast('$[*] ? (@.role == "user" || @.role == "tool").content', JSONPATH)
    statement = (
        select(
            Rollout.id,
            Rollout.group_id,
            _TASK,
            Task.version_id,
            Rollout.reward,
            Rollout.columns,
            Rollout.metrics,
            Rollout.tokens_out,
            Rollout.stop_reason,
            *(column.label(name) for name, column in written.items()),
            func.jsonb_path_query_array(Rollout.messages, told).label("asked"),
        )
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Rollout.run_id == run.run_id, Rollout.phase.in_(run.phases), Rollout.status == RolloutStatus.COMPLETED)
    )
    if run.second is None:
        return statement
    second = aliased(Rollout)
    is_other = (second.run_id == run.second.id) & (second.source_id == Rollout.id)
    said = second.reward.label("second_reward"), second.columns.label("second_columns")
    return statement.outerjoin(second, is_other).add_columns(*said)


def _rollout_row(found: Row[Any], run: DetectorInput) -> RolloutRow:
    row = RolloutRow(
        id=found.id,
        group=str(found.group_id),
        task=found.task,
        reward=found.reward,
        columns=dict(zip(run.context.columns, found.columns, strict=True)),
        replies=tuple(found.reply),
        tokens_out=found.tokens_out,
        stop_reason=found.stop_reason,
        actions=tuple(found.action),
        step_rewards=tuple(found.rewards) if any(run.context.ranges.values()) else (),
        asked=tuple(text for text in found.asked if isinstance(text, str)),
        metrics=found.metrics,
        environment=run.environments.get(found.version_id, ""),
    )
    if run.second is None or found.second_reward is None:
        return row
    columns = dict(zip(run.second.columns, found.second_columns, strict=True))
    return replace(row, second_reward=found.second_reward, second_columns=columns)
