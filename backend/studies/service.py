"""Starting, stopping and resuming a study; the job that carries it out is woken whenever an evaluation of it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic

from sqlalchemy import ColumnElement, select

from backend.core.events import announce, run_topic
from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import UNDER_WAY, JobStatus, Queue, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.runs.tables import Run
from backend.studies.queries import S
from backend.studies.tables import StudiedCheckpoint
from backend.web.audit import audit

if TYPE_CHECKING:
    import uuid

    from sqlalchemy.orm import InstrumentedAttribute, Session

    from backend.web.identity import Actor


class StudyIsOver(Conflict):
    """This is over."""


class StudyGoesOn(Conflict):
    """This is under way."""


@dataclass(frozen=True, slots=True)
class Studies(Generic[S]):
    """Searches for an onset, or effort scores: their rows, and the job that takes one further."""

    rows: type[S]
    checkpoints: type[StudiedCheckpoint]
    of: InstrumentedAttribute[uuid.UUID]
    """Which study a checkpoint plays for; of this name is the argument of the job, too."""
    job: str
    queue: Queue
    word: str
    """Begins what the audit log calls it."""

    def find_open(self, session: Session, run: Run, *is_same: ColumnElement[bool]) -> S | None:
        """The same one, where it is under way already. The run is locked: nobody else starts one meanwhile."""
        session.execute(select(Run.id).where(Run.id == run.id).with_for_update())
        statement = select(self.rows).where(self.rows.run_id == run.id, self.rows.status.in_(UNDER_WAY), *is_same)
        return session.scalars(statement.limit(1)).first()

    def start(self, session: Session, actor: Actor, study: S, **told: Any) -> S:
        session.add(study)
        session.flush()
        self._change(session, actor, study, "start", **told)
        return study

    def stop(self, session: Session, actor: Actor, study: S) -> None:
        """What was found is kept; what is under way is stopped by the job."""
        if study.status.is_over:
            raise StudyIsOver(f"This {study.noun} is {study.status} already.")
        study.status, study.reason, study.ended_at = RunStatus.STOPPED, "Stopped on request.", datetime.now(UTC)
        self._change(session, actor, study, "stop", **{self.of.key: str(study.id)})

    def resume(self, session: Session, actor: Actor, study: S) -> None:
        """Go on where the rows stand."""
        if not study.status.is_over:
            raise StudyGoesOn(f"This {study.noun} is under way.")
        if study.status is RunStatus.COMPLETED:
            raise StudyIsOver(f"This {study.noun} is completed. Start another one.")
        study.status, study.reason, study.ended_at = RunStatus.QUEUED, None, None
        self._change(session, actor, study, "resume", **{self.of.key: str(study.id)})

    def follow_evaluation(self, session: Session, run_id: uuid.UUID) -> None:
        """An evaluation ended: those that wait for it go on."""
        waiting = select(self.of).join(self.rows, self.rows.id == self.of)
        waiting = waiting.where(self.checkpoints.run_id == run_id, self.rows.status.in_(UNDER_WAY))
        for study_id in session.scalars(waiting).all():
            self._wake(session, study_id)

    def _change(self, session: Session, actor: Actor, study: S, what: str, **told: Any) -> None:
        session.flush()
        self._wake(session, study.id)
        audit(session, actor, f"{self.word}.{what}", "run", study.run_id, **told)
        announce(session, run_topic(study.run_id))

    def _wake(self, session: Session, study_id: uuid.UUID) -> None:
        """One waiting job is enough; one that is at work may have read too early."""
        arguments = {self.of.key: str(study_id)}
        is_same = Job.name == self.job, Job.arguments.contains(arguments)
        waiting = select(Job.id).where(Job.status == JobStatus.QUEUED, *is_same)
        if session.scalar(waiting.limit(1)) is None:
            enqueue(session, self.job, queue=self.queue, arguments=arguments)


def held_out_tasks(version: EnvironmentVersion, wanted: int | None, usual: int) -> int:
    """As many as are wanted, else the usual number or all there are. Raises InvalidInput where there are fewer."""
    available = Manifest.model_validate(version.manifest).proctor.tasks.heldout
    tasks = wanted or min(usual, available)
    if tasks > available:
        raise InvalidInput(fields={"tasks": f"There are {available:,} held-out tasks."})
    return tasks


def refuse_more(rollouts: int, most: int, who: str) -> None:
    if rollouts > most:
        raise InvalidInput(fields={"tasks": f"At most {most:,} rollouts of {who}."})
