"""`proctor env grant`: the network of a version's servers, which an administrator grants or withdraws."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import version_of
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, OK, fail, say, write_json


def grant(
    name: Annotated[str, typer.Argument(help="An environment or ENVIRONMENT@VERSION. Default: its latest version.")],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw the grant.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show the current state without changing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Grant or withdraw network access for the servers of exactly this version. For administrators.

    A granted server can use the host's whole network, not only the hosts that its manifest names. Read its code first.
    """
    if withdraw and show:
        fail("--withdraw and --show exclude each other")
    client = connect()
    version = version_of(client, name)
    path = f"/environments/{version['environment']}/versions/{version['number']}/network"
    state = client.get(path) if show else client.request("DELETE" if withdraw else "PUT", path)
    if as_json:
        write_json(state)
    else:
        _tell(f"{version['environment']}@{version['number']}", state)
    wanted = state["is_open"] if not withdraw else not state["is_granted"]
    raise typer.Exit(OK if wanted or show else BAD_RESULT)


def _tell(version: str, state: dict[str, Any]) -> None:
    hosts = f" ({', '.join(state['hosts'])})" if state["hosts"] else ""
    by = f", by {state['granted_by']}" if state["granted_by"] else ""
    say(f"{version}: network {state['words']}{hosts}{by}")
