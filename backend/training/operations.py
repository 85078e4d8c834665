"""Operations on training runs: settings, pre-flight, start, alarms, changes and branches."""

import uuid
from collections.abc import Sequence

from sqlalchemy.orm import Session

from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import CLEARED
from backend.domain.training.configuration import batch_in_words
from backend.domain.training.preflight.findings import PreflightFinding, worst
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import AlarmAnswer, PreflightStatus, Role
from backend.operations.declaration import operation, reference
from backend.runs import queries as run_queries
from backend.runs import references as _run_reference  # noqa: F401  how an address names a run
from backend.runs.schemas import RunResponse
from backend.runs.service import request_stop
from backend.runs.tables import Run
from backend.training import alarms, branches, preflight, schemas, service, steering
from backend.training.launch import ConfigurationFile, configuration_file_of
from backend.training.launch_form import launch_sections
from backend.training.preflight import advice_of
from backend.training.setting_texts import stored_configuration
from backend.training.tables import Alarm, Preflight
from backend.web.identity import Actor
from backend.web.paging import Page

NOTICES = {
    AlarmAnswer.LOWER_RATE: "The learning rate is lowered after the current step.",
    AlarmAnswer.SAVE_MEMORY: "The run resumes from its last saved state and needs less memory.",
    AlarmAnswer.PAUSE: "The run pauses after the current step.",
    AlarmAnswer.STOP: "The run is stopping. Finished work is kept.",
    AlarmAnswer.ROLL_BACK: "A branch continues from the last good checkpoint.",
    AlarmAnswer.DISMISS: "The alarm is dismissed.",
}


reference(Preflight, "Id of a pre-flight.")(service.get_preflight)


@operation("GET /training/presets", role=Role.VIEWER, tool=True)
def list_presets(session: Session, actor: Actor) -> dict[str, schemas.PresetResponse]:
    """List tested training configurations and what each one is for."""
    return {
        name: schemas.PresetResponse.model_validate(
            preset.model_dump() | {"configuration": preset.configuration.resolved()}
        )
        for name, preset in PRESETS.items()
    }


@operation("GET /training/choices", role=Role.VIEWER)
def list_settings(session: Session, actor: Actor, request: schemas.ListSettings) -> Page[schemas.TrainingSetting]:
    """List all training settings with their defaults, allowed values and help, in the order of the launch page."""
    sections = launch_sections(schemas.resolve_configuration(request.preset, {}))
    settings = [
        schemas.TrainingSetting(
            name=field.name,
            section=section.title,
            default=field.value,
            one_of=[option.value for option in field.options if option.value],
            only=field.only or section.only,
            help=field.help,
        )
        for section in sections
        for field in section.fields
    ]
    return Page(items=settings)


@operation("POST /training", role=Role.TRAINER, in_project=True, status=201, tool=True, audited=False)
def start_training(session: Session, actor: Actor, request: schemas.TrainingRequest) -> schemas.StartedTraining:
    """Start a training run: SFT warm-up, GRPO, or one after the other. Follow it with the operations on runs."""
    return schemas.StartedTraining.of(service.start_training(session, actor, request))


@operation(
    "POST /training/preflight",
    role=Role.TRAINER,
    in_project=True,
    status=201,
    poll="/training/preflight/{id}",
    tool=True,
    audited=False,
)
def start_preflight(session: Session, actor: Actor, request: schemas.TrainingRequest) -> schemas.PreflightResponse:
    """Check a training run before you start it: certificate, tasks, memory, success rate and duration.

    Findings that need no worker are in the first result.
    """
    return _preflight_response(session, preflight.start_preflight(session, actor, request))


@operation("GET /training/preflight/{preflight}", role=Role.VIEWER, poll="/training/preflight/{id}", tool=True)
def show_preflight(session: Session, actor: Actor, preflight: Preflight) -> schemas.PreflightResponse:
    """Show the findings of a pre-flight so far, and when it has ended, which recipe suits what it measured."""
    return _preflight_response(session, preflight)


@operation("GET /training/{run}/configuration", role=Role.VIEWER)
def get_configuration(session: Session, actor: Actor, run: Run) -> ConfigurationFile:
    """Show the configuration file that starts the same training run again with `proctor train --config`.

    It does not have the run's name, because names of policies are unique.
    """
    return configuration_file_of(run)


@operation("GET /runs/{run}/alarms", role=Role.VIEWER, tool=True)
def list_alarms(session: Session, actor: Actor, run: Run) -> schemas.AlarmList:
    """List the alarms of a training run, newest first, with the possible answers."""
    steering.require_training_run(run)
    rows = alarms.list_alarms(session, run.id)
    offered = alarms.offered_answers(session, run, [row for row in rows if row.answer is None])
    thresholds = steering.current_settings(session, run).alarms.model_dump(mode="json")
    return schemas.AlarmList(
        items=[_alarm_response(row, offered.get(row.id, ())) for row in rows], thresholds=thresholds
    )


@operation("POST /runs/{run}/alarms/{alarm_id}", role=Role.TRAINER, audited=False, page="{page}", notice="{notice}")
def answer_alarm(
    session: Session, actor: Actor, run: Run, alarm_id: uuid.UUID, request: schemas.AnswerAlarm
) -> schemas.AnsweredAlarm:
    """Answer an alarm: lower the learning rate, pause, stop, roll back, save memory and resume, or dismiss it.

    Answers that would have no effect are refused.
    """
    steering.require_training_run(run)
    onto = service.version_for_branch(session, run, request.version, request.without_certificate)
    branch = alarms.answer_alarm(session, actor, run, alarm_id, request.answer, onto=onto)
    notice, page = NOTICES[request.answer], f"/runs/{branch.id}" if branch else f"/runs/{run.id}/alarms"
    if request.answer is AlarmAnswer.LOWER_RATE and run.status.is_over:
        notice = "The learning rate is lowered when the run is resumed."
    alarm = _alarm_response(alarms.get_alarm(session, run, alarm_id))
    return schemas.AnsweredAlarm(alarm=alarm, branch_run_id=branch.id if branch else None, page=page, notice=notice)


@operation("GET /runs/{run}/interventions", role=Role.VIEWER, command="run interventions")
def list_interventions(session: Session, actor: Actor, run: Run) -> schemas.InterventionList:
    """List what detectors did in a training run, newest first, and the action of each detector.

    Change actions with the settings `detectors.NAME`.
    """
    steering.require_training_run(run)
    found = steering.detector_actions(session, run, steering.current_settings(session, run))
    return schemas.InterventionList(
        items=[schemas.InterventionResponse.of(row) for row in steering.list_interventions(session, run.id)],
        actions={each.spec.id: schemas.DetectorActionResponse.of(each) for each in found},
    )


@operation("GET /runs/{run}/settings", role=Role.VIEWER)
def get_settings(session: Session, actor: Actor, run: Run) -> schemas.RunSettings:
    """Show the settings that can be changed during training, and all changes so far."""
    steering.require_training_run(run)
    changes = [schemas.SettingChangeResponse.of(change) for change in run_queries.setting_changes(session, run.id)]
    return schemas.RunSettings(settings=steering.changeable_settings(session, run), changes=changes)


@operation("POST /runs/{run}/settings", role=Role.TRAINER, tool=True, audited=False)
def change_settings(
    session: Session, actor: Actor, run: Run, request: schemas.ChangeSettings
) -> Page[schemas.SettingChangeResponse]:
    """Change settings of a training run from its next step on. Memory settings change when the run is resumed."""
    steering.require_training_run(run)
    rows = steering.change_settings(session, actor, run, request.changes)
    return Page(items=[schemas.SettingChangeResponse.of(row) for row in rows])


@operation("POST /runs/{run}/settings/{change_id}/undo", role=Role.TRAINER, audited=False)
def undo_change(session: Session, actor: Actor, run: Run, change_id: uuid.UUID) -> Page[schemas.SettingChangeResponse]:
    """Restore the value that a setting had before a change."""
    steering.require_training_run(run)
    return Page(
        items=[schemas.SettingChangeResponse.of(row) for row in steering.undo_change(session, actor, run, change_id)]
    )


@operation(
    "POST /runs/{run}/pause",
    role=Role.TRAINER,
    command="run pause",
    page="/runs/{run}",
    notice="The run pauses after the current step and saves its state.",
    audited=False,
)
def pause_run(session: Session, actor: Actor, run: Run) -> RunResponse:
    """Pause a training run: it saves its state after the current step. `run resume` continues from there."""
    steering.require_trainer(actor, run)
    request_stop(session, actor, run, is_pause=True)
    return RunResponse.of(run)


@operation("POST /runs/{run}/branch", role=Role.TRAINER, status=201, tool=True, audited=False)
def start_branch(session: Session, actor: Actor, run: Run, request: schemas.StartBranch) -> schemas.BranchResponse:
    """Start a run that continues from a checkpoint of this training run with the remaining steps."""
    steering.require_training_run(run)
    checkpoint = branches.checkpoint_for(session, run, request.checkpoint_id, request.step)
    onto = service.version_for_branch(session, run, request.version, request.without_certificate)
    return schemas.BranchResponse.of(branches.start_branch(session, actor, run, checkpoint, request.changes, onto=onto))


@operation("GET /runs/{run}/branches", role=Role.VIEWER)
def list_branches(session: Session, actor: Actor, run: Run) -> Page[schemas.BranchResponse]:
    """List the runs that continue from a checkpoint of this run, oldest first."""
    steering.require_training_run(run)
    return Page(items=[schemas.BranchResponse.of(branch) for branch in run_queries.branches_of(session, run.id)])


def _alarm_response(alarm: Alarm, offered: Sequence[alarms.OfferedAnswer] = ()) -> schemas.AlarmResponse:
    kind = ALARM_KINDS[alarm.name]
    return schemas.AlarmResponse.from_row(
        alarm,
        title=kind.title,
        cause=kind.cause,
        advice=kind.advice,
        is_open=alarm.answer is None and CLEARED not in alarm.evidence,
        answers=offered,
    )


def _preflight_response(session: Session, row: Preflight) -> schemas.PreflightResponse:
    environment = f"{row.version.environment.name}@{row.version.number}"
    findings = [PreflightFinding.model_validate(finding) for finding in row.findings]
    return schemas.PreflightResponse.from_row(
        row,
        environment=environment,
        verdict=worst(findings),
        findings=findings,
        advice=advice_of(session, row),
        arithmetic=batch_in_words(stored_configuration(row.configuration)),
        is_finished=row.status.is_over,
        is_successful=row.status is PreflightStatus.COMPLETED,
        done=row.progress.get("done") or 0,
        total=row.progress.get("total") or None,
        message=row.reason or str(row.progress.get("phase") or row.status),
    )
