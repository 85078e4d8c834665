"""Steering a training run: its settings with all changes, what can be changed, and where it can be rolled back to.

A change waits as a row until the run applies it between two steps. Free of the web, because runs steer themselves too.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, run_topic
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import INTERVENTION
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.training.steering import (
    LEARNING_RATE,
    PARTS,
    WARM_UP_RATE,
    DoesNotFit,
    NotSafe,
    is_of_warm_up,
    memory_saved,
    safe_settings,
    setting_of,
    with_setting,
    with_settings,
)
from backend.domain.vocabulary import AlarmAnswer, Role, RunKind, RunStatus
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.runs.notes import Asker, note
from backend.runs.queries import setting_changes
from backend.runs.service import request_stop, resume_run
from backend.runs.tables import Run
from backend.studies.queries import start_of
from backend.training.tables import Alarm, SettingChange

PREPARED = "branch"
"""Key of an alarm's evidence: {checkpoint_id, stage, step} of the branch that one click starts."""


@dataclass(frozen=True, slots=True)
class OfferedAnswer:
    """What one click, one command or one call does about an alarm."""

    answer: AlarmAnswer
    label: str
    confirm: str = ""
    """A question before it is done."""


@dataclass(frozen=True, slots=True)
class GoodPoints:
    """What a run can be rolled back to: checkpoints that have their weights."""

    saved: Sequence[Checkpoint]
    """Of reinforcement."""
    start: Checkpoint | None
    """The policy that reinforcement began with."""

    @classmethod
    def of(cls, session: Session, run: Run) -> "GoodPoints":
        of_run = (Checkpoint.run_id == run.id, Checkpoint.stage == Stage.GRPO, Checkpoint.pruned_at.is_(None))
        return cls(session.scalars(select(Checkpoint).where(*of_run)).all(), start_of(session, run))

    def before(self, alarm: Alarm) -> Checkpoint | None:
        """Of what was saved before the trouble began, the best by held-out reward."""
        onset = alarm.evidence.get("onset")
        last = alarm.step if onset is None else int(onset)
        sound = [row for row in self.saved if row.step <= last]
        if sound:
            return max(sound, key=lambda row: (row.heldout_reward is not None, row.heldout_reward or 0.0, row.step))
        return self.start


def current_settings(session: Session, run: Run) -> TrainingConfiguration:
    """The run's choices with all changes, also those that wait."""
    base = TrainingConfiguration.of_run(run.configuration)
    return with_settings(base, [(change.name, change.after) for change in setting_changes(session, run.id)])


def is_in_warm_up(session: Session, run: Run) -> bool:
    """Does the run still imitate, or has it yet to begin? Reinforcement starts from a checkpoint that was examined as
    such."""
    if run.branch_step is not None or not TrainingConfiguration.of_run(run.configuration).recipe.has_sft:
        return False
    is_start = Checkpoint.heldout["training_step"].astext.is_not(None)
    is_past = or_(Checkpoint.stage == Stage.GRPO, (Checkpoint.stage == Stage.SFT) & is_start)
    return session.scalar(select(Checkpoint.id).where(Checkpoint.run_id == run.id, is_past).limit(1)) is None


def is_of_the_warm_up(alarm: Alarm) -> bool:
    """Was it raised by a warm-up's curve? Its step is then one of the warm-up."""
    return str(alarm.evidence.get("curve", "")).startswith("sft/")


def good_checkpoint(session: Session, run: Run, alarm: Alarm) -> Checkpoint | None:
    """Where a roll back because of this alarm goes on from: what was prepared, while its weights are kept."""
    return _good(session, GoodPoints.of(session, run), alarm)


def offered_answers(session: Session, run: Run, alarms: Sequence[Alarm]) -> dict[uuid.UUID, list[OfferedAnswer]]:
    """By alarm: what helps against its kind and would do something as the run is."""
    if not alarms:
        return {}
    offering = _Offering(session, run)
    return {alarm.id: [*offering.helping(alarm), *offering.always()] for alarm in alarms}


class _Offering:
    """Of one run, which is looked up once."""

    def __init__(self, session: Session, run: Run) -> None:
        self._session, self._run = session, run
        self._settings, self._is_in_warm_up = current_settings(session, run), is_in_warm_up(session, run)
        self._points = GoodPoints.of(session, run)
        self._goes_on = run.status is not RunStatus.COMPLETED

    def helping(self, alarm: Alarm) -> Iterator[OfferedAnswer]:
        for answer in ALARM_KINDS[alarm.name].answers:
            offered = self._offer(answer, alarm)
            if offered is not None:
                yield offered

    def always(self) -> Iterator[OfferedAnswer]:
        if not self._run.status.is_over:
            yield OfferedAnswer(AlarmAnswer.PAUSE, "Pause")
            yield OfferedAnswer(AlarmAnswer.STOP, "Stop")
        yield OfferedAnswer(AlarmAnswer.DISMISS, "It is none")

    def _offer(self, answer: AlarmAnswer, alarm: Alarm) -> OfferedAnswer | None:
        match answer:
            case AlarmAnswer.LOWER_RATE:
                return self._lower_rate(alarm)
            case AlarmAnswer.ROLL_BACK:
                return self._roll_back(alarm)
            case AlarmAnswer.SAVE_MEMORY:
                return self._save_memory()
        return None

    def _lower_rate(self, alarm: Alarm) -> OfferedAnswer | None:
        if is_of_the_warm_up(alarm):
            return OfferedAnswer(AlarmAnswer.LOWER_RATE, "Lower the warm-up's rate") if self._is_in_warm_up else None
        is_used = self._goes_on and self._settings.recipe.has_grpo
        return OfferedAnswer(AlarmAnswer.LOWER_RATE, "Lower the rate") if is_used else None

    def _roll_back(self, alarm: Alarm) -> OfferedAnswer | None:
        if not self._settings.recipe.has_grpo or self._is_in_warm_up or is_of_the_warm_up(alarm):
            return None
        good = _good(self._session, self._points, alarm)
        if good is None:
            return None
        place = f"{good.stage} step {good.step}"
        which = "the last honest checkpoint" if alarm.name == INTERVENTION else "the last good checkpoint"
        stops = "" if self._run.status.is_over else " This run stops."
        label = f"Roll back to {place}" if PREPARED in alarm.evidence else "Roll back"
        confirm = f"Start a branch from {which}, {place}, with a lower rate?{stops}"
        return OfferedAnswer(AlarmAnswer.ROLL_BACK, label, confirm)

    def _save_memory(self) -> OfferedAnswer | None:
        if not self._goes_on or not self._run.can_resume:
            return None
        saved = memory_saved(self._settings, is_in_warm_up=self._is_in_warm_up)
        if not saved:
            return None
        how = f"Compute in {saved[PARTS]} parts" if PARTS in saved else "Compute activations twice"
        return OfferedAnswer(AlarmAnswer.SAVE_MEMORY, f"{how} and resume")


def _good(session: Session, points: GoodPoints, alarm: Alarm) -> Checkpoint | None:
    if prepared := alarm.evidence.get(PREPARED):
        checkpoint = session.get(Checkpoint, uuid.UUID(prepared["checkpoint_id"]))
        if checkpoint is not None and checkpoint.pruned_at is None:
            return checkpoint
    return points.before(alarm)


class NotTraining(Conflict):
    """Only a training run can be steered."""


class TrainingIsOver(Conflict):
    """This run is completed: nothing would take the change up. Branch off one of its checkpoints instead."""


def changes_until(session: Session, run_id: uuid.UUID, step: int) -> list[SettingChange]:
    """Those that were in force at a step."""
    return [change for change in setting_changes(session, run_id) if change.step is not None and change.step <= step]


def request_pause(session: Session, actor: Asker, run: Run) -> None:
    """Ask the run to save its state and rest after the step under way."""
    may_steer(actor, run)
    request_stop(session, actor, run, is_pause=True)


def change_settings(
    session: Session, actor: Asker, run: Run, changes: Mapping[str, Any], *, alarm_id: uuid.UUID | None = None
) -> list[SettingChange]:
    """Record changes for the run to take up between two steps. A value that it has already is no change."""
    may_steer(actor, run)
    if run.status is RunStatus.COMPLETED:
        raise TrainingIsOver
    session.refresh(run, ["configuration"], with_for_update={"of": Run, "key_share": True})
    rows, warms_up = [], any(map(is_of_warm_up, changes)) and is_in_warm_up(session, run)
    for name, before, after in resolved_changes(current_settings(session, run), changes, is_in_warm_up=warms_up):
        row = SettingChange(
            run_id=run.id, name=name, before=before, after=after, alarm_id=alarm_id, asked_by=actor.person_id
        )
        session.add(row)
        session.flush()
        note(session, actor, "run.set", "run", run.id, name=run.name, setting=name, before=before, after=after)
        rows.append(row)
    announce(session, run_topic(run.id))
    return rows


def offered_settings(session: Session, run: Run) -> dict[str, Any]:
    """What may be changed and would be used, with its values."""
    found = safe_settings(current_settings(session, run))
    if is_in_warm_up(session, run):
        return found
    return {name: value for name, value in found.items() if not is_of_warm_up(name)}


def rate_in_use(session: Session, run: Run) -> str:
    """The setting that is the learning rate of the stage that the run is in."""
    return WARM_UP_RATE if is_in_warm_up(session, run) else LEARNING_RATE


def lower_rate(
    session: Session, actor: Asker, run: Run, name: str, *, alarm_id: uuid.UUID | None = None
) -> list[SettingChange]:
    """Multiply this learning rate by the factor that the run's alarms have."""
    now = current_settings(session, run)
    before = now.sft.learning_rate if name == WARM_UP_RATE else now.grpo.learning_rate
    return change_settings(session, actor, run, {name: before * now.alarms.rate_factor}, alarm_id=alarm_id)


def save_memory(session: Session, actor: Asker, run: Run, *, alarm_id: uuid.UUID) -> None:
    """Have the run's next attempt need less memory, and queue it."""
    changes = memory_saved(current_settings(session, run), is_in_warm_up=is_in_warm_up(session, run))
    change_settings(session, actor, run, changes, alarm_id=alarm_id)
    resume_run(session, actor, run)


def undo_change(session: Session, actor: Asker, run: Run, change_id: uuid.UUID) -> list[SettingChange]:
    """Set the value again that stood before a change. One that still waits is changed back before it was used."""
    change = session.get(SettingChange, change_id)
    if change is None or change.run_id != run.id:
        raise NotFound("There is no such change of this run.")
    return change_settings(session, actor, run, {change.name: change.before})


def resolved_changes(
    now: TrainingConfiguration, changes: Mapping[str, Any], *, is_in_warm_up: bool = False
) -> list[tuple[str, Any, Any]]:
    """(name, before, after) of what really changes. Raises InvalidInput with each wrong name or value."""
    found, wrong = [], {}
    for name, value in changes.items():
        try:
            if is_of_warm_up(name) and not is_in_warm_up:
                raise NotSafe
            after = with_setting(now, name, value)
        except NotSafe:
            wrong[name] = f"This cannot be changed while a run trains. What can: {', '.join(_offered(now))}."
        except DoesNotFit as error:
            wrong[name] = f"{error}."
        except ValidationError as error:
            wrong[name] = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ").rstrip(".") + "."
        else:
            before = setting_of(now, name)
            now = after
            if setting_of(now, name) != before:
                found.append((name, before, setting_of(now, name)))
    if wrong:
        raise InvalidInput(fields=wrong)
    return found


def must_be_training(run: Run) -> None:
    if run.kind is not RunKind.TRAINING:
        raise NotTraining(f"This run is a {run.kind}; only a training run can be steered.")


def may_steer(actor: Asker, run: Run) -> None:
    must_be_training(run)
    if not actor.role.includes(Role.TRAINER):
        raise NotAllowed(f"Steering a training run needs the role {Role.TRAINER}.")


def _offered(now: TrainingConfiguration) -> list[str]:
    """The names that are not about alarms and detectors, which are many."""
    many = ("alarms.", "detectors.")
    return [name for name in safe_settings(now) if not name.startswith(many)] + [f"{block}…" for block in many]
