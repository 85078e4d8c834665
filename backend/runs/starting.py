"""Starting an evaluation: what was asked for is checked against the version and resolved into a configuration."""

import uuid
from importlib.metadata import version as package_version
from platform import python_version

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id, stable_id
from backend.domain.policies.prices import Limits
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus, Split
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.policies.queries import BASELINES
from backend.policies.service import PolicyIsDeleted
from backend.policies.tables import Policy
from backend.runs.notes import Asker, note
from backend.runs.requests import EvaluationRequest
from backend.runs.tables import Run

JOB = "evaluations.run"
MAX_ROLLOUTS = 1_000_000
ENGINE = ("aiohttp", "orjson", "jinja2", "jsonschema")
"""Distributions that decide what an endpoint is sent and how its answers are read."""


def start_evaluation(session: Session, actor: Asker, request: EvaluationRequest) -> Run:
    """Queue an evaluation. The same key from the same person gives the run that it started first."""
    run_id = stable_id("evaluation", actor.person_id, request.key) if request.key else new_id()
    if request.key and (known := session.get(Run, run_id)):
        return known
    version = _version(session, request.version_id)
    policy = _policy(session, request.policy_id)
    manifest = Manifest.model_validate(version.manifest)
    checkpoint = _checkpoint(session, policy, request.checkpoint_id)
    _check_script(policy, manifest)
    plan = _plan(request, policy, manifest)
    run = _run(actor, request, version, policy, checkpoint, plan)
    run.id = run_id
    run.columns = manifest.column_names
    run.weights = [column.weight for column in manifest.columns]
    session.add(run)
    session.flush()
    enqueue_shares(session, run, JOB, Queue.GPU if policy.kind is PolicyKind.LOCAL else Queue.CPU, plan.workers)
    note(session, actor, "evaluation.start", "run", run.id, name=run.name, **plan.model_dump(mode="json"))
    announce(session, RUNS)
    return run


def enqueue_shares(session: Session, run: Run, name: str, queue: Queue, workers: int) -> Job:
    """A job for each worker that is to share the run. What belongs together is known by its batch."""
    batch = str(new_id())
    shares = range(workers)
    jobs = [enqueue(session, name, queue=queue, run_id=run.id, arguments={"batch": batch}) for _ in shares]
    return jobs[-1]


def _version(session: Session, version_id: uuid.UUID) -> EnvironmentVersion:
    statement = (
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.environment))
        .where(EnvironmentVersion.id == version_id)
    )
    version = session.scalars(statement).one_or_none()
    if version is None:
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    return version


def _policy(session: Session, policy_id: uuid.UUID) -> Policy:
    policy = session.get(Policy, policy_id)
    if policy is None:
        raise InvalidInput(fields={"policy_id": "There is no such policy."})
    if policy.deleted_at is not None:
        raise PolicyIsDeleted(f"The policy {policy.name} was deleted; choose another one.")
    if policy.kind is PolicyKind.HUMAN:
        raise InvalidInput(fields={"policy_id": "A person plays in the browser, not in an evaluation."})
    if policy.kind is PolicyKind.EXTERNAL:
        raise InvalidInput(fields={"policy_id": f"{policy.name} played elsewhere; its rollouts were imported."})
    return policy


def _checkpoint(session: Session, policy: Policy, checkpoint_id: uuid.UUID | None) -> Checkpoint | None:
    """What a local policy acts with: the one asked for, else its best, else its newest."""
    if policy.kind is not PolicyKind.LOCAL:
        if checkpoint_id is not None:
            raise InvalidInput(fields={"checkpoint_id": f"{policy.name} has no checkpoints."})
        return None
    statement = select(Checkpoint).where(Checkpoint.policy_id == policy.id)
    if checkpoint_id is not None:
        statement = statement.where(Checkpoint.id == checkpoint_id)
    else:
        statement = statement.where(Checkpoint.pruned_at.is_(None))
    best_first = statement.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc()).limit(1)
    # locked, so that nobody prunes it before the run that uses it is there
    checkpoint = session.scalars(best_first.with_for_update(read=True)).first()
    if checkpoint is None:
        what = "has no such checkpoint" if checkpoint_id else "has no checkpoint with weights yet"
        raise InvalidInput(fields={"checkpoint_id": f"{policy.name} {what}."})
    if checkpoint.unusable:
        raise InvalidInput(fields={"checkpoint_id": checkpoint.unusable})
    return checkpoint


def _check_script(policy: Policy, manifest: Manifest) -> None:
    script = policy.configuration.get("script")
    if policy.kind is not PolicyKind.SCRIPTED or script in BASELINES or script in manifest.proctor.scripts:
        return
    offered = ", ".join(manifest.proctor.scripts) or "none"
    raise InvalidInput(
        fields={"policy_id": f"{manifest.name} offers no script `{script}` for this policy (it offers: {offered})."}
    )


def _plan(request: EvaluationRequest, policy: Policy, manifest: Manifest) -> EvaluationPlan:
    given = tuple(dict.fromkeys(request.task_indexes))
    tasks = len(given) or request.tasks
    available = manifest.proctor.tasks.heldout if request.split is Split.HELDOUT else manifest.proctor.tasks.train
    if (max(given) if given else request.first_task + request.tasks - 1) >= available:
        raise InvalidInput(fields={"tasks": f"{manifest.name} has {available:,} {request.split} tasks, from 0 on."})
    total = tasks * request.group_size
    if total > MAX_ROLLOUTS:
        raise InvalidInput(fields={"group_size": f"{total:,} rollouts; an evaluation has at most {MAX_ROLLOUTS:,}."})
    concurrency = request.concurrency or _concurrency(policy, manifest, request.group_size, total)
    if manifest.proctor.tasks.grouped:
        _check_groups(manifest, request.group_size, concurrency)
    return EvaluationPlan(
        split=request.split,
        tasks=tasks,
        first_task=min(given) if given else request.first_task,
        task_indexes_given=given,
        group_size=request.group_size,
        sampling=Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens_per_turn=request.max_tokens_per_turn or manifest.proctor.episode.max_tokens_per_turn,
        ),
        concurrency=concurrency,
        workers=min(request.workers, tasks),
        retries=request.retries,
        context=request.context or manifest.proctor.agent.context,
        judge_ids=[str(judge_id) for judge_id in request.judge_ids],
    )


def _concurrency(policy: Policy, manifest: Manifest, group_size: int, total: int) -> int:
    """How many episodes at a time are tried when nobody says: what the policy's limits say, else a modest number.

    Never fewer than a group that is played at a time: where the endpoint bears fewer calls, its episodes take turns.
    """
    if policy.kind is not PolicyKind.OPENAI_API:
        chosen = max(64, manifest.proctor.resources.sessions)
    else:
        chosen = Limits.model_validate(policy.configuration.get("limits") or {}).concurrency or 32
    together = group_size if manifest.proctor.tasks.grouped else 1
    return max(min(chosen, total, 1024), together)


def _check_groups(manifest: Manifest, group_size: int, concurrency: int) -> None:
    """A group that is scored together has to fit: its episodes are played at a time, on one server."""
    together = f"{manifest.name} scores the {group_size} rollouts of a group together, so all are played at a time"
    if group_size > concurrency:
        raise InvalidInput(
            fields={"concurrency": f"{together}: allow {group_size} or more, or make the groups smaller."}
        )
    sessions = manifest.proctor.resources.sessions
    if group_size > sessions:
        raise InvalidInput(
            fields={
                "group_size": f"{together} on one server, and a server of it bears {sessions} sessions "
                f"(`resources.sessions`): make the groups smaller."
            }
        )


def _run(
    actor: Asker,
    request: EvaluationRequest,
    version: EnvironmentVersion,
    policy: Policy,
    checkpoint: Checkpoint | None,
    plan: EvaluationPlan,
) -> Run:
    who = f"{policy.name} {checkpoint.stage} {checkpoint.step}" if checkpoint else policy.name
    split = "held-out" if plan.split is Split.HELDOUT else plan.split
    name = f"{who} on {version.environment.name} v{version.number}, {plan.tasks} {split} tasks"
    return Run(
        kind=RunKind.EVALUATION,
        status=RunStatus.QUEUED,
        name=(request.name or name).strip()[:200],
        version_id=version.id,
        policy_id=policy.id,
        checkpoint_id=checkpoint.id if checkpoint else None,
        configuration={
            **plan.model_dump(mode="json"),
            "content_hash": version.content_hash,
            "policy": {"kind": str(policy.kind), **policy.configuration},
            "proctor": package_version("proctor"),
            "engine": {"python": python_version(), **{name: package_version(name) for name in ENGINE}},
        },
        seed=request.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": plan.rollouts},
        created_by=actor.person_id,
    )
