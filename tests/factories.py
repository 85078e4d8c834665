"""Rows for tests: plain functions with defaults that flush. They write what the product's own writers would write."""

import itertools
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.ids import new_id, stable_id
from backend.domain.rollouts.rollout import HELDOUT_SEED_BASE
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import (
    ErrorKind,
    Phase,
    PolicyKind,
    Role,
    RolloutStatus,
    RunKind,
    RunStatus,
    Severity,
    Split,
    StopReason,
)
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.review.queue import place
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import MetricPoint, Run
from backend.team.tables import Person

_count = itertools.count(1)

WEIGHTS = {"win": 1.0, "format": 0.2, "invalid_move": -0.1}


@dataclass(frozen=True, slots=True)
class Member:
    """The user of a request, outside of a request."""

    person_id: uuid.UUID
    role: Role
    is_token: bool = False


def make_person(session: Session, role: Role = Role.ADMIN, name: str | None = None) -> Person:
    number = next(_count)
    person = Person(email=f"person{number}@example.org", name=name or f"Person {number}", role=role)
    session.add(person)
    session.flush()
    return person


def make_member(session: Session, role: Role = Role.ADMIN) -> Member:
    return Member(make_person(session, role).id, role)


def make_manifest(name: str, weights: Mapping[str, float] = WEIGHTS, **proctor: Any) -> Manifest:
    block = {
        "agent": {"system": "Play.", "action": {"format": "tag", "tag": "move", "field": "cell", "type": "integer"}},
        "rewards": dict(weights),
        "tasks": {"train": 1000, "heldout": 200, "levels": 4},
        "scripts": ["gold", "teacher"],
        **proctor,
    }
    return Manifest.model_validate({"name": name, "proctor": block})


def make_environment(session: Session, name: str | None = None) -> Environment:
    environment = Environment(name=name or f"environment_{next(_count)}", description="A small game.")
    session.add(environment)
    session.flush()
    return environment


def make_environment_version(
    session: Session,
    environment: Environment | None = None,
    *,
    number: int = 1,
    weights: Mapping[str, float] = WEIGHTS,
    **proctor: Any,
) -> EnvironmentVersion:
    environment = environment or make_environment(session)
    files = {"openenv.yaml": f"name: {environment.name}\n", "server/app.py": f"number = {number}\n"}
    return _make_version(session, environment, number, files, make_manifest(environment.name, weights, **proctor))


def make_package_version(
    session: Session, files: dict[str, str], environment: Environment | None = None, number: int = 1
) -> EnvironmentVersion:
    """A package that runs."""
    environment = environment or make_environment(session)
    return _make_version(session, environment, number, files, read_manifest(files["openenv.yaml"]))


def _make_version(
    session: Session, environment: Environment, number: int, files: dict[str, str], manifest: Manifest
) -> EnvironmentVersion:
    version = EnvironmentVersion(
        environment_id=environment.id,
        environment=environment,
        number=number,
        files=files,
        content_hash=content_hash(files),
        manifest=manifest.model_dump(mode="json"),
    )
    session.add(version)
    session.flush()
    return version


def make_policy(
    session: Session,
    name: str | None = None,
    kind: PolicyKind = PolicyKind.SCRIPTED,
    configuration: Mapping[str, Any] | None = None,
) -> Policy:
    configuration = {"script": "random"} if configuration is None and kind is PolicyKind.SCRIPTED else configuration
    policy = Policy(name=name or f"policy {next(_count)}", kind=kind, configuration=dict(configuration or {}))
    session.add(policy)
    session.flush()
    return policy


def make_checkpoint(session: Session, policy: Policy, run: Run | None = None, **fields: Any) -> Checkpoint:
    """The warm-up checkpoint from which GRPO started, unless its held-out evaluation shows otherwise."""
    values = {"stage": "grpo", "step": next(_count), "artifact": f"checkpoints/{new_id()}", **fields}
    if values["stage"] == "sft":
        values["heldout"] = {"training_step": 0, **values.get("heldout", {})}
    checkpoint = Checkpoint(policy_id=policy.id, run_id=run.id if run else None, **values)
    session.add(checkpoint)
    session.flush()
    return checkpoint


def make_run(
    session: Session, version: EnvironmentVersion | None = None, policy: Policy | None = None, **fields: Any
) -> Run:
    """A finished evaluation unless the fields say otherwise."""
    version = version or make_environment_version(session)
    policy = policy or make_policy(session)
    manifest = Manifest.model_validate(version.manifest)
    started = datetime.now(UTC) - timedelta(minutes=5)
    values: dict[str, Any] = {
        "kind": RunKind.EVALUATION,
        "status": RunStatus.COMPLETED,
        "name": f"run {next(_count)}",
        "configuration": {"split": "heldout", "tasks": 4, "first_task": 0, "group_size": 1},
        "columns": manifest.column_names,
        "weights": [column.weight for column in manifest.columns],
        "started_at": started,
        "ended_at": started + timedelta(minutes=2),
        "attempt": 1,
        **fields,
    }
    run = Run(version=version, policy=policy, **values)
    session.add(run)
    session.flush()
    return run


def make_queued_evaluation(session: Session, version: EnvironmentVersion, policy: Policy, **plan: Any) -> Run:
    """A queued run."""
    configuration = EvaluationPlan(**plan).model_dump(mode="json")
    fresh = {"status": RunStatus.QUEUED, "started_at": None, "ended_at": None, "attempt": 0}
    return make_run(session, version, policy, configuration=configuration, **fresh)


def make_task(session: Session, version_id: uuid.UUID, split: Split, index: int, levels: int = 4) -> Task:
    """Task `index` of a split, the row that is there already or a new one."""
    task = _add_task(session, version_id, split, index, levels)
    session.flush()
    return task


def _add_task(session: Session, version_id: uuid.UUID, split: Split, index: int, levels: int = 4) -> Task:
    seed = index + (HELDOUT_SEED_BASE if split is Split.HELDOUT else 0)
    task_id = stable_id("task", version_id, split, index, seed)
    task = session.get(Task, task_id)
    if task is None:
        task = Task(id=task_id, version_id=version_id, split=split, index=index, level=index % levels, seed=seed)
        session.add(task)
    return task


def make_group(
    session: Session, run: Run, *, index: int = 0, phase: Phase = Phase.EVALUATION, step: int | None = None
) -> Group:
    group = add_group(session, run, index=index, phase=phase, step=step)
    session.flush()
    return group


def add_group(session: Session, run: Run, *, index: int, phase: Phase, step: int | None) -> Group:
    """Without sending it yet."""
    split = Split.TRAIN if phase in {Phase.TRAIN, Phase.WARM_UP} else Split.HELDOUT
    task = _add_task(session, run.version_id, split, index)
    group_id = stable_id("group", run.id, phase, step, index)
    group = Group(id=group_id, run_id=run.id, task_id=task.id, phase=phase, training_step=step, ordinal=index)
    group.task = task
    session.add(group)
    return group


def make_rollout(
    session: Session, run: Run, group: Group, columns: Sequence[float] | None, *, member: int = 0, **fields: Any
) -> Rollout:
    """A rollout with these column values; None for a failed one."""
    rollout = add_rollout(session, run, group, columns, member, fields)
    session.flush()
    return rollout


def add_rollout(
    session: Session, run: Run, group: Group, columns: Sequence[float] | None, member: int, fields: Mapping[str, Any]
) -> Rollout:
    """Without sending it yet."""
    values: dict[str, Any] = _outcome(run, columns) | {
        "steps": [make_step("<move>4</move>", dict(zip(run.columns, columns or (), strict=False)))],
        "messages": [
            {"role": "system", "content": "Play."},
            {"role": "user", "content": "Board?"},
            {"role": "assistant", "content": "<move>4</move>"},
        ],
        "opening": {"board": "........."},
        "excerpt": "<move>4</move>",
        "turns": 1,
        "tokens_in": 40,
        "tokens_out": 8,
        "policy_seconds": 0.2,
        "environment_seconds": 0.01,
        **fields,
    }
    rollout = Rollout(
        id=stable_id("rollout", group.id, member),
        run_id=run.id,
        group_id=group.id,
        member=member,
        seq=run.next_seq,
        phase=group.phase,
        training_step=group.training_step,
        level=group.task.level,
        **values,
    )
    run.next_seq += 1
    session.add(rollout)
    return rollout


def make_rollouts(
    session: Session,
    run: Run,
    rows: Sequence[Sequence[float] | None],
    *,
    group_size: int = 1,
    phase: Phase = Phase.EVALUATION,
    step: int | None = None,
    **fields: Any,
) -> list[Rollout]:
    """One rollout a row, `group_size` of them to a task, tasks 0, 1, 2, … in order; all are sent at once."""
    made = []
    with session.no_autoflush:
        for start in range(0, len(rows), group_size):
            group = add_group(session, run, index=start // group_size, phase=phase, step=step)
            made += [
                add_rollout(session, run, group, row, member, fields)
                for member, row in enumerate(rows[start : start + group_size])
            ]
    session.flush()
    return made


def make_step(reply: str, rewards: Mapping[str, float], **fields: Any) -> dict[str, Any]:
    """`domain.rollouts.Step` as it is stored."""
    return {
        "reply": reply,
        "action": {"cell": 4},
        "observation": {"board": "....X...."},
        "text": "",
        "rewards": dict(rewards),
        "done": True,
        "note": None,
        "policy_seconds": 0.2,
        "environment_seconds": 0.01,
        **fields,
    }


def make_flag(session: Session, run: Run, rollout: Rollout | None = None, **fields: Any) -> Flag:
    values = {
        "detector": "repeated_text",
        "key": str(rollout.id if rollout else next(_count)),
        "severity": Severity.WARNING,
        "score": 0.8,
        "sentence": "The same eight words occur 12 times.",
        **fields,
    }
    flag = Flag(run_id=run.id, rollout_id=rollout.id if rollout else None, **values)
    session.add(flag)
    session.flush()
    place(session, [flag.rollout_id or flag.id])
    return flag


def make_points(session: Session, run: Run, name: str, values: Mapping[int, float | None], attempt: int = 1) -> None:
    session.add_all(
        MetricPoint(run_id=run.id, name=name, step=step, attempt=attempt, value=value) for step, value in values.items()
    )
    session.flush()


def random_rows(count: int, seed: int = 0, *, failing: float = 0.0) -> list[list[float] | None]:
    """Plausible values of the columns `win`, `format`, `invalid_move`."""
    dice = random.Random(seed)
    return [
        None
        if dice.random() < failing
        else [dice.choice([0.0, 0.5, 1.0, 1.0]), round(dice.uniform(0.6, 1.0), 2), float(dice.choice([0, 0, 1, 2]))]
        for _ in range(count)
    ]


def _outcome(run: Run, columns: Sequence[float] | None) -> dict[str, Any]:
    if columns is None:
        return {
            "status": RolloutStatus.FAILED,
            "error_kind": ErrorKind.ENVIRONMENT,
            "error_message": "step: RuntimeError: the board is on fire",
            "attempts": 3,
        }
    return {
        "status": RolloutStatus.COMPLETED,
        "stop_reason": StopReason.DONE,
        "columns": [float(value) for value in columns],
        "reward": sum(weight * value for weight, value in zip(run.weights, columns, strict=True)),
    }
