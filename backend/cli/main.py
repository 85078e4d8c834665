"""All commands by name."""

import json
import sys
from functools import partial
from importlib.metadata import version as package_version
from importlib.resources import files
from typing import Annotated

import typer

from backend.cli import (
    checkpoints,
    derived,
    detectors,
    environments,
    exchange,
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
    starting,
    studies,
    training,
)
from backend.cli.mcp import mcp
from backend.cli.output import BAD_RESULT, WRONG_USAGE, write_error
from backend.cli.serve import serve
from proctor import ProctorError

app = typer.Typer(
    name="proctor",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("up")(local.up_command)
app.command("demo")(local.demo_command)
app.command("migrate-data")(local.migrate_data_command)
environments.app.command("import")(importing.import_package)
app.command("eval")(starting.evaluate)
app.command("train")(training.train)
app.add_typer(exchange.rollouts_app, name="rollouts")
exchange.rollouts_app.command("list")(rollouts.rollouts)
runs.app.command("onset")(studies.onset)
runs.app.command("effort")(studies.effort)
app.add_typer(exchange.data_app, name="data")
exchange.data_app.add_typer(training.examples_app, name="examples")
exchange.data_app.add_typer(training.examples_app, name="lessons", hidden=True)  # the old spelling
app.command("serve")(serve)
app.command("mcp")(mcp)
app.command("compare")(results.compare)
app.command("regrade")(regrading.regrade)
app.command("rescore", hidden=True)(regrading.regrade)  # the old spelling
app.command("replay")(regrading.replay)
environments.app.command("history")(regrading.history)
app.command("export")(exports.export)


group = partial(typer.Typer, no_args_is_help=True, rich_markup_mode=None)
GROUPS = {
    "grader": group(help="Graders: create, try, estimate their cost, start them on a run."),
    "checkpoints": checkpoints.app,
    "detectors": detectors.app,
    "env": environments.app,
    "review": review.app,
    "run": runs.app,
    "study": group(help="Studies of a run's checkpoints: when a hack began, how much reasoning is needed."),
    "policy": group(help="Model endpoints, scripted policies and trained models: add, change, test, list."),
    "token": group(help="Create, list and revoke API tokens."),
    "member": group(help="Members of the team: invite, change, sign out."),
    "notifications": group(help="Notices: read them, choose where they are sent, check deliveries."),
}
for name, typer_group in GROUPS.items():
    app.add_typer(typer_group, name=name)
GROUPS["policy"].command("models")(renderers.list_models)
document = json.loads(files("proctor").joinpath("openapi.json").read_bytes())
derived.add_commands(
    app, GROUPS | {"data examples": training.examples_app, "rollouts": exchange.rollouts_app}, document
)
graders.add_old_groups(app, document)


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
