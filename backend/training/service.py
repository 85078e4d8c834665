"""Starting a training run. Requests that cannot work are refused before anything is queued."""

import uuid
from collections.abc import Sequence
from importlib.metadata import version as package_version

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.core.row_access import current_project, is_taken
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id, stable_id
from backend.domain.runs.capabilities import QUEUES
from backend.domain.training.adapter import refusal_to_continue
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.distillation import DistillationChoice
from backend.domain.training.mix import MixPart, portions, union_columns
from backend.domain.training.preflight.static import impossible
from backend.domain.vocabulary import CheckStatus, PolicyKind, RunKind, RunStatus
from backend.environments.service import start_check
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput, NotFound
from backend.operations.ids import parse_id
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.training.branches import JOB, BranchVersion
from backend.training.example_files import check_sources
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.tables import Preflight
from backend.training.workers import offers
from backend.web.audit import Requester, audit

MIN_REASON = 10
"""Minimum length in characters of a reason to train without a certificate."""


def start_training(session: Session, actor: Requester, request: TrainingRequest) -> Run:
    """Queue a training run and create the policy that it trains. A repeated key returns the run that it started."""
    run_id = stable_id("training", actor.person_id, request.key) if request.key else new_id()
    if request.key and (known := session.get(Run, run_id)):
        return known
    configuration, versions = configuration_of_request(session, request)
    version = versions[0]
    reason = reason_without_certificate(versions, request.without_certificate)
    policy_name = (request.name or f"{version.environment.name}-{run_id.hex[-6:]}").strip()
    if is_taken(session, Policy.name, policy_name):
        raise InvalidInput(fields={"name": f"There is a policy named {policy_name} already."})
    policy = Policy(
        name=policy_name,
        kind=PolicyKind.LOCAL,
        description=f"Trained on {version.title}.",
        configuration=configuration.model.model_dump(mode="json"),
        project_id=current_project(session) or version.environment.project_id,
        created_by=actor.person_id,
    )
    session.add(policy)
    session.flush()
    columns = union_columns(each.typed_manifest for each in versions)
    stored = {
        **configuration.resolved(),
        "preset": request.preset,
        "content_hash": version.content_hash,
        "proctor": package_version("proctor"),
    }
    if reason:
        stored["without_certificate"] = reason
    if request.preflight_id:
        stored["preflight"] = str(request.preflight_id)
    run = Run(
        id=run_id,
        kind=RunKind.TRAINING,
        status=RunStatus.QUEUED,
        name=request.name or f"{policy_name}: {configuration.recipe} on {version.title}",
        version_id=version.id,
        policy_id=policy.id,
        checkpoint_id=configuration.model.checkpoint,
        configuration=stored,
        columns=[column.name for column in columns],
        weights=[column.weight for column in columns],
        seed=configuration.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": configuration.total_steps},
        created_by=actor.person_id,
    )
    is_again = Run.id == request.again, Run.kind == RunKind.TRAINING
    run.source_run_id = session.scalar(select(Run.id).where(*is_again)) if request.again else None
    session.add(run)
    session.flush()
    for each in versions if reason else ():
        if each.certificate is None:
            start_check(session, actor, each, each.environment.name)  # runs alongside; the run's page shows its result
    enqueue(session, JOB, queue=QUEUES[configuration.engine], run_id=run.id)
    audit(session, actor, "training.start", "run", run.id, name=run.name, without_certificate=reason)
    announce(session, RUNS)
    return run


def get_preflight(session: Session, preflight_id: uuid.UUID | str) -> Preflight:
    statement = (
        select(Preflight)
        .options(joinedload(Preflight.version).joinedload(EnvironmentVersion.environment))
        .where(Preflight.id == parse_id(str(preflight_id)))
    )
    preflight = session.scalars(statement).one_or_none()
    if preflight is None:
        raise NotFound("There is no such pre-flight.")
    return preflight


def version_of_request(session: Session, request: TrainingRequest) -> EnvironmentVersion:
    """The requested environment version. Raises InvalidInput."""
    version = session.get(EnvironmentVersion, request.version_id, options=[joinedload(EnvironmentVersion.environment)])
    if version is None:
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    if request.content_hash and request.content_hash != version.content_hash:
        raise InvalidInput(fields={"content_hash": f"{version.title} has another content hash on this server."})
    return version


def configuration_of_request(
    session: Session, request: TrainingRequest
) -> tuple[TrainingConfiguration, list[EnvironmentVersion]]:
    """The configuration with a version pinned for each environment of the mix, and all versions, the run's own first.

    Raises InvalidInput for settings that cannot work with these environments, or that no worker supports.
    """
    own = version_of_request(session, request)
    preflight = get_preflight(session, request.preflight_id) if request.preflight_id else None
    base = preflight.configuration if preflight else None
    configuration = resolve_configuration(request.preset, request.configuration, base)
    if found := impossible(configuration, offers(session)):
        raise InvalidInput(fields={str(each.evidence["field"]): each.sentence for each in found})
    configuration, versions = pin_versions(session, own, configuration)
    weights = [1.0, *(part.weight for part in configuration.mix)]
    for version, heldout in zip(versions, portions(weights, configuration.heldout.tasks), strict=True):
        check_environment(configuration, version.typed_manifest, heldout)
    if configuration.model.source == "checkpoint":
        wanted = configuration.model.checkpoint
        # Locked, so that it is not pruned before the run that starts from it is stored.
        start = session.get(Checkpoint, wanted, with_for_update={"read": True}) if wanted else None
        if start is None:
            raise InvalidInput(fields={"model.checkpoint": "There is no such checkpoint."})
        if start.unusable:
            raise InvalidInput(fields={"model.checkpoint": start.unusable})
        if refusal := refusal_to_continue(start.adapter, configuration.adapter):
            raise InvalidInput(fields={"adapter.kind": refusal[0].upper() + refusal[1:] + "."})
    if configuration.recipe is Recipe.DISTILLATION:
        check_teacher(session, configuration.distillation)
    check_sources(session, configuration, [version.id for version in versions])
    return configuration, versions


def check_teacher(session: Session, choice: DistillationChoice) -> None:
    """Raise InvalidInput for a teacher that does not exist. The worker checks its vocabulary and log-probabilities."""
    if choice.teacher == "checkpoint" and choice.checkpoint:
        row = session.get(Checkpoint, choice.checkpoint)
        refusal = "There is no such checkpoint." if row is None else row.unusable
        if refusal:
            raise InvalidInput(fields={"distillation.checkpoint": refusal})
    if choice.teacher == "endpoint" and choice.endpoint.strip():
        named = Policy.name == choice.endpoint.strip(), Policy.kind == PolicyKind.OPENAI_API
        if session.scalar(select(Policy.id).where(*named, Policy.deleted_at.is_(None))) is None:
            message = f"There is no policy {choice.endpoint} with an endpoint."
            raise InvalidInput(fields={"distillation.endpoint": message})


def pin_versions(
    session: Session, own: EnvironmentVersion, configuration: TrainingConfiguration
) -> tuple[TrainingConfiguration, list[EnvironmentVersion]]:
    """The configuration with version numbers in its mix, and all versions, the run's own first.

    Raises InvalidInput if a version does not exist or is played twice.
    """
    versions, parts = [own], []
    for part in configuration.mix:
        version = version_of_part(session, part)
        if version.id in {each.id for each in versions}:
            raise InvalidInput(fields={"mix": f"{version.title} is in the run twice. Give it once, with its weight."})
        versions.append(version)
        parts.append(part.model_copy(update={"version": version.number}))
    return configuration.model_copy(update={"mix": parts}), versions


def version_of_part(session: Session, part: MixPart) -> EnvironmentVersion:
    """The version of one environment of a mix; the latest if the part names none. Raises InvalidInput."""
    statement = (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .where(Environment.name == part.environment)
    )
    if part.version is not None:
        statement = statement.where(EnvironmentVersion.number == part.version)
    version = session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).first()
    if version is None:
        what = "published version" if part.version is None else f"version {part.version}"
        raise InvalidInput(fields={"mix": f"There is no {what} of an environment called {part.environment}."})
    if version.environment.archived_at is not None:
        raise InvalidInput(fields={"mix": f"{part.environment} is archived. Restore it first."})
    return version


def check_environment(configuration: TrainingConfiguration, manifest: Manifest, heldout: int) -> None:
    """Refuse an environment on which this configuration cannot train. `heldout`: number of its held-out tasks to use.

    Raises InvalidInput.
    """
    tasks, scripts = manifest.proctor.tasks, list(manifest.proctor.scripts)
    has_seats = manifest.proctor.seats is not None
    if problems := configuration.problems(scripts=scripts, levels=tasks.levels, has_seats=has_seats):
        text = (f"{manifest.name}: " if configuration.mix else "") + " ".join(problems)
        raise InvalidInput(text, {"configuration": text})
    if heldout > tasks.heldout:
        raise InvalidInput(fields={"heldout.tasks": f"{manifest.name} has {tasks.heldout:,} held-out tasks."})
    if manifest.proctor.agent.context.cuts(manifest.proctor.episode.max_turns):
        raise InvalidInput(
            f"{manifest.name} shows the policy only the last turns (`agent.context`). Training needs complete episodes"
            " as one sequence of tokens. Publish a version with `context: {kind: full}`.",
            {"version_id": "This version truncates the conversation (`agent.context`), so it cannot be trained on."},
        )


def reason_without_certificate(versions: Sequence[EnvironmentVersion], reason: str | None) -> str | None:
    """The reason, or None if all versions have a certificate. Raises InvalidInput if a reason is needed and missing."""
    for version in versions:
        if version.certificate not in {None, CheckStatus.FAILED}:
            continue
        if len((reason or "").strip()) >= MIN_REASON:
            return (reason or "").strip()
        state = "has no certificate" if version.certificate is None else "failed its checks"
        raise InvalidInput(
            f"{version.title} {state}, so its reward may be unsound. Run its checks, or give a reason to train anyway.",
            {
                "without_certificate": f"{version.title} {state}. Run its checks first, or give a reason of at least"
                f" {MIN_REASON} characters to train without them."
            },
        )
    return None


def version_for_branch(
    session: Session, run: Run, number: int | None, without_certificate: str | None
) -> BranchVersion | None:
    """The version with this number for a branch of the run, or None for the run's own version.

    Raises InvalidInput if the run's configuration does not fit it, or it needs a reason to train without a certificate.
    """
    own = session.get_one(EnvironmentVersion, run.version_id, options=[joinedload(EnvironmentVersion.environment)])
    if number is None or number == own.number:
        return None
    is_wanted = EnvironmentVersion.environment_id == own.environment_id, EnvironmentVersion.number == number
    numbered = select(EnvironmentVersion).options(joinedload(EnvironmentVersion.environment)).where(*is_wanted)
    version = session.scalars(numbered).one_or_none()
    if version is None:
        raise InvalidInput(fields={"version": f"There is no {own.environment.name} v{number}."})
    configuration = TrainingConfiguration.of_run(run.configuration)
    _, versions = pin_versions(session, version, configuration)
    manifests = [each.typed_manifest for each in versions]
    weights = [1.0, *(part.weight for part in configuration.mix)]
    check_environment(configuration, manifests[0], portions(weights, configuration.heldout.tasks)[0])
    reason = reason_without_certificate([version], without_certificate)
    return BranchVersion(version, {column.name: column.weight for column in union_columns(manifests)}, reason)
