"""Start, stop and wake transfer reports. The job `exports.transfer` advances one, then the export is made."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Select, Text, cast, func, or_, select
from sqlalchemy.orm import Session, aliased, contains_eager, joinedload

from backend.checkpoints.queries import find_checkpoint
from backend.checkpoints.schemas import TransferRequest
from backend.checkpoints.tables import Checkpoint, Export, TransferEvaluation
from backend.core.queue import TRANSFER_JOB, enqueue
from backend.core.tables import Job
from backend.domain.checkpoints.transfer import (
    DEFAULT_ENVIRONMENTS,
    TransferEnvironment,
    TransferReport,
    TransferSide,
    plan_pilots,
)
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import reward_scale
from backend.domain.rollouts.rollout import drawn_task
from backend.domain.vocabulary import ExportStatus, JobStatus, PolicyKind, Queue, Split
from backend.environments.queries import find_environment, get_version
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotFound
from backend.policies.queries import find_policy
from backend.policies.tables import Policy
from backend.runs.queries import get_run, versions_of

UNFINISHED = (ExportStatus.QUEUED, ExportStatus.RUNNING)
MAX_INDEXES = 20_000
"""Held-out tasks among which a report chooses."""
_IS_PLAYING = Export.transfer.is_not(None) & Export.transfer["ended_at"].astext.is_(None)
_BAIT = "%  def honeypot%"
"""A method of a package that reports a bait. Comments in templates have one space before `def`."""


class NoTransferReport(Conflict):
    """No transfer report of this export is in progress."""


def plan_transfer(session: Session, checkpoint: Checkpoint, request: TransferRequest) -> TransferReport:
    """Choose both sides and the environments, and plan the pilots. Raises InvalidInput."""
    assert checkpoint.run_id is not None
    trained = versions_of(session, get_run(session, checkpoint.run_id))
    report = TransferReport(
        reference=_choose_reference(session, checkpoint, request.reference),
        exported=_side_of(session, checkpoint),
        environments=[
            describe_environment(version, request.detect, is_trained=version.id in {each.id for each in trained})
            for version in _choose_versions(session, trained, request.environments)
        ],
        **request.model_dump(include={"detect", "max_rollouts", "max_minutes"}),
    )
    plan_pilots(report)
    if all(each.status.is_over for each in report.environments):
        raise InvalidInput(fields={"max_rollouts": report.environments[0].reason})
    return report


@dataclass(frozen=True, slots=True)
class OfferedEnvironment:
    version: EnvironmentVersion
    is_trained: bool
    is_default: bool


def offered_environments(session: Session, checkpoint: Checkpoint) -> list[OfferedEnvironment]:
    """Environments that a report can play, the default ones first."""
    if checkpoint.run_id is None:
        return []
    trained = versions_of(session, get_run(session, checkpoint.run_id))
    defaults = default_versions(session, trained)
    known = {version.environment_id for version in defaults}
    others = session.scalars(_newest_versions().where(EnvironmentVersion.environment_id.not_in(known)))
    return [
        *(OfferedEnvironment(each, any(each is other for other in trained), is_default=True) for each in defaults),
        *(OfferedEnvironment(each, is_trained=False, is_default=False) for each in others),
    ]


def default_versions(session: Session, trained: Sequence[EnvironmentVersion]) -> list[EnvironmentVersion]:
    """The versions of the training run, then the newest of environments with canaries or honeypots."""
    has_traps = or_(
        EnvironmentVersion.manifest["proctor"]["tasks"]["canaries"].as_float() > 0,
        cast(EnvironmentVersion.files, Text).like(_BAIT),
    )
    known = {version.environment_id for version in trained}
    others = _newest_versions().where(has_traps, EnvironmentVersion.environment_id.not_in(known))
    return [*trained, *session.scalars(others.limit(DEFAULT_ENVIRONMENTS))][:DEFAULT_ENVIRONMENTS]


def _newest_versions() -> Select[EnvironmentVersion]:
    """The newest version of each environment that is not archived, by name."""
    later = aliased(EnvironmentVersion)
    newest = select(func.max(later.number)).where(later.environment_id == Environment.id).scalar_subquery()
    return (
        select(EnvironmentVersion)
        .join(EnvironmentVersion.environment)
        .options(contains_eager(EnvironmentVersion.environment))
        .where(Environment.archived_at.is_(None), EnvironmentVersion.number == newest)
        .order_by(Environment.name)
    )


def describe_environment(version: EnvironmentVersion, detect: float, *, is_trained: bool) -> TransferEnvironment:
    manifest = version.typed_manifest
    ordinary, canaries = held_out_indexes(manifest)
    scale = reward_scale(manifest)
    return TransferEnvironment(
        name=version.environment.name,
        version=version.number,
        version_id=version.id,
        is_trained=is_trained,
        available=len(ordinary),
        available_canaries=len(canaries),
        detect=detect * (scale.gold - scale.floor) if scale else detect,
    )


def held_out_indexes(manifest: Manifest) -> tuple[list[int], list[int]]:
    """Held-out tasks that can be solved, and impossible ones, in order."""
    indexes: tuple[list[int], list[int]] = [], []
    for index in range(min(manifest.proctor.tasks.heldout, MAX_INDEXES)):
        indexes[drawn_task(manifest, Split.HELDOUT, index).is_canary].append(index)
    return indexes


def stop_transfer(session: Session, export: Export) -> None:
    """Stop the evaluations of a report. The export is then made with the results so far."""
    session.refresh(export, ["transfer", "status"], with_for_update={"of": Export})
    report = export.transfer_report
    if report is None or report.status.is_over or export.status not in UNFINISHED:
        raise NoTransferReport
    export.transfer = report.model_copy(update={"stop_requested": True}).model_dump(mode="json")
    session.flush()
    wake_transfer(session, export.id)


def wake_waiting_transfers(session: Session, evaluation_id: uuid.UUID) -> None:
    """Wake the reports that wait for an evaluation that has ended, or for the detectors that scanned it."""
    statement = (
        select(TransferEvaluation.export_id)
        .join(Export, Export.id == TransferEvaluation.export_id)
        .where(TransferEvaluation.run_id == evaluation_id, Export.status.in_(UNFINISHED), _IS_PLAYING)
    )
    for export_id in session.scalars(statement.distinct()).all():
        wake_transfer(session, export_id)


def wake_unfinished_transfers(session: Session) -> None:
    """Wake reports whose time limit has passed, or that wait for no evaluation, for example because it was deleted."""
    for export in session.scalars(select(Export).where(Export.status.in_(UNFINISHED), _IS_PLAYING)).all():
        report = export.transfer_report
        is_late = report is not None and report.is_late(datetime.now(UTC))
        if is_late or all(each.run is None or each.run.status.is_over for each in evaluations_of(session, export.id)):
            wake_transfer(session, export.id)


def wake_transfer(session: Session, export_id: uuid.UUID) -> None:
    """Queue the job unless one is waiting. A running one may have read the rows too early."""
    arguments = {"export_id": str(export_id)}
    is_same = Job.name == TRANSFER_JOB, Job.arguments.contains(arguments)
    waiting = select(Job.id).where(Job.status == JobStatus.QUEUED, *is_same)
    if session.scalar(waiting.limit(1)) is None:
        enqueue(session, TRANSFER_JOB, queue=Queue.CPU, arguments=arguments)


def enqueue_export(session: Session, export: Export) -> None:
    """Queue the job that makes an export, at the end of its report if it has one."""
    enqueue(session, "exports.run", queue=Queue.GPU, arguments={"export_id": str(export.id)})


def evaluations_of(session: Session, export_id: uuid.UUID) -> Sequence[TransferEvaluation]:
    """With their runs, in the order of their start."""
    statement = select(TransferEvaluation).options(joinedload(TransferEvaluation.run))
    statement = statement.where(TransferEvaluation.export_id == export_id).order_by(TransferEvaluation.id)
    return session.scalars(statement).all()


def _choose_versions(
    session: Session, trained: Sequence[EnvironmentVersion], names: Sequence[str]
) -> list[EnvironmentVersion]:
    if not names:
        return default_versions(session, trained)
    chosen: dict[uuid.UUID, EnvironmentVersion] = {}
    for text in names:
        name, _, number = text.strip().partition("@")
        environment = find_environment(session, name)
        if environment is None or (number and not (number.isdecimal() and len(number) < 10)):
            raise InvalidInput(fields={"environments": f"There is no environment {text[:60]!r}."})
        version = next((each for each in trained if each.environment_id == environment.id and not number), None)
        try:  # without a number: the version that it was trained on, else the newest
            version = version or get_version(session, environment, int(number) if number else None)
        except NotFound as error:
            raise InvalidInput(fields={"environments": error.message}) from error
        version.environment = environment
        chosen[version.id] = version
    return list(chosen.values())


def _choose_reference(session: Session, checkpoint: Checkpoint, text: str | None) -> TransferSide:
    """A checkpoint with weights, or another policy that can play. Default: the earliest checkpoint of the run."""
    if not text:
        of_run = select(Checkpoint).where(Checkpoint.run_id == checkpoint.run_id)
        others = of_run.where(Checkpoint.pruned_at.is_(None), Checkpoint.id != checkpoint.id)
        earliest = session.scalars(others.order_by(Checkpoint.created_at, Checkpoint.id).limit(1)).first()
        if earliest is None:
            raise InvalidInput(
                fields={"reference": "The run has no other checkpoint with weights. Choose a reference policy."}
            )
        return _side_of(session, earliest)
    policy = find_policy(session, text)
    if policy is not None and policy.kind is not PolicyKind.LOCAL:
        return _side_of_policy(policy)
    try:
        reference = find_checkpoint(session, policy.name if policy else text)
    except NotFound as error:
        raise InvalidInput(fields={"reference": f"There is no policy or checkpoint {text[:60]!r}."}) from error
    if reference.id == checkpoint.id:
        raise InvalidInput(fields={"reference": "This is the exported checkpoint itself. Choose another one."})
    if reference.unusable:
        raise InvalidInput(fields={"reference": reference.unusable})
    return _side_of(session, reference)


def _side_of(session: Session, checkpoint: Checkpoint) -> TransferSide:
    name = f"{session.get_one(Policy, checkpoint.policy_id).name} {checkpoint.stage} {checkpoint.step}"
    return TransferSide(policy_id=checkpoint.policy_id, checkpoint_id=checkpoint.id, name=name)


def _side_of_policy(policy: Policy) -> TransferSide:
    if policy.deleted_at is not None or policy.kind in {PolicyKind.HUMAN, PolicyKind.EXTERNAL}:
        raise InvalidInput(fields={"reference": f"{policy.name} cannot play evaluations. Choose another policy."})
    return TransferSide(policy_id=policy.id, name=policy.name)
