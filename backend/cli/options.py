"""Options that several commands have."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Start it and return at once.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most so many.")]
EnvironmentName = Annotated[
    str, typer.Argument(metavar="ENVIRONMENT", help="An environment, `name` or `name@version`.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the end of it, or `last`.")]
