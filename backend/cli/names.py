"""Find things by what people type: `tictactoe`, `tictactoe@3`, a policy's name, the last characters of a run's id."""

import uuid

from backend.cli.output import fail
from proctor import Client, Json

SHORT = 8
_RUNS_SEARCHED = 500


def short(identifier: object) -> str:
    """Return the end of an id. Its start is the time, which neighbors share."""
    return str(identifier).replace("-", "")[-SHORT:]


def is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def version_of(client: Client, name: str) -> dict[str, Json]:
    """Return the version `environment@number`, or the latest one of `environment`."""
    environment, _, number = name.partition("@")
    if number:
        version: dict[str, Json] = client.get(f"/environments/{environment}/versions/{number}")
        return version
    latest: dict[str, Json] | None = client.get(f"/environments/{environment}")["latest"]
    if latest is None:
        fail(f"{environment} has no published version: `proctor env push --publish`")
    return latest


def policy_of(client: Client, name: str) -> dict[str, Json]:
    """Return a policy by name or id."""
    for policy in client.pages("/policies"):
        if name in {policy["name"], policy["id"]}:
            return policy
    fail(f"there is no policy {name!r}; `proctor policy list` shows them")


def run_of(client: Client, name: str) -> dict[str, Json]:
    """Return a run by id, by the end of its id, or the newest one for `last`."""
    if run := find_run(client, name):
        return run
    fail(f"there is no run {name!r}; `proctor runs` shows them")


def find_run(client: Client, name: str) -> dict[str, Json] | None:
    if is_id(name):
        found: dict[str, Json] | None = client.find(f"/runs/{name}")
        return found
    end = name.replace("-", "")
    for run in client.pages("/runs", limit=1 if name == "last" else _RUNS_SEARCHED):
        if name == "last" or str(run["id"]).replace("-", "").endswith(end):
            whole: dict[str, Json] = client.get(f"/runs/{run['id']}")
            return whole
    return None


def find_checkpoint(client: Client, name: str) -> dict[str, Json] | None:
    """Find a checkpoint by id or its end, or the best (else the newest) one of a policy."""
    if "/" not in name:
        found: dict[str, Json] | None = client.find(f"/checkpoints/{name}")
        return found
    for policy in client.pages("/policies"):  # the name of a branch, which does not fit into an address
        if policy["name"] == name:
            stored = client.pages("/checkpoints", limit=_RUNS_SEARCHED, has_weights=True, policy_id=policy["id"])
            return max(stored, key=lambda each: each["is_best"], default=None)
    return None


def names_of_trained_policies(client: Client) -> list[str]:
    """List the policies that have stored weights."""
    stored = client.pages("/checkpoints", limit=_RUNS_SEARCHED, has_weights=True)
    return sorted({each["policy"] for each in stored})
