"""Flags: drafts of the detectors become rows, inside training as over stored runs (the job `judging.detect`)."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import structlog
from sqlalchemy import Row, Text, cast, func, select
from sqlalchemy.dialects.postgresql import JSONPATH, insert
from sqlalchemy.orm import Session

from backend.db.models import Flag, Group, Rollout, Run
from backend.db.session import transaction
from backend.domain.ids import new_id
from backend.domain.text import plain_text
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind
from backend.events import REVIEW, announce, run_topic
from workers.jobs.registry import JobContext
from workers.jobs.rollout_rows import json_text
from workers.judging.detectors.base import FlagDraft
from workers.judging.detectors.view import RolloutRow
from workers.judging.detectors.watch import Watch

logger = structlog.get_logger(__name__)

_JUDGED_PHASE = {RunKind.TRAINING: Phase.TRAIN, RunKind.EVALUATION: Phase.EVALUATION}
"""Rollouts of these phases say something about a policy that could cheat."""


def run(context: JobContext) -> None:
    """Look at every stored step of a run, in order."""
    run_id = context.need_run()
    columns, phase = _about(run_id)
    watch = Watch(columns)
    new = 0
    for step, rows in stored_steps(run_id):
        drafts = watch.look(step, rows)
        if phase is Phase.EVALUATION:
            drafts = [replace(draft, training_step=None) for draft in drafts]
        new += record_flags(run_id, drafts)
    logger.info("looked at a run", steps=len(watch.view.steps), new_flags=new)


def record_flags(run_id: uuid.UUID, drafts: Sequence[FlagDraft]) -> int:
    """Store what was not flagged before; how many are new."""
    if not drafts:
        return 0
    with transaction() as session:
        stored = _stored_rollouts(session, drafts)
        rows = [_row(run_id, draft, stored) for draft in drafts]
        statement = insert(Flag).on_conflict_do_nothing(index_elements=["run_id", "detector", "key"])
        new = session.scalars(statement.returning(Flag.id), rows).all()
        if new:
            announce(session, run_topic(run_id), REVIEW)
    return len(new)


def resume_watch(run_id: uuid.UUID, *, before_step: int) -> Watch:
    """A watch that has seen the stored training steps before this one, and says nothing about them again."""
    columns, _ = _about(run_id)
    watch = Watch(columns)
    for step, rows in stored_steps(run_id):
        if step < before_step:
            watch.view.add(step, rows)
    return watch


def stored_steps(run_id: uuid.UUID) -> Iterator[tuple[int, list[RolloutRow]]]:
    """The completed rollouts of each training step; an evaluation is one step. Each step is read by itself."""
    columns, phase = _about(run_id)
    if phase is None:
        return
    with transaction() as session:
        steps = session.scalars(
            select(Rollout.training_step)
            .where(Rollout.run_id == run_id, Rollout.phase == phase)
            .distinct()
            .order_by(Rollout.training_step)
        ).all()
    for step in steps:
        with transaction() as session:
            rows = [_rollout_row(found, columns) for found in _read_step(session, run_id, phase, step)]
        yield step or 0, rows


def _about(run_id: uuid.UUID) -> tuple[list[str], Phase | None]:
    with transaction() as session:
        row = session.get_one(Run, run_id)
        return list(row.columns), _JUDGED_PHASE.get(row.kind)


def _read_step(session: Session, run_id: uuid.UUID, phase: Phase, step: int | None) -> Sequence[Row[Any]]:
    replies = func.jsonb_path_query_array(Rollout.steps, cast("$[*].reply", JSONPATH))
    statement = (
        select(
            Rollout.id,
            cast(Rollout.group_id, Text).label("group"),
            cast(Group.task_id, Text).label("task"),
            Rollout.reward,
            Rollout.columns,
            replies.label("replies"),
            Rollout.tokens_out,
            Rollout.stop_reason,
        )
        .join(Group, Group.id == Rollout.group_id)
        .where(
            Rollout.run_id == run_id,
            Rollout.phase == phase,
            Rollout.training_step.is_not_distinct_from(step),
            Rollout.status == RolloutStatus.COMPLETED,
        )
        .order_by(Rollout.seq)
    )
    return session.execute(statement).all()


def _rollout_row(found: Row[Any], columns: Sequence[str]) -> RolloutRow:
    return RolloutRow(
        id=found.id,
        group=found.group,
        task=found.task,
        reward=found.reward,
        columns=dict(zip(columns, found.columns, strict=True)),
        replies=tuple(found.replies),
        tokens_out=found.tokens_out,
        stop_reason=found.stop_reason,
    )


def _stored_rollouts(session: Session, drafts: Sequence[FlagDraft]) -> set[uuid.UUID]:
    named = {draft.rollout_id for draft in drafts if draft.rollout_id}
    return set(session.scalars(select(Rollout.id).where(Rollout.id.in_(named)))) if named else set()


def _row(run_id: uuid.UUID, draft: FlagDraft, stored: set[uuid.UUID]) -> dict[str, Any]:
    """A flag about a rollout that is not stored is a flag about its run."""
    return {
        "id": new_id(),
        "run_id": run_id,
        "rollout_id": draft.rollout_id if draft.rollout_id in stored else None,
        "detector": draft.detector,
        "key": draft.key[:120],
        "severity": draft.severity,
        "score": draft.score,
        "sentence": plain_text(draft.sentence),
        "evidence": orjson.loads(json_text(draft.evidence)),
        "training_step": draft.training_step,
    }
