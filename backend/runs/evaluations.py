"""Start an evaluation: check the request against the version and resolve it into a configuration."""

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
from backend.domain.runs.plans import EvaluationPlan, Opponent, Sampling
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus, Split
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.operations.ids import parse_id
from backend.policies.queries import BASELINES, find_policy, get_policy_option
from backend.policies.service import PolicyIsDeleted
from backend.policies.tables import Policy
from backend.runs.schemas import EvaluationRequest
from backend.runs.tables import Run
from backend.web.audit import Requester, audit

JOB = "evaluations.run"
MAX_ROLLOUTS = 1_000_000
ENGINE = ("aiohttp", "orjson", "jinja2", "jsonschema")
"""Packages that decide what an endpoint is sent and how its answers are read."""


def start_evaluation(session: Session, actor: Requester, request: EvaluationRequest) -> Run:
    """Queue an evaluation. The same key from the same person returns the run that it started first."""
    run_id = stable_id("evaluation", actor.person_id, request.key) if request.key else new_id()
    if request.key and (known := session.get(Run, run_id)):
        return known
    version = _find_version(session, request)
    manifest = Manifest.model_validate(version.manifest)
    policy = _find_policy(session, request, manifest)
    checkpoint = _find_checkpoint(session, policy, request)
    opponent, rival = _find_opponent(session, request, manifest)
    plan = _resolve(request, policy, manifest, opponent)
    actor_name = f"{policy.name} {checkpoint.stage} {checkpoint.step}" if checkpoint else policy.name
    if opponent is not None:
        actor_name += f" against {opponent.name}"
    split = "held-out" if plan.split is Split.HELDOUT else plan.split
    name = f"{actor_name} on {version.environment.name} v{version.number}, {plan.tasks} {split} tasks"
    run = Run(
        id=run_id,
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
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
        seed=request.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": plan.rollouts},
        created_by=actor.person_id,
    )
    session.add(run)
    session.flush()
    is_local = any(each is not None and each.kind is PolicyKind.LOCAL for each in (policy, rival))
    enqueue_shares(session, run, JOB, Queue.GPU if is_local else Queue.CPU, plan.workers)
    audit(session, actor, "evaluation.start", "run", run.id, name=run.name, **plan.model_dump(mode="json"))
    announce(session, RUNS)
    return run


def enqueue_shares(session: Session, run: Run, name: str, queue: Queue, workers: int) -> Job:
    """Enqueue a job for each worker that shares the run. They have the same batch."""
    batch = {"batch": str(new_id())}
    jobs = [enqueue(session, name, queue=queue, run_id=run.id, arguments=batch) for _ in range(workers)]
    return jobs[-1]


def _find_version(session: Session, request: EvaluationRequest) -> EnvironmentVersion:
    """By its id, or by the environment's name or id: `tictactoe`, `tictactoe@3`."""
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
    )
    if request.version_id is not None:
        field, statement = "version_id", statement.where(EnvironmentVersion.id == request.version_id)
    elif request.environment:
        field = "environment"
        name, _, number = request.environment.partition("@")
        environment_id = parse_id(name)
        statement = statement.where(Environment.id == environment_id if environment_id else Environment.name == name)
        if number:
            is_number = number.isdecimal() and len(number) < 10
            statement = statement.where(EnvironmentVersion.number == (int(number) if is_number else 0))
    else:
        raise InvalidInput(fields={"version_id": "Fill this in"})
    version = session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).one_or_none()
    if version is None:
        raise InvalidInput(fields={field: "There is no such environment version."})
    return version


def _find_policy(session: Session, request: EvaluationRequest, manifest: Manifest) -> Policy:
    """By id or name. It must be able to act in this environment."""
    field = "policy_id" if request.policy_id or not request.policy else "policy"
    if request.policy_id is None and not request.policy:
        raise InvalidInput(fields={field: "Fill this in"})
    policy = session.get(Policy, request.policy_id) if request.policy_id else find_policy(session, request.policy or "")
    if policy is None:
        raise InvalidInput(fields={field: "There is no such policy."})
    _check_can_play(policy, manifest, field)
    return policy


def _check_can_play(policy: Policy, manifest: Manifest, field: str) -> None:
    """Raise InvalidInput, with this field of the request, for a policy that cannot act in this environment."""
    if policy.deleted_at is not None:
        raise PolicyIsDeleted(f"The policy {policy.name} was deleted. Choose another one.")
    if policy.kind is PolicyKind.HUMAN:
        raise InvalidInput(fields={field: "A person plays in the browser, not in an evaluation."})
    if policy.kind is PolicyKind.EXTERNAL:
        raise InvalidInput(fields={field: f"{policy.name} played elsewhere; its rollouts were imported."})
    script = policy.configuration.get("script")
    is_offered = script in BASELINES or script in manifest.proctor.scripts
    if policy.kind is PolicyKind.SCRIPTED and not is_offered:
        offered = ", ".join(manifest.proctor.scripts) or "none"
        problem = f"{manifest.name} offers no script `{script}` for this policy (it offers: {offered})."
        raise InvalidInput(fields={field: problem})


def _find_opponent(
    session: Session, request: EvaluationRequest, manifest: Manifest
) -> tuple[Opponent | None, Policy | None]:
    """The requested opponent and its policy. Raises InvalidInput."""
    if not request.opponent:
        return None, None
    seats = manifest.proctor.seats
    if seats is None:
        problem = f"{manifest.name} declares no seats: one policy plays each episode. Leave this empty."
        raise InvalidInput(fields={"opponent": problem})
    if request.group_size > 1 and request.group_size % len(seats.names):
        problem = f"Choose a multiple of {len(seats.names)}, so that each task is played from every seat."
        raise InvalidInput(fields={"group_size": problem})
    try:
        option = get_policy_option(session, request.opponent)
    except InvalidInput as error:
        raise InvalidInput(fields={"opponent": " ".join(error.fields.values())}) from error
    policy = session.get_one(Policy, uuid.UUID(str(option["policy_id"])))
    _check_can_play(policy, manifest, "opponent")
    return Opponent.model_validate(option | {"price": policy.configuration.get("price")}), policy


def _find_checkpoint(session: Session, policy: Policy, request: EvaluationRequest) -> Checkpoint | None:
    """The checkpoint of a local policy: the requested one, else its best, else its latest."""
    if policy.kind is not PolicyKind.LOCAL:
        if request.checkpoint_id is not None:
            raise InvalidInput(fields={"checkpoint_id": f"{policy.name} has no checkpoints."})
        return None
    statement = select(Checkpoint).where(Checkpoint.policy_id == policy.id)
    if request.checkpoint_id is not None:
        statement = statement.where(Checkpoint.id == request.checkpoint_id)
    else:
        statement = statement.where(Checkpoint.pruned_at.is_(None))
    best_first = statement.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc()).limit(1)
    # Locked, so that it is not pruned before the run that uses it exists.
    checkpoint = session.scalars(best_first.with_for_update(read=True)).first()
    if checkpoint is None:
        problem = "has no such checkpoint" if request.checkpoint_id else "has no checkpoint with weights yet"
        raise InvalidInput(fields={"checkpoint_id": f"{policy.name} {problem}."})
    if checkpoint.unusable:
        raise InvalidInput(fields={"checkpoint_id": checkpoint.unusable})
    return checkpoint


def _resolve(
    request: EvaluationRequest, policy: Policy, manifest: Manifest, opponent: Opponent | None
) -> EvaluationPlan:
    """Fill in the defaults of policy and environment. Raises InvalidInput."""
    proctor = manifest.proctor
    given = tuple(dict.fromkeys(request.task_indexes))
    tasks = len(given) or request.tasks
    available = proctor.tasks.heldout if request.split is Split.HELDOUT else proctor.tasks.train
    if (max(given) if given else request.first_task + request.tasks - 1) >= available:
        raise InvalidInput(fields={"tasks": f"{manifest.name} has {available:,} {request.split} tasks, from 0 on."})
    if opponent is not None and manifest.proctor.seats is not None and request.group_size == 1:
        request = request.model_copy(update={"group_size": len(manifest.proctor.seats.names)})
    total = tasks * request.group_size
    if total > MAX_ROLLOUTS:
        raise InvalidInput(fields={"group_size": f"{total:,} rollouts; an evaluation has at most {MAX_ROLLOUTS:,}."})
    concurrency = request.concurrency
    if concurrency is None:
        concurrency = max(64, proctor.resources.sessions)
        if policy.kind is PolicyKind.OPENAI_API:
            concurrency = Limits.model_validate(policy.configuration.get("limits") or {}).concurrency or 32
        # At least one group that is scored together: if the endpoint takes fewer requests, its episodes take turns.
        concurrency = max(min(concurrency, total, 1024), request.group_size if proctor.tasks.grouped else 1)
    if proctor.tasks.grouped:
        together = f"{manifest.name} scores the {request.group_size} rollouts of a group together, so all run at once"
        if request.group_size > concurrency:
            problem = f"{together}: allow {request.group_size} or more, or make the groups smaller."
            raise InvalidInput(fields={"concurrency": problem})
        if request.group_size > proctor.resources.sessions:
            problem = (
                f"{together} on one server, which supports {proctor.resources.sessions} sessions "
                "(`resources.sessions`): make the groups smaller."
            )
            raise InvalidInput(fields={"group_size": problem})
    resolved = {
        "tasks": tasks,
        "first_task": min(given) if given else request.first_task,
        "task_indexes_given": given,
        "sampling": Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens_per_turn=request.max_tokens_per_turn or proctor.episode.max_tokens_per_turn,
        ),
        "concurrency": concurrency,
        "workers": min(request.workers, tasks),
        "context": request.context or proctor.agent.context,
        "judge_ids": [str(judge_id) for judge_id in request.judge_ids],
        "opponent": opponent,
    }
    return EvaluationPlan.model_validate(request.model_dump() | resolved)
