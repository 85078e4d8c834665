"""What the actions of detectors leave behind: interventions as rows, the checkpoint that a branch is prepared from, and
what people let pass."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
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
from backend.studies.onset.queries import last_honest_checkpoint
from backend.training.branches import newest_before
from backend.training.tables import Alarm, Intervention

PATTERNS = "patterns"
"""Key of an alarm's evidence: the clusters that were flagged."""
LAID_DOWN = "laid_down"
"""Key of an alarm's evidence: the run rested because of it, so that whoever resumes it has let it pass."""


@dataclass(frozen=True, slots=True)
class ScreenedRollouts:
    """Rollouts of one step that a detector keeps out of the gradient."""

    detector: str
    rollouts: int
    sentence: str
    examples: tuple[uuid.UUID, ...] = ()
    seen: str = ""
    """In the first of them, in the detector's words."""


def record_screened(run_id: uuid.UUID, step: int, screened: Iterable[ScreenedRollouts]) -> None:
    """One row a detector and step; people are told of the first of a detector in this run."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        told = set(session.scalars(select(Intervention.detector).where(Intervention.run_id == run_id)))
        for each in screened:
            values: dict[str, Any] = {"rollouts": each.rollouts, "sentence": plain_text(each.sentence)}
            place = {"run_id": run_id, "step": step, "detector": each.detector, "action": Action.SCREEN}
            statement = insert(Intervention).values(id=new_id(), **place, **values)
            session.execute(statement.on_conflict_do_update(index_elements=["run_id", "step", "detector"], set_=values))
            if each.detector not in told:
                _tell(session, run, step, each)
        announce(session, run_topic(run_id))


def _tell(session: Session, run: Run, step: int, screened: ScreenedRollouts) -> None:
    seen = f" Seen in the first example: {screened.seen}" if screened.seen else ""
    outbox.announce(
        session,
        kind=NoticeKind.INTERVENTION,
        title=f"{title_of(screened.detector)}: rollouts of {run.name} are screened",
        text=f"Step {step}: {screened.sentence}{seen} What this detector flags from now on stays out of the gradient"
        " until a person judged it; this is told once for a run.",
        path=f"/review?run={run.id}&detector={screened.detector}",
        run_id=run.id,
        evidence={
            "detector": screened.detector,
            "step": step,
            "screened": screened.rollouts,
            "seen": screened.seen,
            "rollouts": screened.examples,
        },
    )


def title_of(detector: str) -> str:
    return SPECS[detector].title if detector in SPECS else detector


def flagged_by(run_id: uuid.UUID, detectors: Collection[str], *, before_step: int) -> dict[uuid.UUID, set[str]]:
    """Rollouts that flags of these detectors are about or name, with the detectors that did."""
    if not detectors:
        return {}
    named = Flag.evidence["rollouts"]
    statement = select(Flag.detector, Flag.rollout_id, named).where(
        Flag.run_id == run_id, Flag.detector.in_(detectors), func.coalesce(Flag.training_step, 0) < before_step
    )
    found: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
    with transaction() as session:
        for detector, rollout_id, rollouts in session.execute(statement):
            for each in [rollout_id] if rollout_id else _ids(rollouts):
                found[each].add(detector)
    return dict(found)


def _ids(told: Any) -> list[uuid.UUID]:
    return [uuid.UUID(each) for each in told] if isinstance(told, list) else []


def prepared_branch(run_id: uuid.UUID, detector: str, onset: int) -> tuple[int, dict[str, Any] | None]:
    """(the last step before the detector's first flag, the checkpoint that a branch would go on from): the last honest
    one by flags, verdicts and onsets, and in any case one that played nothing of what this detector flagged."""
    first = select(func.min(Flag.training_step)).where(Flag.run_id == run_id, Flag.detector == detector)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        flagged = session.scalar(first)
        sound = onset if flagged is None else max(0, min(onset, flagged - 1))
        found = [last_honest_checkpoint(session, run, detector=detector), newest_before(session, run, sound)]
        kept = [each for each in found if each is not None]
        if not kept:
            return sound, None
        earliest = min(kept, key=_step_of)
        return sound, {"checkpoint_id": str(earliest.id), "stage": earliest.stage, "step": earliest.step}


def _step_of(checkpoint: Checkpoint) -> int:
    """Of GRPO; 0 before it."""
    return checkpoint.step if checkpoint.stage == Stage.GRPO else 0


def open_interventions(run_id: uuid.UUID, reached: int) -> list[Alarm]:
    """Those after which the run has not rested yet, up to the step whose state is saved: its process ended first."""
    return [
        alarm
        for alarm in _interventions(run_id)
        if alarm.step <= reached and alarm.answer is None and not alarm.evidence.get(LAID_DOWN)
    ]


def patterns_let_pass(run_id: uuid.UUID) -> dict[str, set[str]]:
    """By detector: clusters after which a person said go on. The same ones end the run no second time."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for alarm in _interventions(run_id):
        if alarm.answer is not None or alarm.evidence.get(LAID_DOWN):
            found[str(alarm.evidence["detector"])].update(alarm.evidence.get(PATTERNS) or ())
    return dict(found)


def _interventions(run_id: uuid.UUID) -> list[Alarm]:
    statement = select(Alarm).where(Alarm.run_id == run_id, Alarm.name == INTERVENTION).order_by(Alarm.id)
    with transaction() as session:
        return list(session.scalars(statement))


def lay_down(session: Session, run: Run) -> None:
    """The run rests: whoever resumes it has seen what its detectors did."""
    for alarm in session.scalars(select(Alarm).where(Alarm.run_id == run.id, Alarm.name == INTERVENTION)):
        alarm.evidence = {**alarm.evidence, LAID_DOWN: True}


def close_interventions(run_id: uuid.UUID, step: int) -> None:
    """Somebody resumed the run: what it rested for is over, whether it was answered or not."""
    statement = select(Alarm).where(Alarm.run_id == run_id, Alarm.name == INTERVENTION)
    with transaction() as session:
        for alarm in session.scalars(statement):
            if alarm.evidence.get(LAID_DOWN) and CLEARED not in alarm.evidence:
                alarm.evidence = {**alarm.evidence, CLEARED: step}
        announce(session, run_topic(run_id))
