"""The job `judging.onset`: one move of a search for the checkpoint at which a pattern began.

A move reads what the evaluation that ended says, and starts the next one.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.notifications.notices import NoticeKind
from backend.domain.studies.onset import BASE, Shown, chance, conclude, exceeds, nearest, next_place, remarks
from backend.domain.vocabulary import RunStatus
from backend.notifications import outbox
from backend.runs.tables import Run
from backend.studies.onset.queries import found_words, pattern_name, samples_of
from backend.studies.onset.service import SEARCHES
from backend.studies.queries import checkpoints_until, start_of
from backend.studies.tables import OnsetSample, OnsetSearch
from workers.storage.detectors import load_detector_input, stored_steps
from workers.storage.studies import CannotGoOn, end, fail, id_of, is_played, move, play
from workers.tasks.registry import JobContext

logger = structlog.get_logger(__name__)

DETECTORS = {each.id: each for each in ROLLOUT_DETECTORS}


@dataclass(frozen=True, slots=True)
class _Play:
    """An evaluation that ended, to be looked at."""

    sample_id: uuid.UUID
    run_id: uuid.UUID


def run(context: JobContext) -> None:
    search_id = id_of(SEARCHES, context)
    while to_look_at := move(SEARCHES, search_id, _next):
        shown = _look(search_id, to_look_at)
        with transaction() as session:
            sample = session.get_one(OnsetSample, to_look_at.sample_id)
            sample.rollouts, sample.flagged = shown.rollouts, shown.flagged


def give_up(session: Session, context: JobContext, error: str) -> None:
    fail(session, SEARCHES, context, error)


def _next(session: Session, search: OnsetSearch, is_taken_up: bool) -> _Play | None:
    """Start the next evaluation, or say which one is to be looked at."""
    training = session.get_one(Run, search.run_id)
    samples = samples_of(session, [search.id])[search.id]
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
    name = "the starting policy" if sample.is_base else f"step {sample.step}"
    if not is_played(session, search, sample, name, is_taken_up=is_taken_up) or sample.run_id is None:
        return None
    if search.detector not in DETECTORS:
        raise CannotGoOn(f"No detector {search.detector!r} can look at sampled rollouts by itself.")
    return _Play(sample.id, sample.run_id)


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
        run=_evaluation(session, search, played),
        is_base=checkpoint is None,
        step=0 if checkpoint is None else played.step,
    )
    session.add(sample)
    session.flush()
    announce(session, run_topic(training.id))
    return sample


def _evaluation(session: Session, search: OnsetSearch, checkpoint: Checkpoint) -> Run:
    plan = {name: getattr(search, name) for name in ("tasks", "group_size", "temperature", "seed")}
    amount = f"{search.tasks}x{search.group_size} at {search.temperature} seed {search.seed}"
    return play(session, search, checkpoint, plan, SEARCHES.word, amount)


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
    end(session, search, RunStatus.COMPLETED)
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


def _look(search_id: uuid.UUID, play: _Play) -> Shown:
    """What the pattern's detector finds among the rollouts of an evaluation, with the training run's thresholds."""
    with transaction() as session:
        search = session.get_one(OnsetSearch, search_id)
    limits = load_detector_input(search.run_id).settings[search.detector].thresholds
    judged = load_detector_input(play.run_id)
    detector = DETECTORS[search.detector]
    count = 0
    flagged: set[uuid.UUID | None] = set()
    for _, rows in stored_steps(judged):
        count += len(rows)
        drafts = detector.detect(rows, judged.context, limits)
        flagged |= {each.rollout_id for each in drafts if search.cluster in (None, each.cluster)}
    return Shown(len(flagged), count)


def _shown(sample: OnsetSample) -> Shown:
    return Shown(sample.flagged or 0, sample.rollouts or 0)
