"""What the launch form shows: choices, what they amount to, and what is wrong with them."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from sqlalchemy.orm import Session

from backend.checkpoints import queries
from backend.checkpoints.tables import Checkpoint
from backend.domain.ids import new_id
from backend.domain.runs.capabilities import not_offered
from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.training.presets import PRESETS, Preset, find_preset
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.training import launch_queries
from backend.training.choices import changed_choices, flatten, stored_choices
from backend.training.examples.files import lesson_files
from backend.training.launch_form import LaunchSection, Surroundings, launch_command, launch_sections
from backend.training.preflight_inputs import findings_at_once
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.tables import Preflight
from backend.training.workers import offers


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """What the choices amount to; drawn anew while somebody types."""

    errors: Mapping[str, str] = field(default_factory=dict)
    """What cannot be read, by field."""
    arithmetic: Sequence[str] = ()
    rollouts: int = 0
    findings: Sequence[PreflightFinding] = ()
    command: str = ""
    file_query: str = ""
    """Of the configuration file's address."""


@dataclass(frozen=True, slots=True)
class LaunchFiguresPage:
    """The figures alone."""

    figures: LaunchFigures


@dataclass(frozen=True, slots=True)
class LaunchPage:
    """The launch form, empty or with what was refused."""

    versions: Sequence[EnvironmentVersion]
    chosen: EnvironmentVersion | None
    presets: Mapping[str, Preset]
    preset: str
    sections: list[LaunchSection]
    figures: LaunchFigures
    name: str
    without_certificate: str
    key: str
    again: Run | None = None
    preflight: Preflight | None = None
    errors: dict[str, str] = field(default_factory=dict)
    message: str = ""


def launch_page(session: Session, shown: TrainingRequest, error: InvalidInput | None = None) -> LaunchPage:
    versions = queries.trainable_versions(session)
    again = launch_queries.find_training_run(session, shown.again) if shown.again else None
    preflight = session.get(Preflight, shown.preflight_id) if shown.preflight_id else None
    chosen = _chosen(versions, shown, again, preflight)
    start = _start(shown, again, preflight)
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration, start.resolved())
    except InvalidInput:
        configuration = start
    offered = {
        "checkpoints": _checkpoints(queries.startable_checkpoints(session)),
        "lesson_files": [
            (str(file.id), f"{file.name} · {file.conversations:,} conversations")
            for file in lesson_files(session, limit=100).items
        ],
    }
    around = Surroundings(
        given=flatten(shown.configuration),
        base=flatten(start.resolved()),
        offered=offered,
        not_offered=not_offered(offers(session)),
    )
    return LaunchPage(
        versions=versions,
        chosen=chosen,
        presets=PRESETS,
        preset=shown.preset or "",
        sections=launch_sections(configuration, around),
        figures=launch_figures(session, shown, chosen, start),
        name=shown.name or "",
        without_certificate=shown.without_certificate or "",
        key=shown.key or new_id().hex,
        again=again,
        preflight=preflight,
        errors=dict(error.fields) if error else {},
        message=error.message if error else "",
    )


def launch_figures(
    session: Session, shown: TrainingRequest, version: EnvironmentVersion | None, start: TrainingConfiguration
) -> LaunchFigures:
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration, start.resolved())
    except InvalidInput as error:
        return LaunchFigures(errors=error.fields)
    preset = find_preset(shown.preset)
    base = preset.configuration if preset else TrainingConfiguration()
    changed = changed_choices(configuration, base)
    options = {"--name": shown.name or "", "--without-certificate": shown.without_certificate or ""}
    told = {"version_id": str(version.id) if version else "", "preset": shown.preset or "", "name": shown.name or ""}
    told["without_certificate"] = shown.without_certificate or ""
    environment = f"{version.environment.name}@{version.number}" if version else "ENVIRONMENT"
    return LaunchFigures(
        arithmetic=batch_in_words(configuration).split("; "),
        rollouts=configuration.total_rollouts,
        findings=findings_at_once(session, version, configuration) if version else (),
        command=launch_command(environment, shown.preset, changed, options),
        file_query=urlencode({name: text for name, text in (told | changed).items() if text or name in changed}),
    )


def figures_of_form(session: Session, shown: TrainingRequest) -> LaunchFigures:
    """While somebody types: the version is the one that is chosen in the form."""
    return launch_figures(
        session, shown, launch_queries.find_version(session, shown.version_id), TrainingConfiguration()
    )


def _chosen(
    versions: Sequence[EnvironmentVersion], shown: TrainingRequest, again: Run | None, preflight: Preflight | None
) -> EnvironmentVersion | None:
    """The one that was asked for, else that of the run or the preset, else the first."""
    preset = find_preset(shown.preset)
    wanted = [shown.version_id, *(source.version_id for source in (preflight, again) if source)]
    by_id: dict[uuid.UUID, EnvironmentVersion] = {version.id: version for version in versions}
    for version_id in wanted:
        if version_id in by_id:
            return by_id[version_id]
    named = (version for version in versions if preset and version.environment.name == preset.environment)
    return next(named, next(iter(versions), None))


def _start(shown: TrainingRequest, again: Run | None, preflight: Preflight | None) -> TrainingConfiguration:
    """What the choices begin with: a preset, an earlier run, a pre-flight or the defaults."""
    if preset := find_preset(shown.preset):
        return preset.configuration
    source = preflight or again
    return stored_choices(source.configuration) if source else TrainingConfiguration()


def _checkpoints(found: Sequence[Checkpoint]) -> list[tuple[str, str]]:
    """With their held-out figures, the best ones marked."""
    return [(str(checkpoint.id), _told(checkpoint)) for checkpoint in found]


def _told(checkpoint: Checkpoint) -> str:
    reward = "" if checkpoint.heldout_reward is None else f" · held-out {checkpoint.heldout_reward:.3f}"
    best = " · best" if checkpoint.is_best else ""
    return f"{checkpoint.policy.name} · {checkpoint.stage} step {checkpoint.step}{reward}{best}"
