"""The job `rescoring.run`: regrade the stored rollouts of a run, or replay their replies on another version.

A repeated job continues with the stored rows: stored copies are kept, failed ones are replaced. Other weights are
applied inside Postgres. Other rewards need a replay, after proof that the stored rewards can be reproduced.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Double, Text, Uuid, and_, case, cast, column, func, insert, literal, null, select
from sqlalchemy.dialects.postgresql import ARRAY, REAL, array
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from backend.core.session import transaction
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
from workers.environments.client import EnvHost, HostRefused
from workers.rollouts.engine import TooManyFailures
from workers.rollouts.limits import unless_stopped
from workers.rollouts.regrading import ReplayedEpisode, StoredEpisode, environment_columns, replay_episodes
from workers.storage.env_host import open_env_host
from workers.storage.recorder import RunRecorder
from workers.storage.regraded_rollouts import (
    NO_REPLIES,
    RegradedRollout,
    RegradingRule,
    SourceRollout,
    failed_copy,
    needs_conversation,
    regrade_episode,
    replay_episode,
    store_copies,
    store_missing,
)
from workers.storage.regrading import PlayableVersion, RegradingEnd, RegradingWork, SourcePage, claim_regrading
from workers.storage.rollouts import LARGEST_REAL, SMALLEST_REAL
from workers.storage.runs import summarize
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

Replay = Callable[[Sequence[StoredEpisode]], Awaitable[list[ReplayedEpisode]]]
REPLAYED = "The stored replies were replayed. Each rollout shows where it diverges."
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
        if end.status is RunStatus.COMPLETED and counts.rollouts and not counts.completed:
            reason = f"No rollout could be graded. {counts.most_common}"
            end = replace(end, status=RunStatus.FAILED, reason=reason)
        summary = summarize(session, row, seconds=seconds, played=counts.rollouts)
        summary["rescoring"] = {**counts.model_dump(), "grounds": end.grounds}
        finish_run(session, row, end.status, summary, end.reason)
    outcome = f"{counts.rollouts:,} rollouts, {counts.changed:,} with another reward, {counts.failed:,} failed"
    recorder.log(f"{end.status}: {outcome} in {seconds:.1f} s. {end.reason or ''}".strip())
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


class RegradingReplay:
    """One attempt at regrading by another version's rewards, or at a replay."""

    def __init__(self, work: RegradingWork, recorder: RunRecorder, total: int) -> None:
        self.work, self.recorder, self.total = work, recorder, total
        self.done = 0
        self.grounds = REPLAYED
        self.rule = RegradingRule(
            columns=work.target.manifest.column_names,
            version=work.target.name,
            noise=max(version.manifest.proctor.checks.noise for version in (work.own, work.target)),
            accepts_divergence=bool(work.plan.override),
        )

    async def run(self) -> RegradingEnd:
        try:
            end = await unless_stopped(self._run(), self.recorder.should_stop)
        except HostRefused as error:
            return RegradingEnd(RunStatus.FAILED, f"{self.work.target.name} cannot be played: {error}", self.grounds)
        except TooManyFailures as error:
            return RegradingEnd(RunStatus.PAUSED, f"Paused because too many rollouts failed. {error}", self.grounds)
        return end or RegradingEnd(RunStatus.STOPPED, "Stopped on request.", self.grounds)

    async def _run(self) -> RegradingEnd:
        async with open_env_host() as host:
            if self.work.kind is RunKind.RESCORE and (refusal := await self._prove_faithful(host)):
                return RegradingEnd(RunStatus.FAILED, refusal, self.grounds)
            self._report("preparing the environment")
            async with self._replayer(host, self.work.target) as replay:
                await self._play_pages(replay)
        return RegradingEnd(RunStatus.COMPLETED, grounds=self.grounds)

    async def _prove_faithful(self, host: EnvHost) -> str | None:
        """Replay a sample on its own version. Returns why regrading would not be faithful, None if it is or overridden.

        Versions that are not certified must also give the same columns twice.
        """
        work = self.work
        self._report("reproducing the stored rewards")
        sample = await asyncio.to_thread(work.source.sample)
        if not sample:
            return "There is no completed rollout with stored replies."
        try:
            async with self._replayer(host, work.own) as replay:
                replayed = await replay(sample)
        except HostRefused as error:
            is_faithful = work.is_certified
            self.grounds = f"{work.own.name} does not start any more ({error})."
            if is_faithful:
                self.grounds += " The certificates of both versions say that stored episodes earn the same again."
        else:
            same = 0
            for each in replayed:
                stored = environment_columns(work.own.manifest, each.episode.columns)
                same += each.rollout.is_completed and same_columns(stored, each.rollout.columns, self.rule.noise)
            is_faithful = same == len(sample)
            self.grounds = f"{same} of {len(sample)} sampled rollouts gave the stored rewards on {work.own.name}."
            if is_faithful and not work.is_certified and work.own is not work.target:
                async with self._replayer(host, work.target) as replay:
                    first = {each.episode.id: each.rollout for each in await replay(sample)}
                    pairs = [(first[each.episode.id], each.rollout) for each in await replay(sample)]
                twice = sum(
                    one.is_completed
                    and other.is_completed
                    and same_columns(one.columns, other.columns, self.rule.noise)
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
        pages = self.work.source.pages()
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

    def _store(self, page: SourcePage, replayed: Sequence[ReplayedEpisode]) -> None:
        is_replay = self.work.kind is RunKind.REPLAY
        copies: list[RegradedRollout] = []
        if is_replay:
            copies += [replay_episode(each, page.rollouts[each.episode.id], self.rule) for each in replayed]
        else:
            needed = [each.episode.id for each in replayed if needs_conversation(each, self.rule.noise)]
            conversations = self.work.source.conversations(needed) if needed else {}
            for each in replayed:
                messages = conversations.get(each.episode.id)
                copies.append(regrade_episode(each, page.rollouts[each.episode.id], messages, self.rule))
        copies += page.failed
        empty = [page.rollouts[each.id] for each in page.episodes if not each.recorded.steps]
        copies += [failed_copy(source, ErrorKind.POLICY, NO_REPLIES) for source in empty]
        store_copies(self.work.run_id, self.work.target.version_id, copies, is_replay=is_replay)
        self.done += page.read
        self._report("replaying" if is_replay else "regrading")

    @asynccontextmanager
    async def _replayer(self, host: EnvHost, version: PlayableVersion) -> AsyncIterator[Replay]:
        """Serve a version and give a function that replays episodes on it."""
        manifest = version.manifest
        await host.prepare(version.content_hash, version.files)
        async with host.lease(version.content_hash, manifest.proctor.resources) as server:
            yield partial(replay_episodes, server=server, manifest=manifest, concurrency=self.work.plan.concurrency)

    def _report(self, phase: str) -> None:
        self.recorder.progress(phase=phase, done=self.done, total=self.total)
