"""Starting a training run. Requests that cannot work are refused before anything is queued."""

import uuid
from collections.abc import Sequence
from importlib.metadata import version as package_version

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id, stable_id
from backend.domain.runs.capabilities import QUEUES
from backend.domain.training.adapter import refusal_to_continue
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import MixPart, portions, union_columns
from backend.domain.training.preflight.static import impossible
from backend.domain.vocabulary import CheckStatus, PolicyKind, RunKind, RunStatus
from backend.environments.service import start_check
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.training.example_files import check_sources
from backend.training.queries import find_certificate, find_training_run, find_version, get_preflight
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.workers import offers
from backend.web.audit import audit
from backend.web.identity import Actor


def pinned(
    session: Session, own: EnvironmentVersion, configuration: TrainingConfiguration
) -> tuple[TrainingConfiguration, list[EnvironmentVersion]]:
    """The choices with the version of each environment of the mix written out, and all versions, the run's own first.

    Raises InvalidInput where there is none, or where the same version would be played twice.
    """
    versions = [own]
    parts = []
    for part in configuration.mix:
        version = version_of_part(session, part)
        if version.id in {each.id for each in versions}:
            raise InvalidInput(fields={"mix": f"{_name(version)} is in the run twice. Give it once, with its weight."})
        versions.append(version)
        parts.append(part.model_copy(update={"version": version.number}))
    return configuration.model_copy(update={"mix": parts}), versions


def version_of_part(session: Session, part: MixPart) -> EnvironmentVersion:
    """Raises InvalidInput with what is wrong in the field `mix`."""
    version = _find(session, part)
    if version is None:
        what = "published version" if part.version is None else f"version {part.version}"
        raise InvalidInput(fields={"mix": f"There is no {what} of an environment called {part.environment}."})
    if version.environment.archived_at is not None:
        raise InvalidInput(fields={"mix": f"{part.environment} is archived: bring it back first."})
    return version


def _find(session: Session, part: MixPart) -> EnvironmentVersion | None:
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .where(Environment.name == part.environment)
    )
    if part.version is not None:
        statement = statement.where(EnvironmentVersion.number == part.version)
    return session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).first()


def _name(version: EnvironmentVersion) -> str:
    return f"{version.environment.name} v{version.number}"


JOB = "training.run"
MIN_REASON = 10
"""Characters of a reason to train without a certificate."""


def start_training(session: Session, actor: Actor, request: TrainingRequest) -> Run:
    """Queue a training run and make the policy that it trains. The same key gives the run that it started first."""
    run_id = stable_id("training", actor.person_id, request.key) if request.key else new_id()
    if request.key and (known := session.get(Run, run_id)):
        return known
    configuration, versions = choices_of_request(session, request)
    version, manifests = versions[0], [Manifest.model_validate(each.manifest) for each in versions]
    reason = reason_without_certificate(session, versions, request.without_certificate)
    policy = _policy(session, actor, request, version, configuration, run_id)
    run = _run(actor, request, version, policy, configuration, run_id)
    columns = union_columns(manifests)
    run.columns, run.weights = [column.name for column in columns], [column.weight for column in columns]
    if reason:
        run.configuration["without_certificate"] = reason
    if request.preflight_id:
        run.configuration["preflight"] = str(request.preflight_id)
    if request.again and find_training_run(session, request.again):
        run.source_run_id = request.again
    session.add(run)
    session.flush()
    for each in versions if reason else ():
        if find_certificate(session, each.id) is None:
            start_check(session, actor, each, each.environment.name)  # what it finds stands beside the run
    enqueue(session, JOB, queue=QUEUES[configuration.engine], run_id=run.id)
    audit(session, actor, "training.start", "run", run.id, name=run.name, without_certificate=reason)
    announce(session, RUNS)
    return run


def choices_of_request(
    session: Session, request: TrainingRequest
) -> tuple[TrainingConfiguration, list[EnvironmentVersion]]:
    """The configuration with its mix pinned, and all versions, the run's own first. Refuses what cannot work."""
    own = version_of_request(session, request)
    configuration, versions = pinned(session, own, _configuration(session, request))
    _check_choices(session, configuration, [Manifest.model_validate(each.manifest) for each in versions])
    check_sources(session, configuration, [each.id for each in versions])
    return configuration, versions


def version_of_request(session: Session, request: TrainingRequest) -> EnvironmentVersion:
    version = find_version(session, request.version_id)
    if version is None:
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    if request.content_hash and request.content_hash != version.content_hash:
        name = f"{version.environment.name} v{version.number}"
        raise InvalidInput(fields={"content_hash": f"{name} is another one here: its content hash differs."})
    return version


def _configuration(session: Session, request: TrainingRequest) -> TrainingConfiguration:
    """What was asked for over the pre-flight's choices. Raises InvalidInput where no worker could carry it out."""
    preflight = get_preflight(session, request.preflight_id) if request.preflight_id else None
    base = preflight.configuration if preflight else None
    configuration = resolve_configuration(request.preset, request.configuration, base)
    if found := impossible(configuration, offers(session)):
        raise InvalidInput(fields={str(each.evidence["field"]): each.sentence for each in found})
    return configuration


def _check_choices(session: Session, configuration: TrainingConfiguration, manifests: Sequence[Manifest]) -> None:
    weights = [1.0, *(part.weight for part in configuration.mix)]
    for manifest, heldout in zip(manifests, portions(weights, configuration.heldout.tasks), strict=True):
        check_environment(configuration, manifest, heldout)
    if configuration.model.source == "checkpoint":
        _check_start(session, configuration)


def check_environment(configuration: TrainingConfiguration, manifest: Manifest, heldout: int) -> None:
    """`heldout`: how many of its tasks the examination wants."""
    tasks = manifest.proctor.tasks
    if problems := configuration.problems(scripts=list(manifest.proctor.scripts), levels=tasks.levels):
        whose = f"{manifest.name}: " if configuration.mix else ""
        raise InvalidInput(whose + " ".join(problems), {"configuration": whose + " ".join(problems)})
    if heldout > tasks.heldout:
        raise InvalidInput(fields={"heldout.tasks": f"{manifest.name} has {tasks.heldout:,} held-out tasks."})
    if manifest.proctor.agent.context.cuts(manifest.proctor.episode.max_turns):
        raise InvalidInput(
            f"{manifest.name} shows a policy only the last turns (`agent.context`). Training needs whole episodes as"
            " one sequence of tokens: publish a version with `context: {kind: full}`.",
            {"version_id": "This version cuts the conversation (`agent.context`), so that it cannot be trained on."},
        )


def _check_start(session: Session, configuration: TrainingConfiguration) -> None:
    """Locked, so that nobody prunes it before the run that starts from it is there."""
    wanted = configuration.model.checkpoint
    start = session.get(Checkpoint, wanted, with_for_update={"read": True}) if wanted else None
    if start is None:
        raise InvalidInput(fields={"model.checkpoint": "There is no such checkpoint."})
    if start.unusable:
        raise InvalidInput(fields={"model.checkpoint": start.unusable})
    if refusal := refusal_to_continue(start.adapter, configuration.adapter):
        raise InvalidInput(fields={"adapter.kind": refusal[0].upper() + refusal[1:] + "."})


def reason_without_certificate(
    session: Session, versions: Sequence[EnvironmentVersion], typed: str | None
) -> str | None:
    """None where all versions are certified; else the reason that was typed."""
    for version in versions:
        certificate = find_certificate(session, version.id)
        if certificate is None or certificate.status is CheckStatus.FAILED:
            return _typed_reason(version, certificate, typed)
    return None


def _typed_reason(version: EnvironmentVersion, certificate: Certificate | None, typed: str | None) -> str:
    what = "has no certificate" if certificate is None else "failed its checks"
    reason = (typed or "").strip()
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
