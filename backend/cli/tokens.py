"""`proctor token …`: what scripts sign in with."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.options import AsJson
from backend.cli.output import console, write_json, write_table

app = typer.Typer(help="Make, list and revoke API tokens.", no_args_is_help=True, rich_markup_mode=None)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    role: Annotated[str, typer.Option(help="viewer, reviewer, author, trainer or admin; at most your own.")] = "viewer",
    days: Annotated[int, typer.Option(min=1, help="How long it lives.")] = 90,
    as_json: AsJson = False,
) -> None:
    """Make a token; its secret is shown once."""
    token = connect().post("/tokens", {"name": name, "role": role, "days": days})
    if as_json:
        write_json(token)
    else:
        shown = console()
        shown.print(token["secret"], markup=False)
        shown.print("Shown only now. Set it as PROCTOR_TOKEN.", style="dim")


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """Your tokens."""
    found = list(connect().all("/tokens"))
    if as_json:
        write_json(found)
        return
    rows = [
        (token["name"], token["prefix"] + "…", token["role"], token["expires_at"], token["used_at"], token["id"])
        for token in found
    ]
    write_table(("name", "token", "role", "expires", "last used", "id"), rows, empty="No token.")


@app.command("revoke")
def revoke(token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id.")], as_json: AsJson = False) -> None:
    """Make a token useless."""
    connect().delete(f"/tokens/{token}")
    if as_json:
        write_json({"revoked": token})
