"""All commands by name."""

import sys
from collections.abc import Callable
from importlib.metadata import version as package_version
from typing import Annotated

import typer

from backend.cli import (
    certificate,
    checkpoints,
    derived,
    detectors,
    environments,
    exports,
    graders,
    importing,
    local,
    regrading,
    renderers,
    results,
    review,
    rollouts,
    runs,
    studies,
    sweeps,
    training,
)
from backend.cli.mcp import mcp
from backend.cli.output import BAD_RESULT, WRONG_USAGE, group, write_error
from backend.cli.serve import serve, train_api
from proctor import ProctorError

app = typer.Typer(
    name="proctor", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None
)
GROUPS = {
    "rollouts": rollouts.app,
    "data": rollouts.data_app,
    "grader": group(help="Graders: create, try, estimate their cost, start them on a run."),
    "certificate": certificate.app,
    "checkpoints": checkpoints.app,
    "detectors": detectors.app,
    "env": environments.app,
    "review": review.app,
    "match": group(help="Matches between policies in environments with seats: start a round robin, show who wins."),
    "run": runs.app,
    "sweep": sweeps.app,
    "study": group(help="Studies of a run's checkpoints: when a hack began, how much reasoning is needed."),
    "policy": group(help="Model endpoints, scripted policies and trained models: add, change, test, list."),
    "project": group(help="Projects: create, restrict, give roles, move items."),
    "share": group(help="Read-only links for people outside of the team: create, list, revoke."),
    "deletion": group(help="Delete runs and environments, and restore them for 30 days."),
    "token": group(help="Create, list and revoke API tokens."),
    "member": group(help="Members of the team: invite, change, sign out."),
    "notifications": group(help="Notices: read them, choose where they are sent, check deliveries."),
}
COMMANDS: dict[str, Callable[..., None]] = {
    "up": local.up_command,
    "demo": local.demo_command,
    "migrate-data": local.migrate_data_command,
    "eval": runs.evaluate,
    "train": training.train,
    "serve": serve,
    "train-api": train_api,
    "mcp": mcp,
    "compare": results.compare,
    "regrade": regrading.regrade,
    "replay": regrading.replay,
    "export": exports.export,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
for name, typer_group in GROUPS.items():
    app.add_typer(typer_group, name=name)
app.add_typer(environments.app, name="environments", hidden=True)  # the noun in full
app.command("rescore", hidden=True)(regrading.regrade)  # the old spelling
rollouts.data_app.add_typer(training.examples_app, name="examples")
rollouts.data_app.add_typer(training.examples_app, name="lessons", hidden=True)  # the old spelling
environments.app.command("import")(importing.import_package)
environments.app.command("history")(regrading.history)
runs.app.command("onset")(studies.onset)
runs.app.command("effort")(studies.effort)
GROUPS["policy"].command("models")(renderers.list_models)
derived.add_commands(app, GROUPS | {"data examples": training.examples_app}, derived.api_description())
graders.add_old_groups(app)


def show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"proctor {package_version('proctor')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Author, run and judge reinforcement-learning environments for language models.

    `proctor up` serves. The other commands talk to a running Proctor: the one on this machine's data folder, or
    PROCTOR_URL with PROCTOR_TOKEN. They exit with 0 on success, 1 if the result is bad, and 2 if used wrongly.
    """


def main() -> None:
    try:
        app()
    except ProctorError as error:
        write_error(str(error))
        sys.exit(BAD_RESULT if error.status >= 500 else WRONG_USAGE)
