"""Steering a training run while it goes on: pause it, change a safe setting, take a change back.

A change waits as a row until the run takes it up between two steps. Free of the web, because runs steer themselves too.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from backend.core.events import announce, run_topic
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.steering import (
    LEARNING_RATE,
    WARM_UP_RATE,
    DoesNotFit,
    NotSafe,
    is_of_warm_up,
    memory_saved,
    safe_settings,
    setting_of,
    with_setting,
)
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.runs.notes import Asker, note
from backend.runs.queries import setting_changes
from backend.runs.service import request_stop, resume_run
from backend.runs.tables import Run
from backend.training.steered_run import current_settings, is_in_warm_up
from backend.training.tables import SettingChange


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
