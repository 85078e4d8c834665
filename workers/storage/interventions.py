"""Rows of detectors' actions in training: interventions, the checkpoint that a branch starts from, and patterns that
people accepted."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Action
from backend.domain.ids import new_id
from backend.domain.notifications.notices import NoticeKind
from backend.domain.text import plain_text
from backend.domain.training.alarms import CLEARED, INTERVENTION
from backend.domain.training.configuration import Stage
from backend.notifications import outbox
from backend.runs.tables import Run
from backend.studies.patterns import last_honest_checkpoint
from backend.training.branches import newest_before
from backend.training.tables import Alarm, Intervention

PATTERNS = "patterns"
"""Key of an alarm's evidence: the clusters that were flagged."""
WAS_SEEN = "laid_down"
"""Key of an alarm's evidence: the run ended because of it, so a person who resumes the run accepts it."""


@dataclass(frozen=True, slots=True)
class ScreenedRollouts:
    """Rollouts of one step that a detector keeps out of the gradient."""

    detector: str
    rollouts: int
    sentence: str
    examples: tuple[uuid.UUID, ...] = ()
    seen: str = ""
    """The detector's sentence about the first of them."""


def title_of(detector: str) -> str:
    return SPECS[detector].title if detector in SPECS else detector


def record_screened(run_id: uuid.UUID, step: int, screened: Iterable[ScreenedRollouts]) -> None:
    """Store one row per detector and step. People are notified of each detector's first one in a run."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        announced = set(session.scalars(select(Intervention.detector).where(Intervention.run_id == run_id)))
        for each in screened:
            values = {"rollouts": each.rollouts, "sentence": plain_text(each.sentence)}
            key = {"run_id": run_id, "step": step, "detector": each.detector, "action": Action.SCREEN}
            statement = insert(Intervention).values({"id": new_id(), **key, **values})
            session.execute(statement.on_conflict_do_update(index_elements=["run_id", "step", "detector"], set_=values))
            if each.detector in announced:
                continue
            seen = f" Seen in the first example: {each.seen}" if each.seen else ""
            outbox.announce(
                session,
                kind=NoticeKind.INTERVENTION,
                title=f"{title_of(each.detector)}: rollouts of {run.name} are screened",
                text=f"Step {step}: {each.sentence}{seen} From now on, rollouts that this detector flags stay out of "
                "the gradient until a person judges them. You get this notice once per run.",
                path=f"/review?run={run.id}&detector={each.detector}",
                run_id=run.id,
                evidence={
                    "detector": each.detector,
                    "step": step,
                    "screened": each.rollouts,
                    "seen": each.seen,
                    "rollouts": each.examples,
                },
            )
        announce(session, run_topic(run_id))


def flagged_by(run_id: uuid.UUID, detectors: Collection[str], *, before_step: int) -> dict[uuid.UUID, set[str]]:
    """Return the rollouts that flags of these detectors are about or name, with the detectors that flagged each."""
    if not detectors:
        return {}
    statement = select(Flag.detector, Flag.rollout_id, Flag.evidence["rollouts"]).where(
        Flag.run_id == run_id, Flag.detector.in_(detectors), func.coalesce(Flag.training_step, 0) < before_step
    )
    found: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
    with transaction() as session:
        for detector, rollout_id, named in session.execute(statement):
            rollouts = [rollout_id] if rollout_id else named if isinstance(named, list) else []
            for each in rollouts:
                found[uuid.UUID(str(each))].add(detector)
    return dict(found)


def prepared_branch(run_id: uuid.UUID, detector: str, onset: int) -> tuple[int, dict[str, object] | None]:
    """Return the last step before the detector's first flag, and the checkpoint that a branch would start from.

    That is the last honest one by flags, verdicts and onsets, and in any case one from before this detector's flags.
    """
    first = select(func.min(Flag.training_step)).where(Flag.run_id == run_id, Flag.detector == detector)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        flagged = session.scalar(first)
        last_step = onset if flagged is None else max(0, min(onset, flagged - 1))
        found = [last_honest_checkpoint(session, run, detector=detector), newest_before(session, run, last_step)]
        checkpoints = [each for each in found if each is not None]
        if not checkpoints:
            return last_step, None
        earliest = min(checkpoints, key=lambda each: each.step if each.stage == Stage.GRPO else 0)
        return last_step, {"checkpoint_id": str(earliest.id), "stage": earliest.stage, "step": earliest.step}


def _interventions(session: Session, run_id: uuid.UUID) -> list[Alarm]:
    statement = select(Alarm).where(Alarm.run_id == run_id, Alarm.name == INTERVENTION)
    return list(session.scalars(statement.order_by(Alarm.id)))


def open_interventions(run_id: uuid.UUID, reached: int) -> list[Alarm]:
    """Return interventions up to the last saved step that did not end the run yet: its process died first."""
    with transaction() as session:
        alarms = _interventions(session, run_id)
    return [
        alarm for alarm in alarms if alarm.step <= reached and alarm.answer is None and not alarm.evidence.get(WAS_SEEN)
    ]


def accepted_patterns(run_id: uuid.UUID) -> dict[str, set[str]]:
    """Return the clusters by detector that a person let pass. They do not end the run a second time."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    with transaction() as session:
        for alarm in _interventions(session, run_id):
            if alarm.answer is not None or alarm.evidence.get(WAS_SEEN):
                found[str(alarm.evidence["detector"])].update(alarm.evidence.get(PATTERNS) or ())
    return dict(found)


def mark_interventions_seen(session: Session, run: Run) -> None:
    """Record, when the run ends, that a person who resumes it has seen its interventions."""
    for alarm in _interventions(session, run.id):
        alarm.evidence = {**alarm.evidence, WAS_SEEN: True}


def close_interventions(run_id: uuid.UUID, step: int) -> None:
    """A person resumed the run: the interventions that ended it have ended, answered or not."""
    with transaction() as session:
        for alarm in _interventions(session, run_id):
            if alarm.evidence.get(WAS_SEEN) and CLEARED not in alarm.evidence:
                alarm.evidence = {**alarm.evidence, CLEARED: step}
        announce(session, run_topic(run_id))
