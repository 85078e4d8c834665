"""The job `rescoring.run`: regrade the stored rollouts of a run, or replay their replies on another version.

A repeated job continues with the stored rows: stored copies are kept, failed ones are replaced. Other weights are
applied inside Postgres. Other rewards need a replay, after proof that the stored rewards can be reproduced.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Double, Text, Uuid, and_, case, cast, column, func, insert, literal, null, select
from sqlalchemy.dialects.postgresql import ARRAY, REAL, array
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from backend.core.session import transaction
from backend.domain.environments.manifest import PLATFORM_COLUMNS
from backend.domain.rollouts.divergence import same_columns
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.regrading.history import NothingToRegrade, notify_of_history, regrade_history
from backend.rollouts.regrading.queries import count_outcomes
from backend.rollouts.regrading.weights import RewardTerm, apply_weights, list_reward_terms, term_values
from backend.rollouts.tables import Rollout
from backend.runs.service import finish_run
from backend.runs.tables import Run
from backend.web.audit import Requester
from workers.environments.client import HostRefused
from workers.rollouts.engine import ReplayedEpisode, StoredEpisode, TooManyFailures, replay_episodes
from workers.rollouts.limits import unless_stopped
from workers.storage import regrading
from workers.storage.env_host import serve
from workers.storage.recorder import RunRecorder
from workers.storage.rollouts import LARGEST_REAL, SMALLEST_REAL
from workers.storage.runs import summarize
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

Replay = Callable[[Sequence[StoredEpisode]], Awaitable[list[ReplayedEpisode]]]

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """The job's body."""
    work = regrading.claim_regrading(context.need_run())
    if work is None:
        logger.info("the run is already finished")
        return
    began = time.monotonic()
    recorder = RunRecorder(work.run_id)
    total = work.count()
    recorder.progress(phase="reading", done=0, total=total)
    end: tuple[RunStatus, str | None] | None
    if work.plan.plays:
        replay = RegradingReplay(work, recorder, total)
        try:
            end = run_async(unless_stopped(replay.run(), recorder.should_stop))
        except HostRefused as error:
            end = RunStatus.FAILED, f"{work.target.name} cannot be played: {error}"
        except TooManyFailures as error:
            end = RunStatus.PAUSED, f"Paused because too many rollouts failed. {error}"
        grounds = replay.grounds
    else:
        grounds = "The stored columns were reweighted; nothing was played."
        end = (RunStatus.COMPLETED, None) if _reweight(work, recorder, total) else None
    status, reason = end or (RunStatus.STOPPED, "Stopped on request.")
    seconds = time.monotonic() - began
    with transaction() as session:
        row = session.get_one(Run, work.run_id)
        counts = count_outcomes(session, work.run_id)
        if status is RunStatus.COMPLETED and counts.rollouts and not counts.completed:
            status, reason = RunStatus.FAILED, f"No rollout could be graded. {counts.most_common}"
        summary = summarize(session, row, seconds=seconds, played=counts.rollouts)
        summary["rescoring"] = {**counts.model_dump(), "grounds": grounds}
        finish_run(session, row, status, summary, reason)
    outcome = f"{counts.rollouts:,} rollouts, {counts.changed:,} with another reward, {counts.failed:,} failed"
    recorder.log(f"{status}: {outcome} in {seconds:.1f} s. {reason or ''}".strip())
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


def _reweight(work: regrading.RegradingWork, recorder: RunRecorder, total: int) -> bool:
    """Apply other weights page by page. False if it was stopped, which takes effect between two pages."""

    def insert_copies(session: Session, seq: int, missing: Sequence[regrading.SourceRollout]) -> None:
        weighted = apply_weights(list_reward_terms(session, session.get_one(Run, work.source_id)), work.weights)
        values = _copied_columns(missing, seq, weighted, work.run_id)
        session.execute(insert(Rollout).from_select(list(values), select(*values.values())))

    done = 0
    for read, sources in work.places():
        if recorder.should_stop():
            return False
        regrading.store_missing(work, sources, insert_copies)
        done += read
        recorder.progress(phase="reweighting", done=done, total=total)
    return True


def _copied_columns(
    sources: Sequence[regrading.SourceRollout], seq: int, terms: Sequence[RewardTerm], run_id: uuid.UUID
) -> dict[str, ColumnElement[Any]]:
    """The value of each column of the new rows; the conversation and everything else as in the source.

    The copy of a failed rollout fails too. A rollout without a judge's score fails; it is not a zero.
    """
    new_and_old = zip(*((each.copy_id, each.id, each.group_copy_id) for each in sources), strict=True)
    arrays = func.unnest(*(cast(literal(list(ids), ARRAY(Uuid)), ARRAY(Uuid)) for ids in new_and_old))
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


@dataclass(slots=True)
class RegradingReplay:
    """One attempt at regrading by another version's rewards, or at a replay."""

    work: regrading.RegradingWork
    recorder: RunRecorder
    total: int
    done: int = 0
    grounds: str = "The stored replies were replayed. Each rollout shows where it diverges."

    async def run(self) -> tuple[RunStatus, str | None]:
        if self.work.kind is RunKind.RESCORE and (refusal := await self._prove_faithful()):
            return RunStatus.FAILED, refusal
        self.recorder.progress(phase="preparing the environment", done=self.done, total=self.total)
        async with self._replayer(self.work.target) as replay:
            await self._play_pages(replay)
        return RunStatus.COMPLETED, None

    async def _prove_faithful(self) -> str | None:
        """Replay a sample on its own version. Returns why regrading would not be faithful, None if it is or overridden.

        Versions that are not certified must also give the same columns twice.
        """
        work = self.work
        self.recorder.progress(phase="reproducing the stored rewards", done=self.done, total=self.total)
        sample = await asyncio.to_thread(work.sample)
        if not sample:
            return "There is no completed rollout with stored replies."
        try:
            async with self._replayer(work.own) as replay:
                replayed = await replay(sample)
        except HostRefused as error:
            is_faithful = work.is_certified
            self.grounds = f"{work.own.name} does not start any more ({error})."
            if is_faithful:
                self.grounds += " The certificates of both versions say that stored episodes earn the same again."
        else:
            same = 0
            # the platform's own columns follow from the conversation
            names = set(work.own.manifest.column_names) - set(PLATFORM_COLUMNS)
            for each in replayed:
                stored = {name: value for name, value in each.episode.columns.items() if name in names}
                same += each.rollout.is_completed and same_columns(stored, each.rollout.columns, work.noise)
            is_faithful = same == len(sample)
            self.grounds = f"{same} of {len(sample)} sampled rollouts gave the stored rewards on {work.own.name}."
            if is_faithful and not work.is_certified and work.own is not work.target:
                async with self._replayer(work.target) as replay:
                    first = {each.episode.id: each.rollout for each in await replay(sample)}
                    pairs = [(first[each.episode.id], each.rollout) for each in await replay(sample)]
                twice = sum(
                    one.is_completed and other.is_completed and same_columns(one.columns, other.columns, work.noise)
                    for one, other in pairs
                )
                is_faithful = twice == len(sample)
                self.grounds += f" {twice} of {len(sample)} gave the same rewards twice on {work.target.name}."
        await asyncio.to_thread(self.recorder.log, self.grounds, "info" if is_faithful else "warning")
        if is_faithful or work.plan.override:
            return None
        return f"Not regraded, because it would not be faithful. {self.grounds} Give a reason to continue, or replay."

    async def _play_pages(self, replay: Replay) -> None:
        """Play a page while the page before it is stored and the next one is read."""
        pages = self.work.pages()
        reading = asyncio.create_task(asyncio.to_thread(next, pages, None))
        storing: asyncio.Task[None] | None = None
        try:
            while page := await reading:
                reading = asyncio.create_task(asyncio.to_thread(next, pages, None))
                replayed = await replay(page.episodes)
                if storing is not None:
                    await storing
                storing = asyncio.create_task(asyncio.to_thread(self._store, page, replayed))
        finally:
            if storing is not None:
                await storing
            await asyncio.gather(reading, return_exceptions=True)

    def _store(self, page: regrading.SourcePage, replayed: Sequence[ReplayedEpisode]) -> None:
        empty = [page.rollouts[each.id] for each in page.episodes if not each.recorded.steps]
        no_replies = "This rollout has no stored replies, so it cannot be replayed."
        copies = [
            *regrading.regrade_episodes(self.work, replayed, page.rollouts),
            *page.failed,
            *(regrading.failed_copy(source, ErrorKind.POLICY, no_replies) for source in empty),
        ]
        regrading.store_copies(self.work, copies)
        self.done += page.read
        phase = "replaying" if self.work.kind is RunKind.REPLAY else "regrading"
        self.recorder.progress(phase=phase, done=self.done, total=self.total)

    @asynccontextmanager
    async def _replayer(self, version: regrading.PlayableVersion) -> AsyncIterator[Replay]:
        """Serve a version and give a function that replays episodes on it."""
        manifest = version.manifest
        async with serve(version.content_hash, version.files, manifest) as server:
            yield partial(replay_episodes, server=server, manifest=manifest, concurrency=self.work.plan.concurrency)
