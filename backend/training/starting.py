"""Starting a training run: what cannot work is refused before anything is queued."""

import uuid
from importlib.metadata import version as package_version

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.db.models import Checkpoint, EnvironmentVersion, Policy, Run
from backend.domain.ids import new_id, stable_id
from backend.domain.manifest import Manifest
from backend.domain.training import TrainingConfiguration
from backend.domain.vocabulary import CheckStatus, PolicyKind, Queue, RunKind, RunStatus
from backend.environments.service import start_check
from backend.errors import InvalidInput
from backend.events import RUNS, announce
from backend.queue import enqueue
from backend.training.forms import TrainingRequest, resolve_configuration
from backend.training.queries import find_certificate
from backend.web.audit import audit
from backend.web.identity import Actor

JOB = "training.run"
MIN_REASON = 10
"""Characters of a reason to train without a certificate."""


def start_training(session: Session, actor: Actor, request: TrainingRequest) -> Run:
    """Queue a training run and make the policy that it trains. The same key gives the run that it started first."""
    run_id = stable_id("training", actor.person_id, request.key) if request.key else new_id()
    if request.key and (known := session.get(Run, run_id)):
        return known
    configuration = resolve_configuration(request.preset, request.configuration)
    version = _version(session, request.version_id)
    manifest = Manifest.model_validate(version.manifest)
    _check_choices(session, configuration, manifest)
    reason = _reason_without_certificate(session, version, request)
    policy = _policy(session, actor, request, version, configuration, run_id)
    run = _run(actor, request, version, policy, configuration, run_id)
    run.columns = manifest.column_names
    run.weights = [column.weight for column in manifest.columns]
    if reason:
        run.configuration["without_certificate"] = reason
    session.add(run)
    session.flush()
    if reason and find_certificate(session, version.id) is None:
        start_check(session, actor, version, version.environment.name)  # what it finds stands beside the run
    enqueue(session, JOB, queue=Queue.GPU, run_id=run.id)
    audit(session, actor, "training.start", "run", run.id, name=run.name, without_certificate=reason)
    announce(session, RUNS)
    return run


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


def _check_choices(session: Session, configuration: TrainingConfiguration, manifest: Manifest) -> None:
    tasks = manifest.proctor.tasks
    if problems := configuration.problems(scripts=list(manifest.proctor.scripts), levels=tasks.levels):
        raise InvalidInput(" ".join(problems), {"configuration": " ".join(problems)})
    if configuration.heldout.tasks > tasks.heldout:
        raise InvalidInput(fields={"heldout.tasks": f"{manifest.name} has {tasks.heldout:,} held-out tasks."})
    if manifest.proctor.agent.context.cuts(manifest.proctor.episode.max_turns):
        raise InvalidInput(
            f"{manifest.name} shows a policy only the last turns (`agent.context`). Training needs whole episodes as"
            " one sequence of tokens: publish a version with `context: {kind: full}`.",
            {"version_id": "This version cuts the conversation (`agent.context`), so that it cannot be trained on."},
        )
    wanted = configuration.model.checkpoint
    if configuration.model.source == "checkpoint" and (wanted is None or session.get(Checkpoint, wanted) is None):
        raise InvalidInput(fields={"model.checkpoint": "There is no such checkpoint."})


def _reason_without_certificate(session: Session, version: EnvironmentVersion, request: TrainingRequest) -> str | None:
    """None where the version is certified; else the reason that was typed."""
    certificate = find_certificate(session, version.id)
    if certificate is not None and certificate.status is not CheckStatus.FAILED:
        return None
    what = "has no certificate" if certificate is None else "failed its checks"
    reason = (request.without_certificate or "").strip()
    if len(reason) < MIN_REASON:
        name = f"{version.environment.name} v{version.number}"
        raise InvalidInput(
            f"{name} {what}: its reward was not shown to be sound. Run its checks, or say why to train on it anyway.",
            {
                "without_certificate": f"{name} {what}. Run its checks first, or write here why to train without, in"
                f" {MIN_REASON} characters or more."
            },
        )
    return reason


def _policy(
    session: Session,
    actor: Actor,
    request: TrainingRequest,
    version: EnvironmentVersion,
    configuration: TrainingConfiguration,
    run_id: uuid.UUID,
) -> Policy:
    name = (request.name or f"{version.environment.name}-{run_id.hex[-6:]}").strip()
    if session.scalar(select(Policy.id).where(Policy.name == name)):
        raise InvalidInput(fields={"name": f"There is a policy named {name} already."})
    policy = Policy(
        name=name,
        kind=PolicyKind.LOCAL,
        description=f"Trained on {version.environment.name} v{version.number}.",
        configuration=configuration.model.model_dump(mode="json"),
        created_by=actor.person_id,
    )
    session.add(policy)
    session.flush()
    return policy


def _run(
    actor: Actor,
    request: TrainingRequest,
    version: EnvironmentVersion,
    policy: Policy,
    configuration: TrainingConfiguration,
    run_id: uuid.UUID,
) -> Run:
    return Run(
        id=run_id,
        kind=RunKind.TRAINING,
        status=RunStatus.QUEUED,
        name=request.name or f"{policy.name}: {configuration.recipe} on {version.environment.name} v{version.number}",
        version_id=version.id,
        policy_id=policy.id,
        checkpoint_id=configuration.model.checkpoint,
        configuration={
            **configuration.resolved(),
            "preset": request.preset,
            "content_hash": version.content_hash,
            "proctor": package_version("proctor"),
        },
        seed=configuration.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": configuration.total_steps},
        created_by=actor.person_id,
    )
