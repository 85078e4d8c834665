"""The job `sweeps.run`: prune and start runs of a sweep until it waits for one or has finished.

No worker waits for a run: its end and each of its held-out rewards wake the sweep again, which continues from its rows.
A trial and its run are stored in one transaction, so a killed worker leaves either both or nothing.
"""

import uuid
from collections.abc import Sequence

import structlog
from pydantic import ValidationError
from sqlalchemy.orm import Session

from backend.core.events import SWEEPS, announce, topic_of
from backend.core.session import transaction
from backend.domain.notifications.notices import NoticeKind
from backend.domain.sweeps.space import Point
from backend.domain.sweeps.sweep import FIRST_FAILURES, TrialState
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunStatus
from backend.errors import AppError, Conflict
from backend.notifications import outbox
from backend.runs.service import request_stop, resume_run
from backend.sweeps.launch import requester_of, start_trial, with_values
from backend.sweeps.queries import best_of
from backend.sweeps.service import STOPPED_WITH_SWEEP, end_sweep
from backend.sweeps.tables import Sweep, SweepTrial
from backend.training.setting_texts import stored_configuration
from workers.storage.sweeps import refresh_trials, spent, trial_records
from workers.sweeps.search import Search
from workers.tasks.registry import JobContext

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    with transaction() as session:
        sweep = session.get(Sweep, uuid.UUID(context.arguments["sweep_id"]), with_for_update=True)
        if sweep is None:
            return
        try:
            advance(session, sweep)
        except AppError as error:
            end_sweep(session, sweep, RunStatus.FAILED, str(error))
        announce(session, SWEEPS, topic_of("sweep", sweep.id))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """Record that the worker failed and will not retry. Runs in progress continue."""
    sweep = session.get(Sweep, uuid.UUID(context.arguments["sweep_id"]), with_for_update=True)
    if sweep is not None and not sweep.status.is_over:
        end_sweep(session, sweep, RunStatus.FAILED, error)


def advance(session: Session, sweep: Sweep) -> None:
    """Bring a locked sweep up to date, stop runs that are not worth continuing, and start the next ones."""
    trials = refresh_trials(session, sweep)
    if sweep.status.is_over:  # a run that it started has ended later
        return
    requester, settings = requester_of(sweep), sweep.typed_settings
    if sweep.status is RunStatus.QUEUED:
        sweep.status = RunStatus.RUNNING
        free = settings.parallel - sum(trial.state is TrialState.RUNNING for trial in trials)
        for trial in trials:
            is_wanted = trial.reason == STOPPED_WITH_SWEEP or trial.state is TrialState.FAILED
            if free > 0 and is_wanted and trial.run is not None and trial.run.can_resume:
                resume_run(session, requester, trial.run)
                trial.state, trial.reason, trial.ended_at = TrialState.RUNNING, None, None
                free -= 1
    base = stored_configuration(sweep.configuration)
    search = Search(settings, trial_records(session, trials), first_rung=base.heldout.every)
    for number, sentence in search.to_prune().items():
        _prune(session, sweep, trials[number - 1], sentence)
    running = sum(trial.state is TrialState.RUNNING for trial in trials)
    end: str | None = None
    while end is None and running < settings.parallel:
        end = _limit(sweep, trials)
        point = search.next_point() if end is None else None
        if end is None and point is None:
            end = "Every combination of the values was tried."
        elif point is not None and _exceeds_steps(sweep, base, trials, point):
            end = f"The next run would exceed the limit of {settings.max_steps:,} training steps."
        elif point is not None:
            trials.append(start_trial(session, sweep, len(trials) + 1, point))
            running += trials[-1].state is TrialState.RUNNING
    sweep.importance = search.importance() or sweep.importance
    if end is not None and not running:
        _end(session, sweep, trials, end)


def _prune(session: Session, sweep: Sweep, trial: SweepTrial, sentence: str) -> None:
    """Stop the trial's run. One that has just ended, or was stopped by a person, stays as it is."""
    run = trial.run
    if run is None or run.stop_requested_at is not None:
        return
    try:
        request_stop(session, requester_of(sweep), run)
    except Conflict:
        return
    trial.is_pruned, trial.reason = True, sentence
    logger.info("run pruned", trial=trial.number, sentence=sentence)
    if run.status.is_over:  # it had not begun
        trial.state, trial.ended_at, run.reason = TrialState.PRUNED, run.ended_at, sentence


def _limit(sweep: Sweep, trials: Sequence[SweepTrial]) -> str | None:
    """Why no further run may start; empty if all have started, None if one may."""
    settings = sweep.typed_settings
    if len(trials) >= FIRST_FAILURES and all(trial.state is TrialState.FAILED for trial in trials):
        return f"The first {len(trials)} runs failed. The last one: {trials[-1].reason or 'no reason was recorded.'}"
    if len(trials) >= settings.trials:
        return ""
    if settings.max_hours and spent(trials)[1] >= settings.max_hours:
        return f"The limit of {settings.max_hours:g} hours of training was reached."
    return None


def _exceeds_steps(sweep: Sweep, base: TrainingConfiguration, trials: Sequence[SweepTrial], point: Point) -> bool:
    most = sweep.typed_settings.max_steps
    if most is None:
        return False
    try:
        steps = TrainingConfiguration.model_validate(with_values(base, point)).total_steps
    except ValidationError:
        return False  # the trial records why its run cannot start
    return spent(trials)[0] + steps > most


def _end(session: Session, sweep: Sweep, trials: Sequence[SweepTrial], reason: str) -> None:
    """End the sweep and notify the person who started it."""
    is_failed = all(trial.state is TrialState.FAILED for trial in trials)
    end_sweep(session, sweep, RunStatus.FAILED if is_failed else RunStatus.COMPLETED, reason or None)
    best = best_of(trials)
    found = "No run was completed." if best is None else f"Run {best.number} is the best: {best.reward:.3f} held-out."
    outbox.announce(
        session,
        kind=NoticeKind.RUN_FAILED if is_failed else NoticeKind.RUN_FINISHED,
        title=f"The sweep {sweep.name} {'failed' if is_failed else 'is complete'}",
        text=" ".join([reason, found]).strip(),
        path=f"/sweeps/{sweep.id}",
        run_id=best.run_id if best else None,
        person_id=sweep.created_by,
        for_destinations=True,
    )
    logger.info("sweep ended", sweep=sweep.name, status=str(sweep.status), found=found)
