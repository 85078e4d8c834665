"""The jobs `judging.question` (a question is asked about a run's rollouts) and `judging.try_question` (about a few).

An asking goes on where the rows stand: answers stay, failed ones are asked for again, nothing is doubled.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, judges_topic
from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.domain.detectors.flags import FlagDraft
from backend.domain.graders.findings import Finding, FoundPattern, Quote, Suspected
from backend.domain.graders.judging_record import CanaryReport
from backend.domain.graders.question_prompts import Shown
from backend.domain.graders.questions import Pattern, QuestionKind
from backend.domain.text import json_text
from backend.domain.vocabulary import RunStatus, Severity
from backend.graders.contrasts import Scene, scenes
from backend.graders.questions.flagging import MAX_SHOWN, evidence_of
from backend.graders.questions.starting import asked_rollouts
from backend.graders.rollout_choice import still_without
from backend.graders.tables import Asking, QuestionAnswer
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from workers.graders import questioner
from workers.graders.asker import Exchange, Spent
from workers.graders.questioner import Answered, Contrasted, make_questioner
from workers.storage import grader_news, graders, questions
from workers.storage.graders import Case
from workers.storage.grading_batches import A, C, Round, TooManyFailures
from workers.storage.questions import Put
from workers.tasks.detectors import record_flags
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext


def answer(context: JobContext) -> None:
    """The job's body."""
    work = _take_up(context)
    if work is not None:
        run_async(work.go())


def try_out(context: JobContext) -> None:
    """On a few rollouts; the page that asked reads the answers from the job's row."""
    known = questions.put(uuid.UUID(context.arguments["question_id"]))
    cases = graders.facts_of([uuid.UUID(each) for each in context.arguments["rollout_ids"]])
    found = run_async(_try_on(known, cases)) if cases else {"error": "The rollouts are gone.", "rollouts": []}
    with transaction() as session:
        keep_answer(session, context.job_id, orjson.loads(json_text(found)))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again: nobody shall wait for ever."""
    if "asking_id" not in context.arguments:
        keep_answer(session, context.job_id, {"error": error, "rollouts": []})
        return
    asking = session.get(Asking, uuid.UUID(context.arguments["asking_id"]), with_for_update=True)
    if asking is not None:
        asking.status, asking.reason, asking.ended_at = RunStatus.FAILED, error, datetime.now(UTC)
        grader_news.tell_of_flags(session, asking)
        announce(session, judges_topic(asking.run_id))


async def _try_on(known: Put, cases: Sequence[Case]) -> dict[str, Any]:
    asker = make_questioner(known.configuration, known.kind, known.policy, known.secret)
    try:
        if known.configuration.kind is QuestionKind.CONTRAST:
            shown = [Shown(case.facts, is_high=place == 0) for place, case in enumerate(cases)]
            contrasted = await asker.contrast(shown)
            return {"rollouts": [_told(cases[0], contrasted) | _told_patterns(contrasted)]}
        answered = [await asker.answer(case.facts, seed=case.seed) for case in cases]
        pairs = zip(cases, answered, strict=True)
        return {"rollouts": [_told(case, each) | _told_answer(each) for case, each in pairs]}
    finally:
        await asker.aclose()


def _told(case: Case, given: Answered | Contrasted) -> dict[str, Any]:
    exchange: Exchange[Any] | None = given.exchange
    return {
        "rollout_id": str(case.rollout_id),
        "error": given.error,
        "dropped": given.dropped,
        "seconds": given.seconds,
        "tokens_in": given.tokens_in,
        "tokens_out": given.tokens_out,
        "cost": given.cost,
        "messages": exchange.question.messages if exchange else [],
        "replies": exchange.replies if exchange else [],
    }


def _told_answer(given: Answered) -> dict[str, Any]:
    answer = given.answer
    return {
        "answer": answer.answer if answer else None,
        "confidence": answer.confidence if answer else None,
        "reason": answer.reason if answer else "",
        "citations": questions.stored(given.found),
    }


def _told_patterns(given: Contrasted) -> dict[str, Any]:
    told = [(pattern, [quote for each in suspects for quote in each.found]) for pattern, suspects in given.patterns]
    return {
        "patterns": [
            {
                "name": pattern.name,
                "description": pattern.description,
                "suspicion": pattern.suspicion,
                "citations": questions.stored(quotes),
            }
            for pattern, quotes in told
        ]
    }


def _take_up(context: JobContext) -> "_Asking[Any, Any] | None":
    """None when there is nothing to do (any more)."""
    asking_id = uuid.UUID(context.arguments["asking_id"])
    with transaction() as session:
        asking = session.get(Asking, asking_id, with_for_update=True)
        if asking is None or asking.job_id != context.job_id or asking.status.is_over:
            return None
        run, question_id = session.get_one(Run, asking.run_id), asking.question_id
        asking.status, asking.reason = RunStatus.RUNNING, None
        asking.started_at = asking.started_at or datetime.now(UTC)
    known = questions.put(question_id)
    with transaction() as session:
        asking = session.get_one(Asking, asking_id, with_for_update=True)
        work: _Asking[Any, Any]
        if known.configuration.kind is QuestionKind.CONTRAST:
            found = scenes(session, run, known.configuration.each, asking.where, asking.cluster or "")
            shown = {Finding.model_validate(each).key for each in asking.findings}
            asking.total = len({scene.key for scene in found} | shown)
            work = _AskingOfScenes(asking_id, run.id, known, [scene for scene in found if scene.key not in shown])
        else:
            wanted = asked_rollouts(session, run, known.configuration, asking.where)
            ids = session.scalars(wanted).all()
            asking.total = len(ids)
            missing = session.scalars(still_without(wanted, QuestionAnswer, known.id)).all()
            work = _AskingOfRollouts(asking_id, run.id, known, missing)
        announce(session, judges_topic(run.id))
    return work


class _Asking(Round[C, A], Generic[C, A]):
    """One attempt at it."""

    def __init__(self, asking_id: uuid.UUID, run_id: uuid.UUID, known: Put, wanted: int) -> None:
        super().__init__(wanted, known.concurrency)
        self.asking_id, self.run_id, self.known = asking_id, run_id, known
        self.does_as_told = False
        """A canary moved it: its answers raise no flags."""

    def open(self) -> None:
        self.asker = make_questioner(self.known.configuration, self.known.kind, self.known.policy, self.known.secret)

    async def aclose(self) -> None:
        await self.asker.aclose()

    async def prepare(self) -> None:
        """The canaries. Raises TooManyFailures when the policy cannot be reached at all."""
        report, spent, problem = await self.asker.canaries()
        self.does_as_told = report.is_injectable
        await asyncio.to_thread(self._keep_canaries, report, spent)
        if problem:
            raise TooManyFailures(f"The policy cannot be asked: {problem}")

    def should_stop(self) -> bool:
        with transaction() as session:
            asking = session.get(Asking, self.asking_id)
            return asking is None or asking.stop_requested

    def end(self, status: RunStatus, reason: str | None) -> None:
        with transaction() as session:
            asking = session.get(Asking, self.asking_id, with_for_update=True)
            if asking is not None:
                asking.status, asking.reason, asking.ended_at = status, reason, datetime.now(UTC)
                asking.stop_requested = False
                grader_news.tell_of_flags(session, asking)
                announce(session, judges_topic(self.run_id))

    def _keep_canaries(self, report: CanaryReport, spent: Sequence[Spent]) -> None:
        with transaction() as session:
            asking = session.get(Asking, self.asking_id, with_for_update=True)
            if asking is not None:
                asking.canaries = report.model_dump(mode="json")
                graders.add_spent(asking, spent)
                announce(session, judges_topic(self.run_id))
        if report.is_injectable:
            grader_news.warn(self.run_id, self.known.name, self._warning(report))

    def _warning(self, report: CanaryReport) -> FlagDraft:
        return FlagDraft(
            detector="injectable_judge",
            key=str(self.known.id),
            severity=Severity.WARNING,
            score=1.0,
            sentence=f"Who answers the question {self.known.name} gives the answer that the data demands, and the "
            "opposite one when that is demanded. Its answers raise no flags.",
            evidence={"canaries": report.model_dump(mode="json")["results"]},
        )


class _AskingOfRollouts(_Asking[Case, Answered]):
    """About each rollout by itself."""

    def __init__(self, asking_id: uuid.UUID, run_id: uuid.UUID, known: Put, missing: Sequence[uuid.UUID]) -> None:
        super().__init__(asking_id, run_id, known, len(missing))
        self._missing = missing

    def cases(self) -> AsyncIterator[Case]:
        return graders.read_cases(self._missing)

    async def consider(self, case: Case) -> Answered:
        return await self.asker.answer(case.facts, seed=case.seed)

    def store(self, batch: list[tuple[Case, Answered]]) -> None:
        rows = [(case.rollout_id, answered) for case, answered in batch]
        questions.store(self.run_id, self.known, rows, with_flags=not self.does_as_told)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A scene with what is shown of it."""

    scene: Scene
    ids: tuple[uuid.UUID, ...]
    shown: tuple[Shown, ...]


class _AskingOfScenes(_Asking[_Staged, Contrasted]):
    """About rollouts of the same task side by side."""

    def __init__(self, asking_id: uuid.UUID, run_id: uuid.UUID, known: Put, waiting: Sequence[Scene]) -> None:
        super().__init__(asking_id, run_id, known, len(waiting))
        self._waiting = waiting

    async def cases(self) -> AsyncIterator[_Staged]:
        for scene in self._waiting:
            cases = await asyncio.to_thread(graders.facts_of, [*scene.high, *scene.low])
            shown = tuple(Shown(case.facts, is_high=case.rollout_id in scene.high) for case in cases)
            if len({each.is_high for each in shown}) == 2:
                yield _Staged(scene, tuple(case.rollout_id for case in cases), shown)

    async def consider(self, case: _Staged) -> Contrasted:
        return await self.asker.contrast(case.shown, seed=uuid.UUID(case.scene.key).int & 0x3FFFFFFF)

    def store(self, batch: list[tuple[_Staged, Contrasted]]) -> None:
        """One that failed is no finding: it is asked for again."""
        with transaction() as session:
            asking = session.get(Asking, self.asking_id, with_for_update=True)
            if asking is None:
                return
            graders.add_spent(asking, [result for _, result in batch])
            found = [_finding(staged, result) for staged, result in batch if not result.error]
            new = [orjson.loads(json_text(each.model_dump(mode="json"))) for each in found]
            asking.findings = [*asking.findings, *new]
            ids = [id for staged, _ in batch for id in staged.ids]
            wanted = select(Rollout.id, Rollout.training_step).where(Rollout.id.in_(ids))
            steps = {row.id: row.training_step for row in session.execute(wanted)}
            announce(session, judges_topic(self.run_id))
        if not self.does_as_told:
            drafts = [draft for staged, result in batch for draft in self._flags(staged, result, steps)]
            record_flags(self.run_id, drafts)

    def _flags(self, staged: _Staged, result: Contrasted, steps: dict[uuid.UUID, int | None]) -> list[FlagDraft]:
        return [
            self._flag(pattern, staged.ids[suspect.place], suspect, steps)
            for pattern, suspects in result.patterns
            if pattern.suspicion >= self.known.configuration.flags_from
            for suspect in suspects
        ]

    def _flag(
        self,
        pattern: Pattern,
        rollout_id: uuid.UUID,
        suspect: questioner.Suspected,
        steps: dict[uuid.UUID, int | None],
    ) -> FlagDraft:
        return FlagDraft(
            detector=self.known.configuration.detector(self.known.name),
            key=f"{rollout_id}/{self.known.id}",
            severity=Severity.WARNING,
            score=pattern.suspicion,
            sentence=f"{pattern.name}: {pattern.description[:MAX_SHOWN]}",
            evidence=evidence_of(self.known.name, self.known.configuration, questions.stored(suspect.found)),
            rollout_id=rollout_id,
            training_step=steps.get(rollout_id),
            cluster=pattern.name.lower(),
        )


def _finding(staged: _Staged, result: Contrasted) -> Finding:
    scene = staged.scene
    patterns = [
        FoundPattern(
            name=pattern.name,
            description=pattern.description,
            suspicion=pattern.suspicion,
            rollouts=[
                Suspected(
                    rollout_id=staged.ids[suspect.place],
                    quotes=[Quote.model_validate(each) for each in questions.stored(suspect.found)],
                )
                for suspect in suspects
            ],
        )
        for pattern, suspects in result.patterns
    ]
    return Finding(
        key=scene.key,
        label=scene.label,
        high=list(scene.high),
        low=list(scene.low),
        patterns=patterns,
        dropped=result.dropped,
    )
