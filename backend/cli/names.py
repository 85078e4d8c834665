"""Find things by what people type: `tictactoe`, `tictactoe@3`, a policy's name, the last characters of a run's id."""

from typing import Annotated
from urllib.parse import quote

import typer

from backend.cli.output import fail
from proctor import Client, Json

EnvironmentName = Annotated[
    str, typer.Argument(metavar="ENVIRONMENT", help="Name of an environment, or `name@version`.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, the end of it, or `last`.")]
SEARCHED = 500
"""Maximum number of checkpoints that are searched."""


def split_pair(text: str, advice: str) -> tuple[str, str]:
    """Split `name=value`. Ends the command with `advice` if it is written in another way."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"{text}: {advice}")
    return name, value


def version_of(client: Client, name: str) -> Json:
    """Return the version `environment@number`, or the latest one of `environment`."""
    environment, _, number = name.partition("@")
    if number:
        return client.get(f"/environments/{environment}/versions/{number}")
    latest = client.get(f"/environments/{environment}")["latest"]
    if latest is None:
        fail(f"{environment} has no published version: `proctor env push --publish`")
    return latest


def run_of(client: Client, name: str) -> Json:
    """Return a run by id, by the end of its id, or the newest one for `last`."""
    if run := client.find(f"/runs/{quote(name, safe='')}"):
        return run
    fail(f"there is no run {name!r}; `proctor runs` shows them")


def find_checkpoint(client: Client, name: str) -> Json | None:
    """Find a checkpoint by id or its end, or the best (else the newest) one of a policy."""
    if "/" not in name:
        return client.find(f"/checkpoints/{name}")
    for policy in client.pages("/policies"):  # the name of a branch, which does not fit into an address
        if policy["name"] == name:
            stored = client.pages("/checkpoints", limit=SEARCHED, has_weights=True, policy_id=policy["id"])
            return max(stored, key=lambda each: each["is_best"], default=None)
    return None
