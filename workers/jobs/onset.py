"""The job `judging.onset`: one move of a search for the checkpoint at which a pattern began.

A move reads what the evaluation that ended says, and starts the next one. Nothing waits in between: the end of an
evaluation wakes the search again, and whatever was interrupted goes on where the rows stand.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, OnsetSample, OnsetSearch, Run
from backend.db.session import transaction
from backend.domain.notices import NoticeKind
from backend.domain.onset import BASE, Shown, chance, conclude, exceeds, nearest, next_place, remarks
from backend.domain.vocabulary import RunStatus
from backend.errors import AppError
from backend.evaluations.forms import EvaluationRequest
from backend.evaluations.service import request_stop, resume_run
from backend.evaluations.starting import start_evaluation
from backend.events import announce, run_topic
from backend.judging.onset.queries import checkpoints_until, found_words, pattern_name, samples_of, start_of
from backend.notifications import outbox
from workers.jobs.asker import Asker
from workers.jobs.judged_rows import judged_run, stored_steps
from workers.jobs.registry import JobContext
from workers.judging.detectors.every import OF_ROLLOUTS

logger = structlog.get_logger(__name__)

DETECTORS = {each.id: each for each in OF_ROLLOUTS}


class CannotGoOn(Exception):
    """The search ends without an answer; the message says why."""


@dataclass(frozen=True, slots=True)
class _Play:
    """An evaluation that ended, to be looked at."""

    sample_id: uuid.UUID
    run_id: uuid.UUID


def run(context: JobContext) -> None:
    search_id = uuid.UUID(context.arguments["search_id"])
    while play := _move(search_id):
        shown = _look(search_id, play)
        with transaction() as session:
            sample = session.get_one(OnsetSample, play.sample_id)
            sample.rollouts, sample.flagged = shown.rollouts, shown.flagged


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again."""
    search = session.get(OnsetSearch, uuid.UUID(context.arguments["search_id"]))
    if search is not None and not search.status.is_over:
        _end(session, search, RunStatus.FAILED, error)


def _move(search_id: uuid.UUID) -> _Play | None:
    """Start the next evaluation, or say which one is to be looked at. None: the search waits or is over."""
    with transaction() as session:
        search = session.get(OnsetSearch, search_id, with_for_update=True)
        if search is None:
            return None
        samples = samples_of(session, [search.id])[search.id]
        if search.status.is_over:
            _stop_evaluations(session, search, samples)
            return None
        is_taken_up, search.status = search.status is RunStatus.QUEUED, RunStatus.RUNNING
        try:
            return _next(session, search, samples, is_taken_up=is_taken_up)
        except (CannotGoOn, AppError) as error:
            _end(session, search, RunStatus.FAILED, str(error))
        return None


def _next(session: Session, search: OnsetSearch, samples: Sequence[OnsetSample], *, is_taken_up: bool) -> _Play | None:
    """`is_taken_up`: somebody started or resumed it just now, so that an evaluation that was stopped goes on too."""
    training = session.get_one(Run, search.run_id)
    for sample in samples:
        if sample.rollouts is None:
            return _ended(session, search, sample, is_taken_up=is_taken_up)
    base, checkpoints, found = _so_far(session, search, training, samples)
    hint = nearest([each.step for each in checkpoints], search.hint_step or 0)
    above = {place: is_above for place, (_, is_above) in found.items()}
    place = BASE if base is None else next_place(len(checkpoints), above, hint)
    if place is not None:
        sample = _sample(session, search, training, checkpoints[place] if place != BASE else None)
        return _ended(session, search, sample, is_taken_up=True)
    if base is not None:
        _conclude(session, search, base, checkpoints, found)
    return None


def _ended(session: Session, search: OnsetSearch, sample: OnsetSample, *, is_taken_up: bool) -> _Play | None:
    """What is to be looked at; None while it is played."""
    evaluation = sample.run
    if evaluation is None:
        raise CannotGoOn("The evaluation of a sampled checkpoint was deleted. Start another search.")
    if evaluation.status is RunStatus.COMPLETED:
        if search.detector not in DETECTORS:
            raise CannotGoOn(f"No detector {search.detector!r} can look at sampled rollouts by itself.")
        return _Play(sample.id, evaluation.id)
    if evaluation.status.is_over and is_taken_up:
        resume_run(session, _asker(search), evaluation)
    elif evaluation.status.is_over:
        told = evaluation.reason or f"It is {evaluation.status}."
        _end(session, search, RunStatus.STOPPED, f"The evaluation of step {sample.step} did not end: {told}")
    return None


def _so_far(
    session: Session, search: OnsetSearch, training: Run, samples: Sequence[OnsetSample]
) -> tuple[Shown | None, list[Checkpoint], dict[int, tuple[Shown, bool]]]:
    """The base rate, what may be sampled, and what was, by its place there; tests against the base are kept."""
    sampled = {each.checkpoint_id: each for each in samples if each.checkpoint_id and not each.is_base}
    checkpoints = checkpoints_until(session, training.id, search.last_step, sampled=sampled.keys())
    base = next((_shown(each) for each in samples if each.is_base), None)
    if base is None:
        return None, checkpoints, {}
    found = {}
    for place, checkpoint in enumerate(checkpoints):
        if sample := sampled.get(checkpoint.id):
            shown = _shown(sample)
            sample.chance = chance(base, shown)
            sample.is_above = exceeds(base, shown)
            found[place] = shown, sample.is_above
    return base, checkpoints, found


def _sample(session: Session, search: OnsetSearch, training: Run, checkpoint: Checkpoint | None) -> OnsetSample:
    """Have a checkpoint play the tasks; None: the policy that reinforcement began with."""
    played = checkpoint or start_of(session, training)
    if played is None:
        raise CannotGoOn("The weights that reinforcement began with are gone: there is no base rate.")
    sample = OnsetSample(
        search_id=search.id,
        checkpoint_id=played.id,
        run=_evaluation(session, search, training, played),
        is_base=checkpoint is None,
        step=0 if checkpoint is None else played.step,
    )
    session.add(sample)
    session.flush()
    announce(session, run_topic(training.id))
    return sample


def _evaluation(session: Session, search: OnsetSearch, training: Run, checkpoint: Checkpoint) -> Run:
    """Searches of one run on the same tasks share what each checkpoint played."""
    amount = f"{search.tasks}x{search.group_size} at {search.temperature} seed {search.seed}"
    which = f"{checkpoint.stage} {checkpoint.step}" if checkpoint.stage != "grpo" else f"step {checkpoint.step}"
    request = EvaluationRequest(
        version_id=search.version_id,
        policy_id=checkpoint.policy_id,
        checkpoint_id=checkpoint.id,
        tasks=search.tasks,
        group_size=search.group_size,
        temperature=search.temperature,
        seed=search.seed,
        name=f"Onset: {which} of {training.name}"[:200],
        key=str(uuid.uuid5(search.version_id, f"onset {checkpoint.id} {amount}")),
    )
    return start_evaluation(session, _asker(search), request)


def _conclude(
    session: Session,
    search: OnsetSearch,
    base: Shown,
    checkpoints: Sequence[Checkpoint],
    found: dict[int, tuple[Shown, bool]],
) -> None:
    conclusion = conclude(len(checkpoints), {place: above for place, (_, above) in found.items()})
    honest = None if conclusion.honest == BASE else checkpoints[conclusion.honest]
    hacking = None if conclusion.hacking is None else checkpoints[conclusion.hacking]
    search.outcome = conclusion.outcome
    search.is_monotone = conclusion.is_monotone
    search.remarks = remarks(base, [each.step for each in checkpoints], found)
    if hacking is not None:
        start = start_of(session, session.get_one(Run, search.run_id)) if honest is None else None
        search.hacking_id, search.hacking_step = hacking.id, hacking.step
        search.honest_id = honest.id if honest else start.id if start else None
        search.honest_step = honest.step if honest else 0
    _end(session, search, RunStatus.COMPLETED, None)
    _tell(session, search)
    logger.info("onset", pattern=pattern_name(search.detector, search.cluster), found=found_words(search))


def _tell(session: Session, search: OnsetSearch) -> None:
    outbox.announce(
        session,
        kind=NoticeKind.ONSET,
        title=f"Onset of {pattern_name(search.detector, search.cluster)}",
        text=" ".join([f"{found_words(search).capitalize()}.", *search.remarks]),
        path=f"/runs/{search.run_id}/onset",
        run_id=search.run_id,
        evidence={"search": str(search.id), "detector": search.detector, "cluster": search.cluster},
    )


def _end(session: Session, search: OnsetSearch, status: RunStatus, reason: str | None) -> None:
    search.status, search.reason, search.ended_at = status, reason, datetime.now(UTC)
    session.flush()
    announce(session, run_topic(search.run_id))


def _stop_evaluations(session: Session, search: OnsetSearch, samples: Sequence[OnsetSample]) -> None:
    """Of a search that was stopped: what it waits for is played for nobody any more, unless another search waits."""
    for sample in samples:
        if sample.rollouts is None and sample.run is not None and not sample.run.status.is_over:
            others = select(OnsetSample.id).join(OnsetSearch, OnsetSearch.id == OnsetSample.search_id)
            others = others.where(OnsetSample.run_id == sample.run_id, OnsetSearch.status == RunStatus.RUNNING)
            if session.scalar(others.limit(1)) is None and sample.run.stop_requested_at is None:
                request_stop(session, _asker(search), sample.run)


def _asker(search: OnsetSearch) -> Asker:
    if search.asked_by is None:
        raise CannotGoOn("Who asked for it was removed: start another search.")
    return Asker(search.asked_by)


def _look(search_id: uuid.UUID, play: _Play) -> Shown:
    """What the pattern's detector finds among the rollouts of an evaluation, with the training run's thresholds."""
    with transaction() as session:
        search = session.get_one(OnsetSearch, search_id)
    limits = judged_run(search.run_id).settings[search.detector].thresholds
    judged = judged_run(play.run_id)
    detector = DETECTORS[search.detector]
    count = 0
    flagged: set[uuid.UUID | None] = set()
    for _, rows in stored_steps(judged):
        count += len(rows)
        drafts = detector.look_at(rows, judged.scene, limits)
        flagged |= {each.rollout_id for each in drafts if search.cluster in (None, each.cluster)}
    return Shown(len(flagged), count)


def _shown(sample: OnsetSample) -> Shown:
    return Shown(sample.flagged or 0, sample.rollouts or 0)
