"""How the command line shows the team's results."""

from typing import Any

from backend.cli.derived import renders
from backend.cli.output import console


@renders("tokens.create")
def show_new_token(token: dict[str, Any]) -> None:
    """The secret on a line of its own, so that a script can take it."""
    shown = console()
    shown.print(token["secret"], markup=False)
    shown.print("Copy it now: it is not shown again. Set it as PROCTOR_TOKEN.", style="dim")
