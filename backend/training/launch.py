"""The launch page, and the command and configuration file that start the same run."""

import json
import shlex
from collections.abc import Mapping
from itertools import chain
from typing import Literal
from urllib.parse import urlencode

import yaml
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import Session

from backend.checkpoints.queries import checkpoints as checkpoint_slice
from backend.domain.ids import new_id
from backend.domain.runs.capabilities import not_offered
from backend.domain.training.configuration import TrainingConfiguration, batch_in_words
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput, NotFound
from backend.runs.queries import versions as run_versions
from backend.runs.tables import Run
from backend.training.example_files import list_example_files
from backend.training.launch_form import FormContext, launch_sections
from backend.training.preflight import advice_of, find_preflight, findings_at_once
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.setting_texts import changed_settings, flatten, stored_configuration
from backend.training.tables import Preflight
from backend.training.workers import offers

Format = Literal["yaml", "json"]


def launch_page(session: Session, shown: TrainingRequest, error: InvalidInput | None = None) -> dict[str, object]:
    """The form with the settings of the request over those of a preset, a pre-flight or an earlier run."""
    versions, again = run_versions(session), session.get(Run, shown.again) if shown.again else None
    again = again if again is not None and again.kind is RunKind.TRAINING else None
    preflight = session.get(Preflight, shown.preflight_id) if shown.preflight_id else None
    preset, source = PRESETS.get(shown.preset or ""), preflight or again
    by_id = {version.id: version for version in versions}
    wanted = [shown.version_id, *(each.version_id for each in (preflight, again) if each)]
    requested = (by_id[version_id] for version_id in wanted if version_id in by_id)
    of_preset = (version for version in versions if preset and version.environment.name == preset.environment)
    chosen = next(chain(requested, of_preset, versions), None)
    if preset:
        start = preset.configuration
    else:
        start = stored_configuration(source.configuration) if source else TrainingConfiguration()
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration, start.resolved())
    except InvalidInput:
        configuration = start
    checkpoints = []
    for row in checkpoint_slice(session, has_weights=True, limit=100).items:
        reward = "" if row.heldout_reward is None else f" · held-out {row.heldout_reward:.3f}"
        best = " · best" if row.is_best else ""
        checkpoints.append((str(row.id), f"{row.policy.name} · {row.stage} step {row.step}{reward}{best}"))
    files = list_example_files(session, limit=100).items
    context = FormContext(
        given=flatten(shown.configuration),
        base=flatten(start.resolved()),
        offered={
            "checkpoints": checkpoints,
            "example_files": [(str(row.id), f"{row.name} · {row.conversations:,} conversations") for row in files],
        },
        not_offered=not_offered(offers(session)),
    )
    return {
        "versions": versions,
        "chosen": chosen,
        "presets": PRESETS,
        "preset": shown.preset or "",
        "sections": launch_sections(configuration, context),
        "figures": launch_figures(session, shown, chosen, start),
        "name": shown.name or "",
        "without_certificate": shown.without_certificate or "",
        "key": shown.key or new_id().hex,
        "again": again,
        "preflight": preflight,
        "errors": error.fields if error else {},
        "message": error.message if error else "",
    }


def launch_figures(
    session: Session, shown: TrainingRequest, version: EnvironmentVersion | None, start: TrainingConfiguration
) -> dict[str, object]:
    """The summary of a run on this version, with the settings of the request over `start`; `errors`: settings that
    cannot be read, by field."""
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration, start.resolved())
    except InvalidInput as error:
        return {"errors": error.fields}
    preset, reason = PRESETS.get(shown.preset or ""), shown.without_certificate or ""
    changed = changed_settings(configuration, preset.configuration if preset else TrainingConfiguration())
    options = {"--name": shown.name or "", "--without-certificate": reason}
    query = {
        "version_id": str(version.id) if version else "",
        "preset": shown.preset or "",
        "name": shown.name or "",
        "without_certificate": reason,
    }
    environment = f"{version.environment.name}@{version.number}" if version else "ENVIRONMENT"
    preflight = session.get(Preflight, shown.preflight_id) if shown.preflight_id else None
    if preflight is None and version is not None:
        preflight = find_preflight(session, version, configuration)
    advice = advice_of(session, preflight, configuration) if preflight else None
    changes = {**query, **changed, **(advice.changes if advice else {})}
    return {
        "advice": advice,
        "apply": f"/training/new?{urlencode({name: text for name, text in changes.items() if text or '.' in name})}",
        "measured_in": preflight,
        "errors": {},
        "arithmetic": batch_in_words(configuration).split("; "),
        "rollouts": configuration.total_rollouts,
        "findings": findings_at_once(session, version, configuration) if version else (),
        "command": launch_command(environment, shown.preset, changed, options),
        # query string of the configuration file's address
        "file_query": urlencode({name: text for name, text in (query | changed).items() if text or name in changed}),
    }


def launch_command(
    environment: str, preset: str | None, settings: Mapping[str, object], options: Mapping[str, str] | None = None
) -> str:
    """The command that starts the same run. Empty `options`, such as `--name`, are omitted."""
    parts = ["proctor train", shlex.quote(environment)]
    if preset:
        parts.append(f"--preset {shlex.quote(preset)}")
    parts.extend(f"--set {shlex.quote(f'{name}={value}')}" for name, value in flatten(settings).items())
    parts.extend(f"{option} {shlex.quote(value)}" for option, value in (options or {}).items() if value)
    return " ".join(parts)


class ConfigurationFile(BaseModel):
    """The file for `proctor train --config FILE`. It contains every default, so that it keeps its meaning."""

    model_config = ConfigDict(extra="forbid")

    environment: str
    """`tictactoe@3`"""
    content_hash: str
    """Content hash of that version; another one is refused."""
    name: str | None = None
    """Name of the policy. Default: made from the name of the environment, so that a second run has another name."""
    without_certificate: str | None = None
    configuration: dict[str, object]


def configuration_file(
    version: EnvironmentVersion, configuration: TrainingConfiguration, *, name: str = "", without_certificate: str = ""
) -> ConfigurationFile:
    return ConfigurationFile(
        environment=f"{version.environment.name}@{version.number}",
        content_hash=version.content_hash,
        configuration=configuration.resolved(),
        name=name or None,
        without_certificate=without_certificate or None,
    )


def configuration_file_of(run: Run) -> ConfigurationFile:
    """The file that repeats a run, without its name, because names of policies are unique."""
    if run.kind is not RunKind.TRAINING:
        raise NotFound("There is no such training run.")
    reason = str(run.configuration.get("without_certificate") or "")
    return configuration_file(run.version, stored_configuration(run.configuration), without_certificate=reason)


def download_configuration(file: ConfigurationFile, form: Format) -> Response:
    """The file as a download, in YAML or JSON."""
    values = file.model_dump(mode="json", exclude_none=True)
    if form == "json":
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    else:
        text = "# proctor train --config THIS_FILE\n"
        text += yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    name = f"proctor-train-{file.environment.replace('@', '-v')}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=f"application/{form}", headers=headers)
