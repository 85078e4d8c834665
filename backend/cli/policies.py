"""How the command line shows policies and their connection tests."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders
from backend.cli.options import AsJson
from backend.cli.output import console, say, write_fields, write_json, write_table
from backend.cli.watching import wait_for

_MARKS = {"passed": ("✓", "green"), "warned": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("·", "dim")}


@renders("policies.get")
def show_policy(policy: dict[str, Any]) -> None:
    known = {"policy": policy["name"], "kind": policy["kind"], "description": policy["description"]}
    write_fields(known | policy["configuration"] | {"key": "stored" if policy["has_secret"] else "none"})


@renders("policies.create")
def show_created(policy: dict[str, Any]) -> None:
    say(f"policy {policy['name']} added")


@renders("policies.update")
def show_updated(policy: dict[str, Any]) -> None:
    say(f"policy {policy['name']} updated")


@renders("policies.test_connection")
def show_findings(test: dict[str, Any]) -> None:
    for finding in test["findings"]:
        mark, style = _MARKS[finding["status"]]
        advice = f" {finding['advice']}" if finding["advice"] else ""
        console().print(f"{mark} {finding['check']}: {finding['sentence']}{advice}", style=style, markup=False)


def list_models(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Name or id of a policy.")], as_json: AsJson = False
) -> None:
    """List the models that a policy's endpoint serves. Tests the connection."""
    client = connect()
    path = f"/policies/{policy}/test"
    test = wait_for(client, path, client.post(path), quiet=as_json)
    if as_json:
        write_json(test["models"])
    else:
        write_table(("model",), [(model,) for model in test["models"]], empty="The endpoint lists no models.")
