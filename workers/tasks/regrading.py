"""The job `rescoring.run`: regrade the stored rollouts of a run, or replay their replies on another version.

A repeated job continues with the stored rows: stored copies are kept, failed ones are replaced. Other weights are
applied here, inside Postgres; replays are in `workers.tasks.replays`.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import structlog
from sqlalchemy import Double, Text, Uuid, and_, case, cast, column, func, insert, literal, null, select
from sqlalchemy.dialects.postgresql import ARRAY, REAL, array
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from backend.core.session import transaction
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.regrading.conclusions import notify_of_history
from backend.rollouts.regrading.history import NothingToRegrade, regrade_history
from backend.rollouts.regrading.queries import count_outcomes
from backend.rollouts.regrading.weights import RewardTerm, apply_weights, list_reward_terms, term_values
from backend.rollouts.tables import Rollout
from backend.runs.service import finish_run
from backend.runs.tables import Run
from backend.web.audit import Requester
from workers.storage.recorder import RunRecorder
from workers.storage.regraded_rollouts import SourceRollout, store_missing
from workers.storage.regrading import RegradingEnd, RegradingWork, claim_regrading
from workers.storage.rollouts import LARGEST_REAL, SMALLEST_REAL
from workers.storage.runs import summarize
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext
from workers.tasks.replays import RegradingReplay

REWEIGHTED = "The stored columns were reweighted; nothing was played."
logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """The job's body."""
    work = claim_regrading(context.need_run())
    if work is None:
        logger.info("the run is already finished")
        return
    began = time.monotonic()
    recorder = RunRecorder(work.run_id)
    total = work.source.count()
    recorder.progress(phase="reading", done=0, total=total)
    end = (
        run_async(RegradingReplay(work, recorder, total).run()) if work.plan.plays else _reweight(work, recorder, total)
    )
    seconds = time.monotonic() - began
    with transaction() as session:
        row = session.get_one(Run, work.run_id)
        counts = count_outcomes(session, work.run_id)
        if end.status is RunStatus.COMPLETED and counts.total and not counts.completed:
            reason = f"No rollout could be graded. {counts.most_common}"
            end = replace(end, status=RunStatus.FAILED, reason=reason)
        summary = summarize(session, row, seconds=seconds, played=counts.total)
        summary["rescoring"] = {**asdict(counts), "grounds": end.grounds}
        finish_run(session, row, end.status, summary, end.reason)
    recorder.log(f"{end.status}: {counts} in {seconds:.1f} s. {end.reason or ''}".strip())
    with transaction() as session:
        notify_of_history(session, session.get_one(Run, work.run_id))


def regrade_published(context: JobContext) -> None:
    """The job `rescoring.history`: regrade the history by a version that was just published. Safe to repeat."""
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, uuid.UUID(context.arguments["version_id"]))
        try:
            regrade_history(session, Requester(uuid.UUID(context.arguments["person_id"])), version)
        except NothingToRegrade:
            return


def _reweight(work: RegradingWork, recorder: RunRecorder, total: int) -> RegradingEnd:
    """Apply other weights page by page. A stop takes effect between two pages."""
    done = 0
    for read, sources in work.source.places():
        if recorder.should_stop():
            return RegradingEnd(RunStatus.STOPPED, "Stopped on request.", REWEIGHTED)
        by_copy = {source.copy_id: source for source in sources}

        def insert_copies(
            session: Session,
            seq: int,
            missing: Sequence[uuid.UUID],
            by_copy: dict[uuid.UUID, SourceRollout] = by_copy,
        ) -> None:
            terms = list_reward_terms(session, session.get_one(Run, work.source.source_id))
            weighted = apply_weights(terms, work.weights)
            values = _copied_columns([by_copy[copy] for copy in missing], seq, weighted, work.run_id)
            session.execute(insert(Rollout).from_select(list(values), select(*values.values())))

        store_missing(work.run_id, work.target.version_id, sources, insert_copies)
        done += read
        recorder.progress(phase="reweighting", done=done, total=total)
    return RegradingEnd(RunStatus.COMPLETED, grounds=REWEIGHTED)


def _copied_columns(
    sources: Sequence[SourceRollout], seq: int, terms: Sequence[RewardTerm], run_id: uuid.UUID
) -> dict[str, ColumnElement[Any]]:
    """The value of each column of the new rows; the conversation and everything else as in the source.

    The copy of a failed rollout fails too. A rollout without a judge's score fails; it is not a zero.
    """
    new_and_old = [
        [each.copy_id for each in sources],
        [each.id for each in sources],
        [each.group.copy_id for each in sources],
    ]
    arrays = func.unnest(*(cast(literal(each, ARRAY(Uuid)), ARRAY(Uuid)) for each in new_and_old))
    id_columns = [column(name, Uuid) for name in ("id", "source_id", "group_id")]
    table = arrays.table_valued(*id_columns, with_ordinality="place", name="n").render_derived()
    number = (table.c.place + (seq - 1)).label("seq")
    ids = select(table.c.id, table.c.source_id, table.c.group_id, number).cte("n")
    old = Rollout.__table__.alias("s")
    values, joins = term_values(old.c, terms)
    is_scored = and_(old.c.status == RolloutStatus.COMPLETED, *(value.is_not(None) for value in values))
    had_failed = old.c.status == RolloutStatus.FAILED

    reward: ColumnElement[float] = cast(literal(0.0), Double)
    for value, term in zip(values, terms, strict=True):
        reward = reward + cast(literal(term.weight), Double) * value
    # Postgres refuses numbers that four bytes cannot hold instead of rounding them.
    largest = cast(literal(LARGEST_REAL), Double)
    inside = func.greatest(func.least(reward, largest), -largest)
    bounded = case((func.abs(reward) < SMALLEST_REAL, cast(literal(0.0), Double)), else_=inside)

    names = (case((value.is_(None), term.name)) for value, term in zip(values, terms, strict=True))
    no_score = func.concat("No score of ", func.concat_ws(", ", *names), " for this rollout.")
    failed_before = func.concat("The source rollout failed: ", func.coalesce(old.c.error_message, "no message"))
    columns: dict[str, ColumnElement[Any]] = {
        **{c.name: c for c in old.columns if c.name != "created_at"},
        "id": ids.c.id,
        "run_id": literal(run_id, Uuid),
        "group_id": ids.c.group_id,
        "seq": ids.c.seq,
        "source_id": ids.c.source_id,
        "phase": literal(str(Phase.EVALUATION), Text),
        "status": case((is_scored, str(RolloutStatus.COMPLETED)), else_=str(RolloutStatus.FAILED)),
        "attempts": literal(1),
        "reward": case((is_scored, cast(bounded, REAL))),
        "columns": case((is_scored, cast(array(values), ARRAY(REAL)))),
        "advantage": cast(null(), REAL),
        "is_demonstration": literal(False),
        "error_kind": case((is_scored, null()), (had_failed, old.c.error_kind), else_=str(ErrorKind.JUDGE)),
        "error_message": case((is_scored, null()), (had_failed, failed_before), else_=no_score),
    }
    # Every join uses an index: without statistics of a young run Postgres may choose nested loops, which is fine.
    joined = ids.join(old, old.c.id == ids.c.source_id)
    for grade, is_of_term in joins:
        joined = joined.outerjoin(grade, is_of_term)
    rows = select(*(value.label(name) for name, value in columns.items())).select_from(joined).subquery()
    return {name: rows.c[name] for name in columns}
