"""Options that several commands have."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once instead of waiting.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")]
EnvironmentName = Annotated[
    str, typer.Argument(metavar="ENVIRONMENT", help="Name of an environment, or `name@version`.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, the end of it, or `last`.")]
