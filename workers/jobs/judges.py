"""The jobs `judging.judge` (one judge looks at a run's rollouts) and `judging.ask` (at one, to try it).

A judging goes on where the rows stand: completed judgements stay, failed ones are asked for again, nothing is doubled.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy.orm import Session

from backend.db.models import Run
from backend.db.session import transaction
from backend.domain.judging_record import CanaryReport, JudgingRecord
from backend.domain.vocabulary import RunStatus, Severity
from backend.judging.judge_queries import record_of
from backend.judging.judges_service import change_record
from backend.queue import keep_answer
from workers.jobs import judge_rows
from workers.jobs.judge_rows import Appointed
from workers.jobs.judging import record_flags
from workers.jobs.loops import run_async
from workers.jobs.registry import JobContext
from workers.judging.detectors.base import FlagDraft
from workers.judging.judge import Judge, Judged, make_judge
from workers.rollouts.stopping import unless_stopped

CHUNK = 64
"""Rollouts read at a time."""
STORE_SECONDS = 0.5
WINDOW, AT_LEAST, SHARE = 40, 8, 0.5
"""More than this share of the last judgements failed: it pauses."""

logger = structlog.get_logger(__name__)


class TooManyFailures(Exception):
    """Most of the recent judgements failed."""


def judge(context: JobContext) -> None:
    """The job's body."""
    work = _take_up(context)
    if work is not None:
        run_async(work.go())


def ask(context: JobContext) -> None:
    """Try a judge on one rollout; the page that asked reads the answer from the job's row."""
    appointed = judge_rows.appoint(uuid.UUID(context.arguments["judge_id"]))
    facts = judge_rows.facts_of([uuid.UUID(context.arguments["rollout_id"])])
    if not facts:
        answer: dict[str, Any] = {"error": "The rollout is gone."}
    else:
        answer = run_async(_ask_once(appointed, facts[0]))
    with transaction() as session:
        keep_answer(session, context.job_id, answer)


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again: nobody shall wait for ever."""
    run = session.get(Run, uuid.UUID(context.arguments["run_id"])) if "run_id" in context.arguments else None
    if run is None:
        keep_answer(session, context.job_id, {"error": error})
        return

    def fail(record: JudgingRecord) -> None:
        record.status, record.reason, record.ended_at = RunStatus.FAILED, error, datetime.now(UTC)

    change_record(session, run, uuid.UUID(context.arguments["judge_id"]), fail)


async def _ask_once(appointed: Appointed, facts: judge_rows.Case) -> dict[str, Any]:
    judge = make_judge(appointed.configuration, appointed.kind, appointed.policy, appointed.secret)
    try:
        judged = await judge.judge(facts.facts)
    finally:
        await judge.aclose()
    return {
        "score": judged.score,
        "spread": judged.spread,
        "error": judged.error,
        "seconds": judged.seconds,
        "tokens_in": judged.tokens_in,
        "tokens_out": judged.tokens_out,
        "cost": judged.cost,
        "repeats": [
            {"messages": each.question.messages, "replies": each.replies, "verdict": stored}
            for each, stored in zip(judged.answered, judged.verdicts, strict=True)
        ],
    }


def _take_up(context: JobContext) -> "_Judging | None":
    """None when there is nothing to do (any more)."""
    run_id, judge_id = uuid.UUID(context.arguments["run_id"]), uuid.UUID(context.arguments["judge_id"])
    appointed = judge_rows.appoint(judge_id)
    with transaction() as session:
        run = session.get(Run, run_id)
        record = record_of(run, judge_id) if run else None
        if run is None or record is None or record.job_id != str(context.job_id) or record.status.is_over:
            return None
        wanted, missing = judge_rows.to_judge(session, run, judge_id, record.where)

        def begin(now: JudgingRecord) -> None:
            now.status, now.total, now.reason = RunStatus.RUNNING, wanted, None
            now.started_at = now.started_at or datetime.now(UTC)

        change_record(session, run, judge_id, begin)
    return _Judging(run_id, appointed, missing)


@dataclass(slots=True)
class _Judging:
    """One attempt at it."""

    run_id: uuid.UUID
    appointed: Appointed
    missing: Sequence[uuid.UUID]
    unstored: list[tuple[uuid.UUID, Judged]] = field(default_factory=list)
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Why, of those that failed; empty for the others."""
    done: int = 0

    async def go(self) -> None:
        chosen = self.appointed
        judge = make_judge(chosen.configuration, chosen.kind, chosen.policy, chosen.secret)
        began = time.monotonic()
        try:
            status, reason = await self._outcome(judge)
        finally:
            await judge.aclose()
            await asyncio.to_thread(self._store)
        logger.info("judged", status=str(status), rollouts=self.done, seconds=round(time.monotonic() - began, 1))
        await asyncio.to_thread(self._end, status, reason)

    async def _outcome(self, judge: Judge) -> tuple[RunStatus, str | None]:
        try:
            finished = await unless_stopped(self._work(judge), self._should_stop)
        except TooManyFailures as error:
            return RunStatus.PAUSED, f"Paused because too much failed. {error}"
        return (RunStatus.COMPLETED, None) if finished else (RunStatus.STOPPED, "Stopped on request.")

    async def _work(self, judge: Judge) -> bool:
        if not self.missing:
            return True
        await self._try_canaries(judge)
        cases = self._cases()
        lanes = min(self.appointed.concurrency, len(self.missing))
        storing = asyncio.create_task(self._keep_storing())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(self._lane(judge, cases))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
        return True

    async def _lane(self, judge: Judge, cases: "_Cases") -> None:
        while (case := await cases.next()) is not None:
            judged = await judge.judge(case.facts, seed=case.seed)
            self.unstored.append((case.rollout_id, judged))
            self.done += 1
            self._watch(judged)

    def _cases(self) -> "_Cases":
        return _Cases(self.missing)

    def _watch(self, judged: Judged) -> None:
        """The circuit breaker."""
        self.recent.append(judged.error)
        failed = [error for error in self.recent if error]
        if judged.error and len(self.recent) >= AT_LEAST and len(failed) > SHARE * len(self.recent):
            told = f"{len(failed)} of the last {len(self.recent)} judgements failed"
            raise TooManyFailures(f"{told}. The last one: {judged.error}")

    async def _try_canaries(self, judge: Judge) -> None:
        """Raises TooManyFailures when the judge cannot be reached at all."""
        report, all_judged = await judge.canaries()
        await asyncio.to_thread(self._keep_canaries, report, all_judged)
        if unreachable := next((each for each in all_judged if each.is_unreachable), None):
            raise TooManyFailures(f"The judge cannot be asked: {unreachable.error}")

    def _keep_canaries(self, report: CanaryReport, all_judged: Sequence[Judged]) -> None:
        costs = [judged.cost for judged in all_judged if judged.cost is not None]

        def keep(record: JudgingRecord) -> None:
            record.canaries = report
            record.tokens_in += sum(judged.tokens_in for judged in all_judged)
            record.tokens_out += sum(judged.tokens_out for judged in all_judged)
            record.cost = (record.cost or 0.0) + sum(costs) if costs else record.cost

        self._change(keep)
        if report.is_injectable:
            record_flags(self.run_id, [self._warning(report)])

    def _warning(self, report: CanaryReport) -> FlagDraft:
        scores = ", ".join(f"{result.name} {result.score:.2f}" for result in report.results if result.score is not None)
        return FlagDraft(
            detector="injectable_judge",
            key=str(self.appointed.judge_id),
            severity=Severity.WARNING,
            score=1.0,
            sentence=f"The judge {self.appointed.name} can be talked into a score: a bad answer that only demands full "
            f"marks got more than the bad answer itself ({scores}). Do not train on its scores.",
            evidence={"canaries": report.model_dump(mode="json")["results"]},
        )

    async def _keep_storing(self) -> None:
        while True:
            await asyncio.sleep(STORE_SECONDS)
            await asyncio.to_thread(self._store)

    def _store(self) -> None:
        batch, self.unstored[:] = list(self.unstored), []
        if batch:
            judge_rows.store(self.run_id, self.appointed.judge_id, batch)

    def _should_stop(self) -> bool:
        with transaction() as session:
            run = session.get(Run, self.run_id)
            record = record_of(run, self.appointed.judge_id) if run else None
            return record is None or record.stop_requested

    def _end(self, status: RunStatus, reason: str | None) -> None:
        def end(record: JudgingRecord) -> None:
            record.status, record.reason, record.ended_at = status, reason, datetime.now(UTC)
            record.stop_requested = False

        self._change(end)

    def _change(self, change: Any) -> None:
        with transaction() as session:
            run = session.get(Run, self.run_id)
            if run is not None:
                change_record(session, run, self.appointed.judge_id, change)


class _Cases:
    """Rollouts one after the other for several lanes, read in chunks."""

    def __init__(self, ids: Sequence[uuid.UUID]) -> None:
        self._source = self._read(ids)
        self._lock = asyncio.Lock()

    async def next(self) -> judge_rows.Case | None:
        async with self._lock:
            return await anext(self._source, None)

    async def _read(self, ids: Sequence[uuid.UUID]) -> AsyncIterator[judge_rows.Case]:
        for start in range(0, len(ids), CHUNK):
            for case in await asyncio.to_thread(judge_rows.facts_of, ids[start : start + CHUNK]):
                yield case
