"""`proctor token …`: what scripts sign in with."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.options import AsJson
from backend.cli.output import console, write_json, write_table

app = typer.Typer(help="Create, list and revoke API tokens.", no_args_is_help=True, rich_markup_mode=None)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Purpose of the token.")],
    role: Annotated[str, typer.Option(help="viewer, reviewer, author, trainer or admin; at most your own.")] = "viewer",
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=365,
            help="Lifetime in days, within that of the token you use. Default: 90, or until your token expires.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse requests that change anything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a token. Its secret is shown once."""
    lifetime = {} if days is None else {"days": days}
    token = connect().post("/tokens", {"name": name, "role": role, "is_read_only": read_only, **lifetime})
    if as_json:
        write_json(token)
    else:
        shown = console()
        shown.print(token["secret"], markup=False)
        shown.print("Copy it now: it is not shown again. Set it as PROCTOR_TOKEN.", style="dim")


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List your tokens."""
    found = list(connect().pages("/tokens"))
    if as_json:
        write_json(found)
        return
    names = {token["id"]: token["name"] for token in found}
    rows = [
        (
            token["name"],
            token["prefix"] + "…",
            token["role"] + (" (read-only)" if token["is_read_only"] else ""),
            token["expires_at"],
            token["used_at"],
            names.get(token["parent_id"], ""),
            token["id"],
        )
        for token in found
    ]
    write_table(("name", "token", "role", "expires", "last used", "created with", "id"), rows, empty="No tokens.")


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")], as_json: AsJson = False
) -> None:
    """Revoke a token and all tokens created with it."""
    connect().delete(f"/tokens/{token}")
    if as_json:
        write_json({"revoked": token})
