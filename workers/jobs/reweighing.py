"""Other weights over stored columns: nothing is played, the rewards are computed from what is stored."""

import math
from collections.abc import Sequence

from backend.db.models import Run
from backend.db.session import transaction
from backend.domain.vocabulary import ErrorKind, RolloutStatus, RunStatus
from backend.rescoring.columns import Candidate, candidates, weighed
from workers.jobs.copies import Copy, Original, store_copies
from workers.jobs.originals import Weighed
from workers.jobs.recording import RunRecorder
from workers.jobs.rescored import still_failed
from workers.jobs.rescoring_work import Ending, Work

GROUNDS = "The stored columns were weighed anew; nothing was played."


def reweigh(work: Work, recorder: RunRecorder, total: int) -> Ending:
    """Page by page; a stop is obeyed between two pages."""
    with transaction() as session:
        offered = candidates(session, session.get_one(Run, work.originals.source_id))
    chosen = weighed(offered, work.weights)
    done = 0
    for page in work.originals.weighed(chosen):
        if recorder.should_stop():
            return Ending(RunStatus.STOPPED, "Stopped on request.", GROUNDS)
        store_copies(work.run_id, work.target.version_id, _copies(page, chosen))
        done += page.read
        recorder.progress(phase="weighing", done=done, total=total)
    return Ending(RunStatus.COMPLETED, grounds=GROUNDS)


def _copies(page: Weighed, chosen: Sequence[Candidate]) -> list[Copy]:
    failed = [still_failed(each.original, each.error_kind, each.error_message) for each in page.failed]
    return [*(_weigh(original, values, chosen) for original, values in page.rows), *failed]


def _weigh(original: Original, values: Sequence[float | None], chosen: Sequence[Candidate]) -> Copy:
    """Failed, without a reward, where a judge has not given a score."""
    missing = [candidate.name for candidate, value in zip(chosen, values, strict=True) if value is None]
    if missing:
        told = f"There is no score of {', '.join(missing)} for it."
        return Copy(original, RolloutStatus.FAILED, error_kind=ErrorKind.JUDGE, error_message=told)
    columns = [value for value in values if value is not None]
    reward = math.fsum(candidate.weight * value for candidate, value in zip(chosen, columns, strict=True))
    return Copy(original, RolloutStatus.COMPLETED, reward=reward, columns=columns, stop_reason=original.stop_reason)
