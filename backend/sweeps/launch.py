"""Start a sweep, and its trials as ordinary training runs. What cannot work is refused before anything is queued."""

import difflib
import math
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from backend.core.events import SWEEPS, announce
from backend.core.row_access import current_project, is_taken, limit_to
from backend.domain.ids import new_id, stable_id
from backend.domain.projects.access import ProjectAccess
from backend.domain.sweeps.space import Axis, Parameter, Point, Space, Value, grid_points, grid_size, probe_points
from backend.domain.sweeps.sweep import MAX_TRIALS, SweepSampler, SweepSettings, TrialState
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import portions
from backend.domain.vocabulary import Role
from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError, Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.sweeps.schemas import StartSweep
from backend.sweeps.tables import Sweep, SweepTrial
from backend.sweeps.waking import wake_sweep
from backend.training.launch_form import LaunchField, launch_sections
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.service import (
    check_environment,
    configuration_of_request,
    reason_without_certificate,
    start_training,
    version_of_request,
)
from backend.training.setting_texts import nest, stored_configuration, write
from backend.web.audit import Requester, audit

DEFAULT_TRIALS = 20
PROBES = 64
"""Random points of a search that are checked before it starts. A grid is checked completely."""


def start_sweep(session: Session, actor: Requester, request: StartSweep) -> Sweep:
    """Queue a sweep. A repeated key returns the sweep that it started. Raises InvalidInput by field."""
    sweep_id = stable_id("sweep", actor.person_id, request.key) if request.key else new_id()
    if request.key and (known := session.get(Sweep, sweep_id)):
        return known
    base = resolve_configuration(request.preset, request.configuration)
    space = resolve_space(request.parameters, base)
    trials = _number_of_trials(request, space)
    training = TrainingRequest(version_id=request.version_id)
    working = _check_points(version_of_request(session, training), request.sampler, space, base)
    training.configuration = with_values(base, working)
    configuration, versions = configuration_of_request(session, training)
    reason = reason_without_certificate(versions, request.without_certificate)
    if request.max_steps is not None and request.max_steps < configuration.total_steps:
        message = f"One run takes {configuration.total_steps:,} steps, so none could start."
        raise InvalidInput(fields={"max_steps": message})
    version = versions[0]
    settings = SweepSettings(
        space=dict(space),
        trials=trials,
        **request.model_dump(
            include={"sampler", "pruner", "parallel", "startup_trials", "max_steps", "max_hours", "seed"}
        ),
    )
    sweep = Sweep(
        id=sweep_id,
        name=(request.name or f"{version.environment.name} sweep {sweep_id.hex[-6:]}").strip()[:60],
        project_id=_project_of(session, version),
        version_id=version.id,
        configuration=configuration.resolved(),
        without_certificate=reason,
        settings=settings.model_dump(mode="json"),
        created_by=actor.person_id,
    )
    session.add(sweep)
    session.flush()
    wake_sweep(session, sweep.id)
    audit(session, actor, "sweep.start", "sweep", sweep.id, name=sweep.name, trials=trials, sampler=settings.sampler)
    announce(session, SWEEPS)
    return sweep


def start_trial(session: Session, sweep: Sweep, number: int, values: Point) -> SweepTrial:
    """Start the training run of a point, and store both. A run that cannot start is a failed trial with the reason.

    From here on, new rows of the session belong to the sweep's project.
    """
    trial = SweepTrial(sweep_id=sweep.id, number=number, values=values, state=TrialState.RUNNING, run=None)
    limit_to(session, ProjectAccess(Role.ADMIN), sweep.project_id)
    name = f"{sweep.name} {number}"
    if is_taken(session, Policy.name, name):
        name = f"{name} {sweep.id.hex[-6:]}"
    request = TrainingRequest(
        version_id=sweep.version_id,
        configuration=with_values(stored_configuration(sweep.configuration), values),
        name=name,
        without_certificate=sweep.without_certificate,
        key=f"sweep {sweep.id} {number}",
    )
    try:
        with session.begin_nested():
            trial.run = start_training(session, requester_of(sweep), request)
    except AppError as error:
        messages = " ".join(error.fields.values()) if isinstance(error, InvalidInput) else ""
        trial.state, trial.reason, trial.ended_at = TrialState.FAILED, messages or str(error), datetime.now(UTC)
    session.add(trial)
    session.flush()
    return trial


def requester_of(sweep: Sweep) -> Requester:
    """The person for whom the sweep starts and stops runs. Raises Conflict if they were removed."""
    if sweep.created_by is None:
        raise Conflict("The person who started this sweep was removed. Start a new sweep.")
    return Requester(sweep.created_by, Role.TRAINER)


def with_values(configuration: TrainingConfiguration, values: Point) -> dict[str, object]:
    """All settings as nested JSON, with these values."""
    return nest(values, over=configuration.resolved())


def setting_fields() -> dict[str, LaunchField]:
    """All training settings as the launch form describes them, by dotted name."""
    return {field.name: field for section in launch_sections(TrainingConfiguration()) for field in section.fields}


def resolve_space(parameters: Mapping[str, Parameter], base: TrainingConfiguration) -> dict[str, Axis]:
    """Check each value of each setting alone. Raises InvalidInput with every wrong one."""
    fields, space, wrong = setting_fields(), dict[str, Axis](), dict[str, str]()
    for name, parameter in parameters.items():
        try:
            space[name] = _axis(fields, name, parameter, base)
        except ImpossibleValue as error:
            wrong[f"parameters.{name}"] = str(error)
    if wrong:
        raise InvalidInput(fields=wrong)
    return space


class ImpossibleValue(ValueError):
    """A setting cannot have this value; the message is a sentence."""


def _axis(fields: Mapping[str, LaunchField], name: str, parameter: Parameter, base: TrainingConfiguration) -> Axis:
    field = fields.get(name)
    if field is None:
        similar = difflib.get_close_matches(name, fields, n=3, cutoff=0.5)
        advice = f"Similar settings: {', '.join(similar)}." if similar else "`proctor train --set list` shows all."
        raise ImpossibleValue(f"There is no setting with this name. {advice}")
    is_number, is_whole = field.kind == "number", field.step == "1"
    if problem := parameter.problem(is_number=is_number, is_whole=is_whole):
        raise ImpossibleValue(problem)
    axis = Axis(**parameter.model_dump(), is_whole=is_number and is_whole)
    checked = [_checked(name, value, base) for value in axis.ends()]
    if axis.values is None:
        return axis
    axis = axis.model_copy(update={"values": checked})
    if problem := axis.problem(is_number=is_number, is_whole=is_whole):
        raise ImpossibleValue(problem)
    return axis


def _checked(name: str, value: Value, base: TrainingConfiguration) -> Value:
    """The value as the setting stores it. Raises ImpossibleValue if no combination of settings can have it."""
    try:
        found: Any = resolve_configuration(None, nest({name: value}), base.resolved()).resolved()
    except InvalidInput as error:
        own = [text for field, text in error.fields.items() if field == name or field.startswith(f"{name}.")]
        if own:
            raise ImpossibleValue(f"{write(value)[:80] or 'Empty'}: {own[0]}") from error
        return float(value) if isinstance(value, str) and _is_number(value) else value  # other settings may allow it
    for part in name.split("."):
        found = found[part]
    canonical: Value = found
    return canonical


def _number_of_trials(request: StartSweep, space: Space) -> int:
    if request.sampler is not SweepSampler.GRID:
        return request.trials or DEFAULT_TRIALS
    if missing := [name for name, axis in space.items() if not axis.grid()]:
        message = "A grid needs `points`, the number of values to try in the range, or a list of values."
        raise InvalidInput(fields={f"parameters.{name}": message for name in missing})
    size, most = grid_size(space), request.trials or MAX_TRIALS
    if size > most:
        limit = f"the limit of {most:,} runs" if request.trials else f"{most:,}, the most that a sweep can run"
        message = f"The grid has {size:,} points, more than {limit}. Raise the limit, or list fewer values."
        raise InvalidInput(fields={"trials": message})
    return size


def _check_points(
    version: EnvironmentVersion, sampler: SweepSampler, space: Space, base: TrainingConfiguration
) -> Point:
    """Return a point whose settings work together on this environment.

    Raises InvalidInput if none does, or if any point of a grid does not.
    """
    is_grid = sampler is SweepSampler.GRID
    points: Sequence[Point] = list(grid_points(space)) if is_grid else probe_points(space, PROBES)
    weights = [1.0, *(part.weight for part in base.mix)]
    working, failures = list[Point](), list[str]()
    for point in points:
        try:
            configuration = resolve_configuration(None, with_values(base, point))
            heldout = portions(weights, configuration.heldout.tasks)[0]
            check_environment(configuration, version.typed_manifest, heldout)
            working.append(point)
        except InvalidInput as error:
            message = " ".join(error.fields.values()) or str(error)
            failures.append(f"{', '.join(f'{name}={write(value)[:80]}' for name, value in point.items())}: {message}")
    if is_grid and failures:
        some = "1 point" if len(failures) == 1 else f"{len(failures):,} points"
        message = f"{some} of {len(points):,} cannot be trained. {failures[0]}"
        raise InvalidInput(message, {"parameters": message})
    if not working:
        message = f"No combination of these values can be trained. For example, {failures[0]}"
        raise InvalidInput(message, {"parameters": message})
    return working[0]


def _project_of(session: Session, version: EnvironmentVersion) -> uuid.UUID:
    """The project of a restricted environment, else the person's current project."""
    own = session.get_one(Project, version.environment.project_id)
    return own.id if own.is_restricted else current_project(session) or own.id


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
