"""What people type for things: `tictactoe`, `tictactoe@3`, a policy's name, the last characters of a run's id."""

import uuid
from typing import Any

from backend.cli.output import fail
from backend.client import Client

SHORT = 8
_RUNS_SEARCHED = 500


def short(identifier: object) -> str:
    """The end of an id: its beginning is the time, alike for neighbours."""
    return str(identifier).replace("-", "")[-SHORT:]


def version_of(client: Client, name: str) -> dict[str, Any]:
    """`environment` (its newest version) or `environment@number`."""
    environment, _, number = name.partition("@")
    if number:
        version: dict[str, Any] = client.get(f"/environments/{environment}/versions/{number}")
        return version
    latest: dict[str, Any] | None = client.get(f"/environments/{environment}")["latest"]
    if latest is None:
        fail(f"{environment} has no published version: `proctor env push --publish`")
    return latest


def policy_of(client: Client, name: str) -> dict[str, Any]:
    """By name or id."""
    for policy in client.all("/policies"):
        if name in {policy["name"], policy["id"]}:
            return policy
    fail(f"there is no policy {name!r}; `proctor policy list` shows them")


def run_of(client: Client, name: str) -> dict[str, Any]:
    """By id, by the end of its id, or `last`."""
    if _is_id(name):
        run: dict[str, Any] = client.get(f"/runs/{name}")
        return run
    for run in client.all("/runs", limit=1 if name == "last" else _RUNS_SEARCHED):
        if name == "last" or run["id"].replace("-", "").endswith(name.replace("-", "")):
            whole: dict[str, Any] = client.get(f"/runs/{run['id']}")
            return whole
    fail(f"there is no run {name!r}; `proctor runs` shows them")


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
