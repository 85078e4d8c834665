"""A training run as a file: everything that starts the same run again, in YAML or JSON."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import yaml
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.runs.tables import Run
from backend.training.choices import stored_choices

Format = Literal["yaml", "json"]
MEDIA_TYPES: Mapping[Format, str] = {"yaml": "application/yaml", "json": "application/json"}


class NotATrainingRun(Conflict):
    """Only a training run has a configuration file."""


class ConfigurationFile(BaseModel):
    """What `proctor train --config FILE` reads. Every default is written out, so that it means the same later."""

    model_config = ConfigDict(extra="forbid")

    environment: str
    """`tictactoe@3`"""
    content_hash: str
    """Of that version; another one is refused."""
    name: str | None = None
    """Of the policy; left out: made from the environment's name, so that a second run does not collide."""
    without_certificate: str | None = None
    configuration: dict[str, Any]


def file_of_plan(version: EnvironmentVersion, configuration: TrainingConfiguration, **told: str) -> ConfigurationFile:
    return ConfigurationFile(
        environment=f"{version.environment.name}@{version.number}",
        content_hash=version.content_hash,
        configuration=configuration.resolved(),
        **{name: text for name, text in told.items() if text},
    )


def file_of_run(run: Run) -> ConfigurationFile:
    """Without the run's name: a policy's name may be given only once."""
    if run.kind is not RunKind.TRAINING:
        raise NotATrainingRun
    reason = str(run.configuration.get("without_certificate") or "")
    return file_of_plan(run.version, stored_choices(run.configuration), without_certificate=reason)


def text_of(file: ConfigurationFile, form: Format) -> str:
    values = file.model_dump(mode="json", exclude_none=True)
    if form == "json":
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    command = "# proctor train --config THIS_FILE\n"
    return command + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def download(file: ConfigurationFile, form: Format) -> Response:
    name = f"proctor-train-{file.environment.replace('@', '-v')}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text_of(file, form), media_type=MEDIA_TYPES[form], headers=headers)
