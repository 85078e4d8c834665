"""Pruning checkpoints: delete their weights from the artifact store, keep their rows and results.

Free of the web, because a training run prunes its own checkpoints.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Select, String, cast, literal, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, joinedload

from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.core.events import announce, topic_of
from backend.core.session import after_commit
from backend.domain.checkpoints.retention import KeepReason, KeepRule, keep_reasons
from backend.domain.studies.study import StudyKind
from backend.domain.training.configuration import STEPPED, Stage, TrainingConfiguration
from backend.domain.vocabulary import UNDER_WAY, ExportStatus, RunKind, RunStatus
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.studies.tables import Study, StudyCheckpoint
from backend.web.audit import Requester, audit

_RESUMABLE = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED)


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """A checkpoint and the reasons to keep its weights."""

    checkpoint: Checkpoint
    reasons: Sequence[KeepReason]

    @property
    def binding(self) -> list[KeepReason]:
        return [reason for reason in self.reasons if reason.is_binding]


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Checkpoints to prune."""

    to_delete: Sequence[CheckpointRetention]
    refused: Sequence[CheckpointRetention] = ()
    """Selected by id, but in use."""

    @property
    def freed_bytes(self) -> int:
        return sum(each.checkpoint.size_bytes for each in self.to_delete)


def rule_of(run: Run | None) -> KeepRule:
    """The retention rule of a run; the default rule if its configuration has none."""
    try:
        return KeepRule.of(TrainingConfiguration.of_run(run.configuration).checkpoints) if run else KeepRule()
    except ValidationError:
        return KeepRule()


def retention_of(
    session: Session, checkpoints: Sequence[Checkpoint], rule: KeepRule | None = None
) -> dict[uuid.UUID, CheckpointRetention]:
    """Why each checkpoint keeps its weights: because of the rule of its run (or `rule`), or because it is in use.

    `checkpoints` must include all checkpoints of each run, which decide which one is the last or the best.
    """
    run_ids = {each.run_id for each in checkpoints if each.run_id}
    runs = {run.id: run for run in session.scalars(select(Run).where(Run.id.in_(run_ids)))} if run_ids else {}
    uses = uses_of(session, [each.id for each in checkpoints])
    of_run: dict[uuid.UUID, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        of_run[checkpoint.run_id or checkpoint.id].append(checkpoint)
    retention: dict[uuid.UUID, CheckpointRetention] = {}
    for run_id, members in of_run.items():
        run = runs.get(run_id)
        for member, reasons in zip(members, keep_reasons(members, rule or rule_of(run)), strict=True):
            # a stage starts from the checkpoint of the stage before; later stages resume from their latest state
            is_resumed_from = run is not None and run.status in _RESUMABLE and member.stage not in STEPPED
            resume = [KeepReason.RESUME] if is_resumed_from else []
            retention[member.id] = CheckpointRetention(member, [*reasons, *resume, *sorted(uses[member.id])])
    return retention


def retention_with_siblings(session: Session, selected: Sequence[Checkpoint]) -> dict[uuid.UUID, CheckpointRetention]:
    """`retention_of` these checkpoints and of all others of their runs."""
    of_runs = Checkpoint.run_id.in_({each.run_id for each in selected if each.run_id})
    statement = select(Checkpoint).options(joinedload(Checkpoint.policy)).order_by(Checkpoint.id)
    ids = [each.id for each in selected]
    return retention_of(session, session.scalars(statement.where(of_runs | Checkpoint.id.in_(ids))).all())


def uses_of(session: Session, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, set[KeepReason]]:
    """How each checkpoint is used: exports, evaluations, studies, branches, adapters and running episodes."""
    uses: dict[uuid.UUID, set[KeepReason]] = defaultdict(set)
    if not ids:
        return uses

    def used(
        reason: KeepReason,
        column: InstrumentedAttribute[uuid.UUID] | InstrumentedAttribute[uuid.UUID | None],
        *conditions: ColumnElement[bool],
    ) -> Select[uuid.UUID | None, str]:
        return select(column, literal(reason.name)).where(column.in_(ids), *conditions)

    is_training = Run.kind == RunKind.TRAINING
    branch, adapter = aliased(Run), aliased(Checkpoint)
    statement = union(
        used(
            KeepReason.EXPORTED, Export.checkpoint_id, Export.status.not_in((ExportStatus.REFUSED, ExportStatus.FAILED))
        ),
        used(KeepReason.BRANCHED, Run.checkpoint_id, is_training),
        used(KeepReason.EVALUATED, Run.checkpoint_id, ~is_training),
        used(KeepReason.STUDIED, StudyCheckpoint.checkpoint_id),
        used(  # any checkpoint in the range of an onset study in progress may be sampled
            KeepReason.STUDIED,
            Checkpoint.id,
            Study.run_id == Checkpoint.run_id,
            Study.kind == StudyKind.ONSET,
            Study.status.in_(UNDER_WAY),
            (Checkpoint.stage != Stage.GRPO) | (Checkpoint.step <= Study.settings["last_step"].as_integer()),
        ),
        used(  # another run branches at this step
            KeepReason.BRANCHED,
            Checkpoint.id,
            branch.source_run_id == Checkpoint.run_id,
            branch.branch_step == Checkpoint.step,
            branch.kind == RunKind.TRAINING,
            Checkpoint.stage == Stage.GRPO,
        ),
        used(  # the base of an adapter that has weights
            KeepReason.BRANCHED,
            Checkpoint.id,
            adapter.adapter["artifact"].astext == Checkpoint.artifact,
            adapter.pruned_at.is_(None),
        ),
    )
    for identifier, reason in session.execute(statement):
        if identifier is not None:
            uses[identifier].add(KeepReason[reason])
    # some runs name checkpoints only in their configuration; a branch also names the start of its source's GRPO
    is_playing = Run.kind.in_((RunKind.PLAY, RunKind.CHECK)) & Run.status.in_(UNDER_WAY)
    is_branch = is_training & Run.branch_step.is_not(None) & Run.status.in_(_RESUMABLE)
    configurations = select(Run.kind, cast(Run.configuration, String)).where(is_playing | is_branch)
    for kind, text in session.execute(configurations):
        for identifier in ids:
            if str(identifier) in text:
                uses[identifier].add(KeepReason.BRANCHED if kind is RunKind.TRAINING else KeepReason.PLAYING)
    return uses


def plan_by_rule(session: Session, *, run_id: uuid.UUID | None, rule: KeepRule | None) -> PrunePlan:
    """Plan to prune the checkpoints that `rule` or the rule of each run does not keep, in one run or in all."""
    statement = select(Checkpoint).join(Checkpoint.policy).options(joinedload(Checkpoint.policy))
    of_runs = Checkpoint.run_id.is_not(None) if run_id is None else Checkpoint.run_id == run_id
    saved = session.scalars(statement.where(Policy.deleted_at.is_(None), of_runs).order_by(Checkpoint.id)).all()
    retention = retention_of(session, saved, rule).values()
    return PrunePlan([each for each in retention if each.checkpoint.pruned_at is None and not each.reasons])


def plan_by_id(session: Session, ids: Sequence[uuid.UUID]) -> PrunePlan:
    """Plan to prune these checkpoints, even if the rule keeps them, except those in use."""
    selected = session.scalars(select(Checkpoint).where(Checkpoint.id.in_(ids)).order_by(Checkpoint.id)).all()
    retention = retention_with_siblings(session, selected)
    stored = [retention[each.id] for each in selected if each.pruned_at is None]
    return PrunePlan([each for each in stored if not each.binding], [each for each in stored if each.binding])


def prune(session: Session, actor: Requester | None, plan: PrunePlan) -> PrunePlan:
    """Delete the weights of a plan and return what was deleted. Checkpoints that came into use are refused."""
    ids = [each.checkpoint.id for each in plan.to_delete]
    rows = session.scalars(
        select(Checkpoint)
        .options(joinedload(Checkpoint.policy))
        .where(Checkpoint.id.in_(ids), Checkpoint.pruned_at.is_(None))
        .order_by(Checkpoint.id)
        .with_for_update(of=Checkpoint)
        .execution_options(populate_existing=True)
    ).all()
    uses = uses_of(session, [row.id for row in rows])
    known = {each.checkpoint.id: set(each.reasons) for each in plan.to_delete}
    deleted, refused = [], list(plan.refused)
    for row in rows:
        own = {KeepReason.MARKED: row.is_kept, KeepReason.BEST: row.is_best}
        since = {reason for reason, holds in own.items() if holds} - known[row.id]
        if holding := sorted(uses[row.id] | since):
            refused.append(CheckpointRetention(row, holding))
            continue
        # the row first: leftover weights only take disk space, but a row must not claim weights that are gone
        row.pruned_at = datetime.now(UTC)
        after_commit(session, partial(artifacts.delete, row.artifact))
        if actor is not None:
            audit(session, actor, "checkpoint.prune", "checkpoint", row.id, bytes=row.size_bytes)
        deleted.append(CheckpointRetention(row, []))
    for run_id in {each.checkpoint.run_id for each in deleted if each.checkpoint.run_id}:
        announce(session, topic_of("run", run_id))
    session.flush()
    return PrunePlan(deleted, refused)


def delete_leftovers(session: Session) -> None:
    """Delete the weights of recently pruned checkpoints that the store did not delete at once."""
    is_recent = Checkpoint.pruned_at > datetime.now(UTC) - timedelta(hours=1)
    for key in session.scalars(select(Checkpoint.artifact).where(is_recent)):
        artifacts.delete(key)


def prune_by_rule(session: Session, run_id: uuid.UUID, rule: KeepRule) -> PrunePlan:
    """Prune the checkpoints of a training run by its rule, as the run does after each checkpoint."""
    return prune(session, None, plan_by_rule(session, run_id=run_id, rule=rule))
