"""All commands by name."""

import typer

from backend.cli.serving import up_command

app = typer.Typer(
    name="proctor",
    help="Author, run and judge reinforcement-learning environments for language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("up")(up_command)


@app.callback()
def root() -> None:
    """Author, run and judge reinforcement-learning environments for language models."""


def main() -> None:
    app()
