"""`proctor policy …`: what can act."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import short
from backend.cli.options import AsJson
from backend.cli.output import fail, say, write_json, write_table

app = typer.Typer(
    help="Add and list policies: endpoints, scripts, trained models.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_policies(as_json: AsJson = False) -> None:
    """All policies by name."""
    found = list(connect().all("/policies"))
    if as_json:
        write_json(found)
        return
    rows = [(policy["name"], policy["kind"], short(policy["id"]), policy["description"]) for policy in found]
    write_table(("policy", "kind", "id", "description"), rows, empty="No policy yet.")


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="How it is called here.")],
    base_url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint, up to and without /chat/completions.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at that endpoint.")] = None,
    key: Annotated[
        str, typer.Option(envvar="PROCTOR_POLICY_KEY", help="The endpoint's key; better given in the environment.")
    ] = "",
    text_calls: Annotated[
        bool, typer.Option("--text-calls", help="The endpoint has no tool calls: tools stand in the prompt.")
    ] = False,
    script: Annotated[
        str | None, typer.Option(help="A script instead: gold, random, constant, … or an environment's own.")
    ] = None,
    constant: Annotated[str | None, typer.Option(help="What the script `constant` replies.")] = None,
    description: Annotated[str, typer.Option(help="For other people.")] = "",
    as_json: AsJson = False,
) -> None:
    """Add an endpoint (--base-url, --model) or a script (--script) as a policy."""
    if (base_url is None) == (script is None):
        fail("give either --base-url and --model, or --script")
    body = {"kind": "scripted" if script else "openai_api", "name": name, "description": description}
    body |= {field: value for field, value in _fields(base_url, model, key, script, constant).items() if value}
    policy = connect().post("/policies", body | ({"text_calls": True} if text_calls else {}))
    if as_json:
        write_json(policy)
    else:
        say(f"policy {policy['name']} added")


def _fields(
    base_url: str | None, model: str | None, key: str, script: str | None, constant: str | None
) -> dict[str, str | None]:
    return {"base_url": base_url, "model": model, "secret": key, "script": script, "constant": constant}
