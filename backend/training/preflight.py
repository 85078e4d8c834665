"""Checks before a training run starts. Some run at once; the others need a worker and are queued."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session, contains_eager

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.core.artifacts import store_id
from backend.core.queue import enqueue
from backend.domain.rollouts.filters import FilterError, parse
from backend.domain.runs.capabilities import QUEUES
from backend.domain.training.adapter import AdapterRecord
from backend.domain.training.advice import Advice, StoredExamples, advise, starting_point
from backend.domain.training.configuration import ModelChoice, TrainingConfiguration
from backend.domain.training.memory import FLOAT_BYTES, MAX_PARAMETERS
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.training.preflight.static import Plan, Site, checks_at_once
from backend.domain.vocabulary import PreflightStatus, RolloutStatus, RunKind, Split
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.rollouts.filters import condition_of
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.training.schemas import TrainingRequest
from backend.training.service import configuration_of_request, version_of_part
from backend.training.setting_texts import stored_configuration
from backend.training.tables import Preflight
from backend.training.workers import offers
from backend.web.audit import audit
from backend.web.identity import Actor

CONFIGURATION = "config.json"
JOB = "training.preflight"
ATTEMPTS = 2
"""A process that was killed, such as for lack of memory, runs once more. The second time is reported as a finding."""
SEARCHED_RUNS = 10
"""Latest evaluations that are searched for successes to learn from."""
_MOST_BYTES = 2**20
LARGE_BYTES = MAX_PARAMETERS * FLOAT_BYTES
"""A model with more weights was not created here."""


@dataclass(frozen=True, slots=True)
class StartingModel:
    """The model that a run starts from."""

    size_bytes: int | None = None
    """Size of a checkpoint's weights."""
    context: int | None = None
    """Context length in tokens; None if it is unknown before the model is loaded."""
    is_pretrained: bool = False
    """The model is larger than any created here, or unknown: learning rates for models from scratch do not suit it."""


def starting_model(session: Session, choice: ModelChoice) -> StartingModel:
    """The model that this configuration starts from, as far as it is known without loading it."""
    if choice.source == "scratch":
        return StartingModel(context=choice.context)
    if choice.source == "base":
        return _base_model(choice.base)
    row = session.get(Checkpoint, choice.checkpoint) if choice.checkpoint else None
    if row is None:
        return StartingModel()
    if row.adapter is None:
        return StartingModel(row.size_bytes, stored_context(row.artifact), row.size_bytes > LARGE_BYTES)
    record = AdapterRecord.model_validate(row.adapter)
    if record.artifact:
        return StartingModel(row.size_bytes, stored_context(record.artifact))
    base = _base_model(record.base)
    return StartingModel(row.size_bytes, base.context, base.is_pretrained)


def _base_model(name: str) -> StartingModel:
    """A base model in a folder that this process can read. Nothing is known about a model of the Hub."""
    try:
        folder = Path(name).expanduser()
        if not folder.is_absolute() or not (folder / CONFIGURATION).is_file():
            return StartingModel(is_pretrained=True)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        with (folder / CONFIGURATION).open("rb") as file:
            return StartingModel(context=_context(file.read(_MOST_BYTES)), is_pretrained=size > LARGE_BYTES)
    except (OSError, ValueError, RuntimeError):  # the last: `~user` without a home folder
        return StartingModel(is_pretrained=True)


def stored_context(artifact: str) -> int | None:
    """The context length in the configuration of stored weights, or None."""
    try:
        with artifacts.open_file(f"{artifact}/{CONFIGURATION}") as file:
            return _context(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None


def _context(text: bytes) -> int | None:
    configuration = json.loads(text)
    if not isinstance(configuration, dict):
        return None
    inner = configuration.get("text_config")
    blocks = [configuration, inner] if isinstance(inner, dict) else [configuration]
    values = (block.get(name) for block in blocks for name in ("max_position_embeddings", "n_positions"))
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def findings_at_once(
    session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration
) -> list[PreflightFinding]:
    """The findings that need no worker."""
    versions, missing = [(version, 1.0)], []
    for part in configuration.mix:
        try:
            versions.append((version_of_part(session, part), part.weight))
        except InvalidInput as error:
            missing.append(error.fields["mix"])
    model = starting_model(session, configuration.model)
    plan = Plan(
        configuration=configuration,
        sites=[Site(configuration.played(each.typed_manifest), each.certificate, weight) for each, weight in versions],
        offers=offers(session),
        checkpoint_bytes=model.size_bytes,
        context=model.context,
        is_pretrained=model.is_pretrained,
        missing=missing,
        store=store_id(),
    )
    return checks_at_once(plan)


def start_preflight(session: Session, actor: Actor, request: TrainingRequest) -> Preflight:
    """Run the checks that need no worker and queue the others. Refuses what a training run refuses."""
    configuration, (version, *_) = configuration_of_request(session, request)
    preflight = Preflight(
        version_id=version.id,
        version=version,
        configuration=configuration.resolved(),
        findings=[finding.model_dump(mode="json") for finding in findings_at_once(session, version, configuration)],
        progress={"phase": "waiting for a worker"},
        created_by=actor.person_id,
    )
    session.add(preflight)
    session.flush()
    queue = QUEUES[configuration.engine]
    job = enqueue(session, JOB, queue=queue, arguments={"preflight_id": str(preflight.id)})
    job.max_attempts = ATTEMPTS
    audit(session, actor, "training.preflight", "preflight", preflight.id, version=str(version.id))
    return preflight


def find_preflight(
    session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration
) -> Preflight | None:
    """The latest completed pre-flight of this model on this version, whatever its other settings were."""
    model = configuration.model.model_dump(mode="json")
    statement = (
        select(Preflight)
        .where(
            Preflight.version_id == version.id,
            Preflight.status == PreflightStatus.COMPLETED,
            Preflight.configuration["model"] == model,
        )
        .order_by(Preflight.ended_at.desc())
        .limit(1)
    )
    return session.scalars(statement).one_or_none()


def advice_of(
    session: Session, preflight: Preflight, configuration: TrainingConfiguration | None = None
) -> Advice | None:
    """The recipe that suits what a pre-flight measured; None if it did not play any episode.

    `configuration`: the settings that the advice would change. Default: those of the pre-flight.
    """
    if not preflight.status.is_over:
        return None
    findings = [PreflightFinding.model_validate(finding) for finding in preflight.findings]
    point = starting_point(findings)
    if point is None:
        return None
    configuration = configuration or stored_configuration(preflight.configuration)
    stored = None if point.has_script else _stored_examples(session, preflight, configuration)
    return advise(replace(point, stored=stored), configuration)


def _stored_examples(
    session: Session, preflight: Preflight, configuration: TrainingConfiguration
) -> StoredExamples | None:
    """The evaluation with the most successes on training tasks of this environment, among the latest ones."""
    version = session.get_one(EnvironmentVersion, preflight.version_id)
    where = configuration.curriculum.rule(version.typed_manifest).expression
    latest = (
        select(Run)
        .join(Run.version)
        .options(contains_eager(Run.version))
        .where(
            Run.kind == RunKind.EVALUATION,
            EnvironmentVersion.environment_id == version.environment_id,
            Run.configuration["split"].as_string() == Split.TRAIN,
        )
        .order_by(Run.id.desc())
        .limit(SEARCHED_RUNS)
    )
    passing: list[ColumnElement[bool]] = []
    for run in session.scalars(latest):
        try:
            scope = scope_of(session, run, for_learning=True)
            if tree := parse(where, scope.fields):
                passing.append(and_(Rollout.run_id == run.id, condition_of(tree, scope)))
        except FilterError:  # another version, without this column
            continue
    if not passing:
        return None
    successes = func.count()
    statement = (
        select(Run.id, Run.name, successes)
        .join(Rollout, Rollout.run_id == Run.id)
        .where(Rollout.status == RolloutStatus.COMPLETED, or_(*passing))
        .group_by(Run.id, Run.name)
        .order_by(successes.desc())
        .limit(1)
    )
    row = session.execute(statement).one_or_none()
    return StoredExamples(str(row[0]), row[1], row[2], where) if row else None
