"""The job `rescoring.run`: score the stored rollouts of a run again, or play their replies on another version.

It goes on where the rows stand: what is stored is kept, failed rows are done again, nothing is doubled.
"""

import time
import uuid
from dataclasses import replace

import structlog

from backend.core.session import transaction
from backend.domain.vocabulary import RunStatus
from backend.rollouts.regrading.news import tell_of_history
from backend.rollouts.regrading.queries import tally
from backend.runs.service import finish_run
from backend.runs.tables import Run
from workers.storage.recorder import RunRecorder
from workers.storage.regrading import Ending, take_up
from workers.storage.runs import summarize
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext
from workers.tasks.replays import Replaying
from workers.tasks.reweighing import reweigh

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """The job's body."""
    work = take_up(context.need_run())
    if work is None:
        logger.info("the run is over already")
        return
    began = time.monotonic()
    recorder = RunRecorder(work.run_id)
    total = work.originals.count()
    recorder.progress(phase="reading", done=0, total=total)
    ending = run_async(Replaying(work, recorder, total).go()) if work.plan.plays else reweigh(work, recorder, total)
    _finish(work.run_id, ending, time.monotonic() - began, recorder)


def _finish(run_id: uuid.UUID, ending: Ending, seconds: float, recorder: RunRecorder) -> None:
    with transaction() as session:
        row = session.get_one(Run, run_id)
        found = tally(session, run_id)
        if ending.status is RunStatus.COMPLETED and found.total and not found.completed:
            ending = replace(ending, status=RunStatus.FAILED, reason=f"No rollout could be scored. {found.most_common}")
        summary = summarize(session, row, seconds=seconds, played=found.total)
        summary["rescoring"] = {**found.as_json(), "grounds": ending.grounds}
        finish_run(session, row, ending.status, summary, ending.reason)
    recorder.log(f"{ending.status}: {found} in {seconds:.1f} s. {ending.reason or ''}".strip())
    with transaction() as session:
        tell_of_history(session, session.get_one(Run, run_id))
