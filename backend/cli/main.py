"""All commands by name."""

import sys
from importlib.metadata import version as package_version
from typing import Annotated

import typer

from backend.cli import (
    checkpoints,
    derived,
    detectors,
    effort,
    environments,
    examples,
    exchange,
    exports,
    graders,
    importing,
    interventions,
    notifications,
    onset,
    policies,
    rescoring,
    results,
    review,
    rollouts,
    runs,
    starting,
    steering,
    training,
    workers,
)
from backend.cli import (
    team as _team,  # noqa: F401  how results of operations are shown
)
from backend.cli.mcp import mcp
from backend.cli.migrating import migrate_data_command
from backend.cli.output import BAD_RESULT, WRONG_USAGE, write_error
from backend.cli.serve import serve
from backend.cli.serving import demo_command, up_command
from proctor import ProctorError

app = typer.Typer(
    name="proctor",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("up")(up_command)
app.command("demo")(demo_command)
app.command("migrate-data")(migrate_data_command)
environments.app.command("import")(importing.import_package)
app.command("eval")(starting.evaluate)
app.command("train")(training.train)
app.command("runs")(runs.runs)
app.add_typer(exchange.rollouts_app, name="rollouts")
exchange.rollouts_app.command("list")(rollouts.rollouts)
runs.app.command("delete")(exchange.delete_run)
steering.register(runs.app)
onset.register(runs.app)
effort.register(runs.app)
runs.app.command("interventions")(interventions.interventions)
runs.app.command("config")(training.configuration)
app.add_typer(exchange.data_app, name="data")
exchange.data_app.add_typer(examples.app, name="examples")
exchange.data_app.add_typer(examples.app, name="lessons", hidden=True)  # the old spelling
app.command("workers")(workers.workers)
app.command("serve")(serve)
app.command("mcp")(mcp)
app.command("compare")(results.compare)
app.command("leaderboard")(results.leaderboard)
app.command("rescore")(rescoring.rescore)
app.command("replay")(rescoring.replay)
environments.app.command("history")(rescoring.history)
app.add_typer(notifications.app, name="notifications")
app.command("export")(exports.export)


def group(help: str) -> typer.Typer:
    """A group whose commands come from operations."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"proctor {package_version('proctor')}")
        raise typer.Exit


GROUPS = {
    "grader": group("Graders: create, try, estimate their cost, start them on a run."),
    "checkpoints": checkpoints.app,
    "detectors": detectors.app,
    "env": environments.app,
    "review": review.app,
    "run": runs.app,
    "policy": group("Model endpoints, scripted policies and trained models: add, change, test, list."),
    "token": group("Create, list and revoke API tokens."),
    "member": group("Members of the team: invite, change, sign out."),
}
for name, typer_group in GROUPS.items():
    app.add_typer(typer_group, name=name)
GROUPS["policy"].command("models")(policies.list_models)
EXISTING = {"env": environments.app, "run": runs.app, "data examples": examples.app}
"""Groups that also have commands of their own."""
derived.add_commands(app, GROUPS | EXISTING, derived.shipped_document())
graders.add_old_groups(app, derived.shipped_document())


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Author, run and judge reinforcement-learning environments for language models.

    `proctor up` serves. The other commands talk to a running Proctor: the one on this machine's data folder, or
    PROCTOR_URL with PROCTOR_TOKEN. They end with 0 when done, 1 when the result is bad, 2 when used wrongly.
    """


def main() -> None:
    try:
        app()
    except ProctorError as refused:
        write_error(str(refused))
        sys.exit(BAD_RESULT if refused.status >= 500 else WRONG_USAGE)
