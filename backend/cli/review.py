"""`proctor review …`: what waits for a verdict, and verdicts on it."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import is_id, run_of, short
from backend.cli.options import AsJson, Limit
from backend.cli.output import fail, say, write_fields, write_json, write_table
from proctor import Client

app = typer.Typer(help="Judge what is under review. Alone: list what waits.", rich_markup_mode=None)

Run = Annotated[str | None, typer.Option(help="Only of this run.")]
Detector = Annotated[str | None, typer.Option(help="Only what this detector flagged: not blind.")]
Environment = Annotated[str | None, typer.Option(help="Only of this environment.")]
Mine = Annotated[bool, typer.Option("--mine", help="Only what is assigned to you.")]
Evidence = Annotated[bool, typer.Option("--evidence", help="Show why it is here: the verdict is not blind then.")]
Item = Annotated[str, typer.Argument(metavar="ITEM", help="An item's or a flag's id, or the end of one.")]


@app.callback(invoke_without_command=True)
def review(
    context: typer.Context,
    shown: Annotated[str, typer.Option(help="unreviewed, second, reviewed or all.")] = "unreviewed",
    run: Run = None,
    detector: Detector = None,
    environment: Environment = None,
    mine: Mine = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List the queue in its order."""
    if context.invoked_subcommand:
        return
    client = connect()
    wanted = {"shown": shown, **_narrowed(client, run, detector, environment, mine)}
    found = list(client.pages("/review/items", limit=limit, **wanted))
    if as_json:
        write_json(found)
        return
    rows = [
        (short(item["id"]), item["environment"], short(item["run_id"]), item["reward"], item["verdict"], _reasons(item))
        for item in found
    ]
    write_table(("item", "environment", "run", "reward", "verdict", "what was seen"), rows, empty="Nothing waits.")


@app.command("next")
def show_next(
    run: Run = None,
    detector: Detector = None,
    environment: Environment = None,
    mine: Mine = False,
    evidence: Evidence = False,
    as_json: AsJson = False,
) -> None:
    """Show what to judge now: its conversation and rewards."""
    client = connect()
    wanted = _narrowed(client, run, detector, environment, mine)
    waiting = client.get("/review/items", limit=1, **wanted)["items"]
    if not waiting:
        fail("nothing waits for review", status=1)
    item = client.get(f"/review/items/{waiting[0]['id']}", evidence=evidence, **wanted)
    if as_json:
        write_json(item)
        return
    write_fields(
        {
            "item": item["id"],
            "run": f"{item['run']} ({short(item['run_id'])})",
            "environment": f"{item['environment']} v{item['version']}",
            "reward": item["reward"],
            **item["columns"],
            "what was seen": _reasons(item),
        }
    )
    for message in item["messages"]:
        say(f"\n{message.get('role')}:", style="bold")
        say(str(message.get("content") or ""))


@app.command("verdict")
def give_verdict(
    item: Item,
    verdict: Annotated[str, typer.Argument(metavar="VERDICT", help="honest, hack, broken_reward or unsure.")],
    comment: Annotated[str, typer.Option(help="Why.")] = "",
    evidence: Annotated[bool, typer.Option("--evidence", help="You had the evidence before you judged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store a verdict. The newest counts; none is overwritten. `proctor review undo` takes it back."""
    client = connect()
    path = f"/review/items/{_id(client, item)}/verdicts" + ("?evidence=true" if evidence else "")
    found = client.post(path, {"verdict": verdict, "comment": comment})
    if as_json:
        write_json(found)
    else:
        say(f"{len(found['items'])} verdict(s) stored: {verdict}")


@app.command("undo")
def undo(as_json: AsJson = False) -> None:
    """Take back your last verdict; again, the one before. Its consequences are withdrawn, the history keeps it."""
    found = connect().post("/review/undo", {})
    if as_json:
        write_json(found)
    else:
        given = found["items"][0]
        say(f"taken back: {given['verdict']} on {short(given['rollout_id'] or given['flag_id'])}")


@app.command("assign")
def assign(
    person: Annotated[str, typer.Argument(metavar="PERSON", help="`me`, or a member's e-mail address.")],
    item: Annotated[str | None, typer.Argument(metavar="[ITEM]", help="One item; else the first of the queue.")] = None,
    count: Annotated[int, typer.Option(min=1, max=500, help="So many of the first that are nobody's.")] = 20,
    run: Run = None,
    environment: Environment = None,
    as_json: AsJson = False,
) -> None:
    """Give somebody items to judge. An item may be given to several people."""
    client = connect()
    person_id = _person_id(client, person)
    if item:
        found = client.post(f"/review/items/{_id(client, item)}/assignments", {"person": person_id})
    else:
        wanted = _narrowed(client, run, None, environment, mine=False)
        body = {"person": person_id, "count": count}
        found = client.request("POST", "/review/assignments", query=wanted, body=body)
    if as_json:
        write_json(found)
    else:
        say(f"{len(found['items'])} assigned")


@app.command("stats")
def show_stats(
    target: Annotated[int | None, typer.Option(min=1, help="Set how many you mean to judge a day.")] = None,
    as_json: AsJson = False,
) -> None:
    """What waits, what is yours, today against your target, and how far people agree."""
    client = connect()
    found = client.put("/review/target", {"per_day": target}) if target else client.get("/review/stats")
    if as_json:
        write_json(found)
        return
    write_fields(
        {
            "waiting": found["waiting"],
            "assigned to me": found["mine"],
            "judged today": f"{found['today']} of {found['per_day']}",
            "judged twice, blind": f"{found['judged_twice']}, alike {found['agreeing']}",
            "Cohen's kappa": found["kappa"],
        }
    )


def _narrowed(
    client: Client, run: str | None, detector: str | None, environment: str | None, mine: bool
) -> dict[str, Any]:
    run_id = run_of(client, run)["id"] if run else None
    return {"run": run_id, "detector": detector, "environment": environment, "mine": mine or None}


def _reasons(item: dict[str, Any]) -> str:
    if item["flags"] is None:
        return "judge the transcript (--evidence tells more)"
    return "; ".join(flag["sentence"] for flag in item["flags"]) or "nothing flagged it: blind sample"


def _id(client: Client, name: str) -> str:
    if is_id(name):
        return name
    wanted = name.replace("-", "")
    for path in ("/review/items", "/flags"):
        for found in client.pages(path, shown="all", limit=500):
            if found["id"].replace("-", "").endswith(wanted):
                return str(found["id"])
    fail(f"there is no item {name!r}; `proctor review --shown all` shows them")


def _person_id(client: Client, name: str) -> str:
    if name == "me":
        return str(client.get("/me")["person_id"])
    for person in client.pages("/members"):
        if name in {person["email"], person["id"]}:
            return str(person["id"])
    fail(f"there is no member {name!r}; `me` is you")
