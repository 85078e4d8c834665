"""`proctor policy …`: what can act."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import policy_of, short
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, console, fail, say, write_fields, write_json, write_table
from backend.cli.watching import look_while
from proctor import Client

app = typer.Typer(
    help="Add, change, test and list policies: endpoints, scripts, trained models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_PRICE = "US dollars per million tokens "

Name = Annotated[str, typer.Argument(metavar="POLICY", help="Its name or id.")]
BaseUrl = Annotated[
    str | None, typer.Option(help="An OpenAI-compatible endpoint, up to and without /chat/completions.")
]
Model = Annotated[str | None, typer.Option(help="The model's name at that endpoint.")]
Key = Annotated[
    str, typer.Option(envvar="PROCTOR_POLICY_KEY", help="The endpoint's key; better given in the environment.")
]
TextCalls = Annotated[
    bool | None, typer.Option("--text-calls/--tool-calls", help="The endpoint has no tool calls: they are text.")
]
NoSeed = Annotated[bool | None, typer.Option("--no-seed/--seed", help="Do not send `seed`, which some refuse.")]
Logprobs = Annotated[bool | None, typer.Option("--logprobs/--no-logprobs", help="Ask for log-probabilities.")]
PriceInput = Annotated[float | None, typer.Option(min=0, help=_PRICE + "read.")]
PriceOutput = Annotated[float | None, typer.Option(min=0, help=_PRICE + "written.")]
PriceCached = Annotated[float | None, typer.Option(min=0, help=_PRICE + "read from the endpoint's cache.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Requests at a time that the endpoint bears.")]
Requests = Annotated[int | None, typer.Option(min=1, help="Requests a minute that it bears.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Tokens a minute that it bears.")]
Timeout = Annotated[float | None, typer.Option(min=0.1, help="Seconds that one try may take.")]
Extra = Annotated[str | None, typer.Option(help='JSON for every request\'s body, e.g. {"reasoning_effort": "low"}.')]
Description = Annotated[str | None, typer.Option(help="For other people.")]


@app.command("list")
def list_policies(as_json: AsJson = False) -> None:
    """All policies by name."""
    found = list(connect().pages("/policies"))
    if as_json:
        write_json(found)
        return
    rows = [(policy["name"], policy["kind"], short(policy["id"]), policy["description"]) for policy in found]
    write_table(("policy", "kind", "id", "description"), rows, empty="No policy yet.")


@app.command("show")
def show(policy: Name, as_json: AsJson = False) -> None:
    """One policy with its configuration; its key is never told."""
    found = policy_of(connect(), policy)
    if as_json:
        write_json(found)
        return
    known = {"policy": found["name"], "kind": found["kind"], "description": found["description"]}
    write_fields(known | found["configuration"] | {"key": "stored" if found["has_secret"] else "none"})


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="How it is called here.")],
    preset: Annotated[str | None, typer.Option(help="vllm, hugging_face, openai, llama_cpp or ollama.")] = None,
    base_url: BaseUrl = None,
    model: Model = None,
    key: Key = "",
    text_calls: TextCalls = None,
    no_seed: NoSeed = None,
    logprobs: Logprobs = None,
    price_input: PriceInput = None,
    price_output: PriceOutput = None,
    price_cached_input: PriceCached = None,
    concurrency: Concurrency = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    timeout: Timeout = None,
    extra: Extra = None,
    script: Annotated[
        str | None, typer.Option(help="A script instead: gold, random, constant, … or an environment's own.")
    ] = None,
    constant: Annotated[str | None, typer.Option(help="What the script `constant` replies.")] = None,
    description: Description = None,
    as_json: AsJson = False,
) -> None:
    """Add an endpoint (--base-url or --preset, and --model) or a script (--script) as a policy."""
    client = connect()
    if preset and base_url is None:
        base_url = _base_url_of(client, preset)
    if (base_url is None) == (script is None):
        fail("give either --base-url (or --preset) and --model, or --script")
    asked: dict[str, Any] = {
        "base_url": base_url,
        "model": model,
        "secret": key or None,
        "script": script,
        "constant": constant,
    }
    asked |= {"text_calls": text_calls, "no_seed": no_seed, "logprobs": logprobs, "timeout_seconds": timeout}
    asked |= {"price_input": price_input, "price_output": price_output, "price_cached_input": price_cached_input}
    asked |= {"concurrency": concurrency, "requests_per_minute": requests_per_minute, "extra": extra}
    asked |= {"tokens_per_minute": tokens_per_minute, "description": description}
    body = {"kind": "scripted" if script else "openai_api", "name": name} | _given(asked)
    _told(client.post("/policies", body), "added", as_json)


@app.command("edit")
def edit(
    policy: Name,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    base_url: BaseUrl = None,
    model: Model = None,
    key: Key = "",
    forget_key: Annotated[bool, typer.Option("--forget-key", help="Forget the stored key.")] = False,
    text_calls: TextCalls = None,
    no_seed: NoSeed = None,
    logprobs: Logprobs = None,
    price_input: PriceInput = None,
    price_output: PriceOutput = None,
    price_cached_input: PriceCached = None,
    concurrency: Concurrency = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    timeout: Timeout = None,
    extra: Extra = None,
    description: Description = None,
    as_json: AsJson = False,
) -> None:
    """Change a policy; what is not given stays. Another base URL forgets the key, unless a new one is given."""
    client = connect()
    found = policy_of(client, policy)
    asked: dict[str, Any] = {
        "name": name,
        "base_url": base_url,
        "model": model,
        "secret": key or None,
        "no_seed": no_seed,
    }
    asked |= {"forget_secret": forget_key or None, "text_calls": text_calls, "logprobs": logprobs}
    asked |= {"price_input": price_input, "price_output": price_output, "price_cached_input": price_cached_input}
    asked |= {"concurrency": concurrency, "requests_per_minute": requests_per_minute, "extra": extra}
    asked |= {"tokens_per_minute": tokens_per_minute, "timeout_seconds": timeout, "description": description}
    changed = client.put(f"/policies/{found['id']}", _as_request(found) | _given(asked))
    _told(changed, "changed", as_json)


@app.command("delete")
def delete(policy: Name, as_json: AsJson = False) -> None:
    """Take a policy out of all choices. What it played stays; its key is forgotten."""
    client = connect()
    found = policy_of(client, policy)
    client.delete(f"/policies/{found['id']}")
    if as_json:
        write_json({"deleted": found["id"]})
        return
    say(f"policy {found['name']} deleted")


@app.command("test")
def look(policy: Name, as_json: AsJson = False) -> None:
    """Look at a policy's endpoint: is it reached, does it take the key, the model, seeds, tools. Ends with 1 if not."""
    report = _tested(connect(), policy)
    if as_json:
        write_json(report)
    else:
        for finding in report["findings"]:
            mark, style = _MARKS[finding["status"]]
            advice = f" {finding['advice']}" if finding["advice"] else ""
            console().print(f"{mark} {finding['check']}: {finding['sentence']}{advice}", style=style, markup=False)
    raise typer.Exit(BAD_RESULT if report["status"] == "failed" else 0)


@app.command("models")
def models(policy: Name, as_json: AsJson = False) -> None:
    """The models that a policy's endpoint lists."""
    report = _tested(connect(), policy)
    if as_json:
        write_json(report["models"])
    else:
        write_table(("model",), [(model,) for model in report["models"]], empty="The endpoint lists no models.")


_MARKS = {"passed": ("✓", "green"), "warned": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("·", "dim")}


def _tested(client: Client, name: str) -> dict[str, Any]:
    path = f"/policies/{policy_of(client, name)['id']}/test"
    return look_while(itemgetter("is_waiting"), client.post(path), lambda: client.get(path))


def _base_url_of(client: Client, preset: str) -> str:
    found = {each["key"]: each["base_url"] for each in client.get("/policies/presets") if each["base_url"]}
    if preset not in found:
        fail(f"there is no preset {preset!r}: {', '.join(found)}")
    return str(found[preset])


def _given(asked: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in asked.items() if value is not None}


def _as_request(policy: dict[str, Any]) -> dict[str, Any]:
    """What asks for the policy as it is."""
    chosen = policy["configuration"]
    price, limits = chosen.get("price", {}), chosen.get("limits", {})
    kept = {name: chosen.get(name) for name in ("base_url", "model", "timeout_seconds", "extra", "script", "constant")}
    kept |= {"text_calls": chosen.get("sends_tools") is False, "no_seed": chosen.get("sends_seed") is False}
    kept |= {name: chosen.get(name) for name in ("logprobs", "token_ids", "sends_reasoning", "attempts")} | limits
    kept |= {f"price_{name}": price.get(name) for name in ("input", "output", "cached_input")}
    return {"kind": policy["kind"], "name": policy["name"], "description": policy["description"]} | _given(kept)


def _told(policy: dict[str, Any], what: str, as_json: bool) -> None:
    if as_json:
        write_json(policy)
    else:
        say(f"policy {policy['name']} {what}")
