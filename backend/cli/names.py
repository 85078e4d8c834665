"""What people type for things: `tictactoe`, `tictactoe@3`, a policy's name, the last characters of a run's id."""

import uuid
from typing import Any

from backend.cli.output import fail
from proctor import Client

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
    for policy in client.pages("/policies"):
        if name in {policy["name"], policy["id"]}:
            return policy
    fail(f"there is no policy {name!r}; `proctor policy list` shows them")


def run_of(client: Client, name: str) -> dict[str, Any]:
    """By id, by the end of its id, or `last`."""
    if run := find_run(client, name):
        return run
    fail(f"there is no run {name!r}; `proctor runs` shows them")


def find_run(client: Client, name: str) -> dict[str, Any] | None:
    """None where there is none."""
    if is_id(name):
        found: dict[str, Any] | None = client.find(f"/runs/{name}")
        return found
    for run in client.pages("/runs", limit=1 if name == "last" else _RUNS_SEARCHED):
        if name == "last" or _ends(run, name):
            whole: dict[str, Any] = client.get(f"/runs/{run['id']}")
            return whole
    return None


def find_checkpoint(client: Client, name: str) -> dict[str, Any] | None:
    """By id; the best (else the newest) of a policy; by the end of its id. None if there is none."""
    if "/" not in name:
        found: dict[str, Any] | None = client.find(f"/checkpoints/{name}")
        return found
    for policy in client.pages("/policies"):  # the name of a branch, which no address can hold
        if policy["name"] == name:
            stored = client.pages("/checkpoints", limit=_RUNS_SEARCHED, has_weights=True, policy_id=policy["id"])
            return max(stored, key=lambda each: each["is_best"], default=None)
    return None


def names_of_trained_policies(client: Client) -> list[str]:
    """Of policies that have stored weights."""
    stored = client.pages("/checkpoints", limit=_RUNS_SEARCHED, has_weights=True)
    return sorted({each["policy"] for each in stored})


def _ends(row: dict[str, Any], name: str) -> bool:
    return str(row["id"]).replace("-", "").endswith(name.replace("-", ""))


def is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
