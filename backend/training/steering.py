"""Settings of a training run that change while it trains, and the detector actions in force.

A change waits as a row until the run applies it between two steps. Free of the web, because runs steer themselves too.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, topic_of
from backend.detectors.queries import active_settings_for
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import Threshold, override_thresholds
from backend.domain.detectors.spec import Action, DetectorSpec
from backend.domain.training.alarms import AS_SET
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.training.steering import (
    LEARNING_RATE,
    WARM_UP_RATE,
    DoesNotFit,
    NotSafe,
    is_of_warm_up,
    safe_settings,
    with_setting,
    with_settings,
)
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.runs.queries import setting_changes
from backend.runs.tables import Run
from backend.training.tables import Intervention, SettingChange
from backend.web.audit import Requester, audit


class NotTraining(Conflict):
    """Only a training run can be steered."""


class TrainingIsOver(Conflict):
    """This run is completed, so a change would have no effect. Start a branch from one of its checkpoints instead."""


def require_training_run(run: Run) -> None:
    if run.kind is not RunKind.TRAINING:
        raise NotTraining(f"This run is a {run.kind}; only a training run can be steered.")


def require_trainer(actor: Requester, run: Run) -> None:
    require_training_run(run)
    if not actor.role.includes(Role.TRAINER):
        raise NotAllowed(f"Steering a training run needs the role {Role.TRAINER}.")


def current_settings(session: Session, run: Run) -> TrainingConfiguration:
    """The run's configuration with all changes, pending ones included."""
    base = TrainingConfiguration.of_run(run.configuration)
    return with_settings(base, [(change.name, change.after) for change in setting_changes(session, run.id)])


def is_in_warm_up(session: Session, run: Run) -> bool:
    """Whether the run has not finished SFT yet: GRPO starts from a checkpoint that was evaluated as its start."""
    if run.branch_step is not None or not TrainingConfiguration.of_run(run.configuration).recipe.has_sft:
        return False
    is_start = Checkpoint.heldout["training_step"].astext.is_not(None)
    is_past = or_(Checkpoint.stage == Stage.GRPO, (Checkpoint.stage == Stage.SFT) & is_start)
    return session.scalar(select(Checkpoint.id).where(Checkpoint.run_id == run.id, is_past).limit(1)) is None


def changeable_settings(session: Session, run: Run) -> dict[str, JsonValue]:
    """Settings that can be changed now and would have an effect, with their values."""
    settings = safe_settings(current_settings(session, run))
    if is_in_warm_up(session, run):
        return settings
    return {name: value for name, value in settings.items() if not is_of_warm_up(name)}


def change_settings(
    session: Session, actor: Requester, run: Run, changes: Mapping[str, JsonValue], *, alarm_id: uuid.UUID | None = None
) -> list[SettingChange]:
    """Record changes for the run to apply between two steps. A value that the setting already has is no change."""
    require_trainer(actor, run)
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
        audit(session, actor, "run.set", "run", run.id, name=run.name, setting=name, before=before, after=after)
        rows.append(row)
    announce(session, topic_of("run", run.id))
    return rows


def resolved_changes(
    now: TrainingConfiguration, changes: Mapping[str, JsonValue], *, is_in_warm_up: bool = False
) -> list[tuple[str, JsonValue, JsonValue]]:
    """The effective changes as (name, before, after). Raises InvalidInput with each wrong name or value."""
    found, wrong = [], {}
    for name, value in changes.items():
        try:
            if is_of_warm_up(name) and not is_in_warm_up:
                raise NotSafe
            changed = with_setting(now, name, value)
        except NotSafe:
            blocks = ("alarms.", "detectors.")  # with many settings each
            names = [each for each in safe_settings(now) if not each.startswith(blocks)]
            names += [f"{block}…" for block in blocks]
            wrong[name] = f"This cannot be changed during training. You can change: {', '.join(names)}."
        except DoesNotFit as error:
            wrong[name] = f"{error}."
        except ValidationError as error:
            wrong[name] = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ").rstrip(".") + "."
        else:
            before, after = (safe_settings(each).get(name) for each in (now, changed))
            now = changed
            if after != before:
                found.append((name, before, after))
    if wrong:
        raise InvalidInput(fields=wrong)
    return found


def changes_until(session: Session, run_id: uuid.UUID, step: int) -> list[SettingChange]:
    """Changes that were in force at a step."""
    return [change for change in setting_changes(session, run_id) if change.step is not None and change.step <= step]


def undo_change(session: Session, actor: Requester, run: Run, change_id: uuid.UUID) -> list[SettingChange]:
    """Restore the value from before a change. A pending change never takes effect."""
    change = session.get(SettingChange, change_id)
    if change is None or change.run_id != run.id:
        raise NotFound("This run has no such change.")
    return change_settings(session, actor, run, {change.name: change.before})


def lower_rate(
    session: Session, actor: Requester, run: Run, name: str | None = None, *, alarm_id: uuid.UUID | None = None
) -> list[SettingChange]:
    """Multiply this learning rate (default: that of the current stage) by the factor of the alarm settings."""
    now = current_settings(session, run)
    name = name or (WARM_UP_RATE if is_in_warm_up(session, run) else LEARNING_RATE)
    before = now.sft.learning_rate if name == WARM_UP_RATE else now.grpo.learning_rate
    return change_settings(session, actor, run, {name: before * now.alarms.rate_factor}, alarm_id=alarm_id)


@dataclass(frozen=True, slots=True)
class DetectorAction:
    """A detector in a training run."""

    spec: DetectorSpec
    wanted: str
    """The run's own setting, or `as_set`."""
    action: Action
    """The action in force."""
    is_enabled: bool
    thresholds: Mapping[str, float]
    """Thresholds that the run sets itself. Others come from the environment, else the defaults."""


def detector_actions(session: Session, run: Run, now: TrainingConfiguration) -> list[DetectorAction]:
    """All detectors with their actions under the settings `now`. The environment's settings are read when an attempt
    starts."""
    version = session.get_one(EnvironmentVersion, run.version_id)
    settings = override_thresholds(active_settings_for(session, version.environment_id), now.detectors.thresholds)
    return [
        DetectorAction(
            spec,
            str(getattr(now.detectors, name, AS_SET)),
            now.detectors.action_of(name, settings[name].action),
            settings[name].enabled,
            {each.name: each.value for each in now.detectors.thresholds if each.detector == name},
        )
        for name, spec in SPECS.items()
    ]


def thresholds_of_run(session: Session, run: Run) -> Sequence[Threshold]:
    """The thresholds that a training run sets itself, with all changes. None if this version of Proctor cannot read its
    configuration."""
    if run.kind is not RunKind.TRAINING:
        return ()
    try:
        return current_settings(session, run).detectors.thresholds
    except ValidationError:
        return ()


def list_interventions(session: Session, run_id: uuid.UUID) -> Sequence[Intervention]:
    """What detectors did in a run, newest first."""
    statement = select(Intervention).where(Intervention.run_id == run_id)
    return session.scalars(statement.order_by(Intervention.step.desc(), Intervention.detector)).all()
