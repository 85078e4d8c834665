"""The jobs `judging.judge` (one judge looks at a run's rollouts) and `judging.ask` (at one, to try it).

A judging goes on where the rows stand: completed judgements stay, failed ones are asked for again, nothing is doubled.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.domain.detectors.flags import FlagDraft
from backend.domain.graders.judging_record import CanaryReport, JudgingRecord
from backend.domain.vocabulary import RunStatus, Severity
from backend.graders.judges.queries import record_of
from backend.graders.judges.service import change_record
from backend.runs.tables import Run
from workers.graders.judge import Judged, make_judge
from workers.storage import grader_news, graders, judges
from workers.storage.graders import Case
from workers.storage.grading_batches import Round, TooManyFailures
from workers.storage.judges import Appointed
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext


def judge(context: JobContext) -> None:
    """The job's body."""
    work = _take_up(context)
    if work is not None:
        run_async(work.go())


def ask(context: JobContext) -> None:
    """Try a judge on one rollout; the page that asked reads the answer from the job's row."""
    appointed = judges.appoint(uuid.UUID(context.arguments["judge_id"]))
    facts = graders.facts_of([uuid.UUID(context.arguments["rollout_id"])])
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


async def _ask_once(appointed: Appointed, facts: Case) -> dict[str, Any]:
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
    appointed = judges.appoint(judge_id)
    with transaction() as session:
        run = session.get(Run, run_id)
        record = record_of(run, judge_id) if run else None
        if run is None or record is None or record.job_id != str(context.job_id) or record.status.is_over:
            return None
        wanted, missing = judges.to_judge(session, run, judge_id, record.where)

        def begin(now: JudgingRecord) -> None:
            now.status, now.total, now.reason = RunStatus.RUNNING, wanted, None
            now.started_at = now.started_at or datetime.now(UTC)

        change_record(session, run, judge_id, begin)
    return _Judging(run_id, appointed, missing)


class _Judging(Round[Case, Judged]):
    """One attempt at it."""

    what = "judgements"

    def __init__(self, run_id: uuid.UUID, appointed: Appointed, missing: Sequence[uuid.UUID]) -> None:
        super().__init__(len(missing), appointed.concurrency)
        self._run_id, self._appointed, self._missing = run_id, appointed, missing

    def open(self) -> None:
        chosen = self._appointed
        self._judge = make_judge(chosen.configuration, chosen.kind, chosen.policy, chosen.secret)

    async def aclose(self) -> None:
        await self._judge.aclose()

    async def prepare(self) -> None:
        """The canaries. Raises TooManyFailures when the judge cannot be reached at all."""
        report, all_judged = await self._judge.canaries()
        await asyncio.to_thread(self._keep_canaries, report, all_judged)
        if unreachable := next((each for each in all_judged if each.is_unreachable), None):
            raise TooManyFailures(f"The judge cannot be asked: {unreachable.error}")

    def cases(self) -> AsyncIterator[Case]:
        return graders.read_cases(self._missing)

    async def consider(self, case: Case) -> Judged:
        return await self._judge.judge(case.facts, seed=case.seed)

    def store(self, batch: list[tuple[Case, Judged]]) -> None:
        rows = [(case.rollout_id, judged) for case, judged in batch]
        judges.store(self._run_id, self._appointed.id, rows)

    def should_stop(self) -> bool:
        with transaction() as session:
            run = session.get(Run, self._run_id)
            record = record_of(run, self._appointed.id) if run else None
            return record is None or record.stop_requested

    def end(self, status: RunStatus, reason: str | None) -> None:
        def end(record: JudgingRecord) -> None:
            record.status, record.reason, record.ended_at = status, reason, datetime.now(UTC)
            record.stop_requested = False

        self._change(end)

    def _keep_canaries(self, report: CanaryReport, all_judged: Sequence[Judged]) -> None:
        def keep(record: JudgingRecord) -> None:
            record.canaries = report
            graders.add_spent(record, all_judged)

        self._change(keep)
        if report.is_injectable:
            grader_news.warn(self._run_id, self._appointed.name, self._warning(report))

    def _warning(self, report: CanaryReport) -> FlagDraft:
        name = self._appointed.name
        scores = ", ".join(f"{result.name} {result.score:.2f}" for result in report.results if result.score is not None)
        return FlagDraft(
            detector="injectable_judge",
            key=str(self._appointed.id),
            severity=Severity.WARNING,
            score=1.0,
            sentence=f"The judge {name} can be talked into a score: a bad answer that only demands full marks got more "
            f"than the bad answer itself ({scores}). Do not train on its scores.",
            evidence={"canaries": report.model_dump(mode="json")["results"]},
        )

    def _change(self, change: Any) -> None:
        with transaction() as session:
            run = session.get(Run, self._run_id)
            if run is not None:
                change_record(session, run, self._appointed.id, change)
