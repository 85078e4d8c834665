"""Pruning checkpoints: their weights go from the artifact store, their rows and figures stay.

Free of the web, because a training run prunes by its rule while it goes on.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Select, String, cast, select
from sqlalchemy.orm import Session, aliased, joinedload

from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.core.events import announce, run_topic
from backend.core.session import after_commit
from backend.domain.checkpoints.retention import KeepReason, KeepRule, keep_reasons
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.vocabulary import UNDER_WAY, ExportStatus, RunKind, RunStatus
from backend.policies.tables import Policy
from backend.runs.notes import Asker, note
from backend.runs.tables import Run
from backend.studies.tables import EffortSide, OnsetSample, OnsetSearch

LATELY = timedelta(hours=1)
_NOT_EXPORTED = (ExportStatus.REFUSED, ExportStatus.FAILED)
_GOES_ON = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED)
_PLAYING = Run.kind.in_((RunKind.PLAY, RunKind.CHECK)) & Run.status.in_(UNDER_WAY)
_BRANCHES = (Run.kind == RunKind.TRAINING) & Run.branch_step.is_not(None) & Run.status.in_(_GOES_ON)
"""These name checkpoints in their configuration only; a branch also the one that its source's GRPO began with."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A checkpoint and why it keeps its weights."""

    checkpoint: Checkpoint
    reasons: Sequence[KeepReason]

    @property
    def binding(self) -> list[KeepReason]:
        return [reason for reason in self.reasons if reason.is_binding]

    @property
    def words(self) -> str:
        return ", ".join(reason.words for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a pruning would do."""

    going: Sequence[Weighed]
    """Weights that would be deleted."""
    refused: Sequence[Weighed]
    """Asked for by id, but something holds them."""

    @property
    def freed_bytes(self) -> int:
        return sum(each.checkpoint.size_bytes for each in self.going)


def rule_of(run: Run | None) -> KeepRule:
    """The run's own rule; the default one where its configuration says nothing of it."""
    try:
        return KeepRule.of(TrainingConfiguration.of_run(run.configuration).checkpoints) if run else KeepRule()
    except ValidationError:
        return KeepRule()


def weigh(
    session: Session, checkpoints: Sequence[Checkpoint], rule: KeepRule | None = None
) -> dict[uuid.UUID, Weighed]:
    """Why each checkpoint keeps its weights: by its run's rule (or the one that is given) and by what uses it.

    All checkpoints of a run must be among them: what is last or best is known only beside the others.
    """
    runs = _runs(session, {each.run_id for each in checkpoints if each.run_id})
    uses = uses_of(session, [each.id for each in checkpoints])
    of_run: dict[uuid.UUID, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        of_run[checkpoint.run_id or checkpoint.id].append(checkpoint)
    weighed: dict[uuid.UUID, Weighed] = {}
    for run_id, members in of_run.items():
        run = runs.get(run_id)
        for member, reasons in zip(members, keep_reasons(members, rule or rule_of(run)), strict=True):
            resume = [KeepReason.RESUME] if _resumes_from(run, member) else []
            weighed[member.id] = Weighed(member, [*reasons, *resume, *sorted(uses[member.id])])
    return weighed


def _runs(session: Session, ids: set[uuid.UUID]) -> dict[uuid.UUID, Run]:
    return {run.id: run for run in session.scalars(select(Run).where(Run.id.in_(ids)))} if ids else {}


def _resumes_from(run: Run | None, checkpoint: Checkpoint) -> bool:
    """GRPO goes on from the trainer's own states; each stage begins with the checkpoint of the one before."""
    return run is not None and run.status in _GOES_ON and checkpoint.stage != Stage.GRPO


def uses_of(session: Session, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, set[KeepReason]]:
    """What was made of each checkpoint, and what plays with it now."""
    uses: dict[uuid.UUID, set[KeepReason]] = defaultdict(set)
    if not ids:
        return uses
    exported = select(Export.checkpoint_id).where(Export.checkpoint_id.in_(ids), Export.status.not_in(_NOT_EXPORTED))
    for identifier in session.scalars(exported):
        uses[identifier].add(KeepReason.EXPORTED)
    started = select(Run.checkpoint_id, Run.kind).where(Run.checkpoint_id.in_(ids)).distinct()
    for used, kind in session.execute(started):
        if used is not None:
            uses[used].add(KeepReason.BRANCHED if kind is RunKind.TRAINING else KeepReason.EVALUATED)
    for studied in (*_studied(ids), _searched(ids)):
        for identifier in session.scalars(studied):
            uses[identifier].add(KeepReason.STUDIED)
    for identifier in session.scalars(_branched(ids)):
        uses[identifier].add(KeepReason.BRANCHED)
    for identifier in session.scalars(_bases(ids)):
        uses[identifier].add(KeepReason.BRANCHED)
    for condition, reason in ((_PLAYING, KeepReason.PLAYING), (_BRANCHES, KeepReason.BRANCHED)):
        for identifier in _named(session, condition, ids):
            uses[identifier].add(reason)
    return uses


def _studied(ids: Sequence[uuid.UUID]) -> Iterable[Select[uuid.UUID]]:
    """Checkpoints that were sampled or scored, or are waiting to be."""
    for rows in (OnsetSample, EffortSide):
        yield select(Checkpoint.id).join(rows, rows.checkpoint_id == Checkpoint.id).where(Checkpoint.id.in_(ids))


def _searched(ids: Sequence[uuid.UUID]) -> Select[uuid.UUID]:
    """Checkpoints among which an onset is searched for: until it is found, any of them may be sampled."""
    is_offered = (Checkpoint.stage != Stage.GRPO) | (Checkpoint.step <= OnsetSearch.last_step)
    return (
        select(Checkpoint.id)
        .join(OnsetSearch, OnsetSearch.run_id == Checkpoint.run_id)
        .where(Checkpoint.id.in_(ids), OnsetSearch.status.in_(UNDER_WAY), is_offered)
    )


def _branched(ids: Sequence[uuid.UUID]) -> Select[uuid.UUID]:
    """Checkpoints at whose step another training run branched off."""
    branch = aliased(Run)
    return (
        select(Checkpoint.id)
        .join(branch, (branch.source_run_id == Checkpoint.run_id) & (branch.branch_step == Checkpoint.step))
        .where(Checkpoint.id.in_(ids), Checkpoint.stage == Stage.GRPO, branch.kind == RunKind.TRAINING)
    )


def _bases(ids: Sequence[uuid.UUID]) -> Select[uuid.UUID]:
    """Checkpoints that adapters with weights were trained beside: without them these are nothing."""
    other = aliased(Checkpoint)
    return (
        select(Checkpoint.id)
        .join(other, other.adapter["artifact"].astext == Checkpoint.artifact)
        .where(Checkpoint.id.in_(ids), other.pruned_at.is_(None))
        .distinct()
    )


def _named(session: Session, condition: ColumnElement[bool], ids: Iterable[uuid.UUID]) -> Iterable[uuid.UUID]:
    """Checkpoints that such runs name in what they were told."""
    texts = session.scalars(select(cast(Run.configuration, String)).where(condition)).all()
    return [identifier for identifier in ids if any(str(identifier) in text for text in texts)]


def plan_by_rule(session: Session, *, run_id: uuid.UUID | None, rule: KeepRule | None) -> PrunePlan:
    """What has no reason to keep its weights: in one run or in all, by each run's own rule or another one."""
    weighed = weigh(session, _saved(session, run_id), rule)
    return PrunePlan([each for each in weighed.values() if _has_weights(each) and not each.reasons], [])


def plan_by_hand(session: Session, ids: Sequence[uuid.UUID]) -> PrunePlan:
    """These ones, but for those that something holds. What only the rule keeps goes."""
    with_policy = select(Checkpoint).options(joinedload(Checkpoint.policy)).order_by(Checkpoint.id)
    asked = session.scalars(with_policy.where(Checkpoint.id.in_(ids))).all()
    of_runs = Checkpoint.run_id.in_({each.run_id for each in asked if each.run_id})
    weighed = weigh(session, session.scalars(with_policy.where(of_runs | Checkpoint.id.in_(ids))).all())
    wanted = [weighed[each.id] for each in asked if each.pruned_at is None]
    return PrunePlan([each for each in wanted if not each.binding], [each for each in wanted if each.binding])


def _saved(session: Session, run_id: uuid.UUID | None) -> Sequence[Checkpoint]:
    statement = (
        select(Checkpoint).join(Checkpoint.policy).options(joinedload(Checkpoint.policy)).order_by(Checkpoint.id)
    )
    statement = statement.where(Policy.deleted_at.is_(None))
    if run_id is not None:
        statement = statement.where(Checkpoint.run_id == run_id)
    else:  # what no run holds is nobody's to judge by a rule
        statement = statement.where(Checkpoint.run_id.is_not(None))
    return session.scalars(statement).all()


def _has_weights(weighed: Weighed) -> bool:
    return weighed.checkpoint.pruned_at is None


def prune(session: Session, actor: Asker | None, plan: PrunePlan) -> PrunePlan:
    """Carry the plan out. What came into use since it was made stays, and is told as refused."""
    ids = [each.checkpoint.id for each in plan.going]
    rows = session.scalars(
        select(Checkpoint)
        .options(joinedload(Checkpoint.policy))
        .where(Checkpoint.id.in_(ids), Checkpoint.pruned_at.is_(None))
        .order_by(Checkpoint.id)
        .with_for_update(of=Checkpoint)
        .execution_options(populate_existing=True)
    ).all()
    uses = uses_of(session, [row.id for row in rows])
    known = {each.checkpoint.id: set(each.reasons) for each in plan.going}
    going, refused = [], list(plan.refused)
    for row in rows:
        of_row = {KeepReason.MARKED: row.is_kept, KeepReason.BEST: row.is_best}
        since = {reason for reason, holds in of_row.items() if holds} - known[row.id]
        if holding := sorted(uses[row.id] | since):
            refused.append(Weighed(row, holding))
        else:
            _let_go(session, actor, row)
            going.append(Weighed(row, []))
    for run_id in {each.checkpoint.run_id for each in going if each.checkpoint.run_id}:
        announce(session, run_topic(run_id))
    session.flush()
    return PrunePlan(going, refused)


def _let_go(session: Session, actor: Asker | None, row: Checkpoint) -> None:
    """The row says so first: weights that are still there are only disk, a row without weights would be a lie."""
    row.pruned_at = datetime.now(UTC)
    key = row.artifact
    after_commit(session, lambda: artifacts.delete(key))
    if actor is not None:
        note(session, actor, "checkpoint.prune", "checkpoint", row.id, bytes=row.size_bytes)


def delete_leftovers(session: Session) -> None:
    """Weights of checkpoints that were pruned lately, where the store did not delete them at once."""
    lately = Checkpoint.pruned_at > datetime.now(UTC) - LATELY
    for key in session.scalars(select(Checkpoint.artifact).where(lately)):
        artifacts.delete(key)


def prune_by_rule(session: Session, run_id: uuid.UUID, rule: KeepRule) -> PrunePlan:
    """What a training run does of itself after each checkpoint."""
    return prune(session, None, plan_by_rule(session, run_id=run_id, rule=rule))


def mark_kept(session: Session, actor: Asker, checkpoint: Checkpoint, *, is_kept: bool) -> None:
    """A person's mark: no rule and no hand prunes it until the mark is taken away."""
    checkpoint.is_kept = is_kept
    note(session, actor, "checkpoint.keep" if is_kept else "checkpoint.release", "checkpoint", checkpoint.id)
    if checkpoint.run_id:
        announce(session, run_topic(checkpoint.run_id))
    session.flush()
