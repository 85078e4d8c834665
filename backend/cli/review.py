"""`proctor review …`: the queue and the next item; how results of review operations are shown."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders
from backend.cli.names import short
from backend.cli.options import AsJson, Limit
from backend.cli.output import fail, say, write_fields, write_json, write_table
from proctor import Json

app = typer.Typer(help="Review flagged rollouts. Without a command: list the queue.", rich_markup_mode=None)

Run = Annotated[str | None, typer.Option(help="Items of this run only.")]
Detector = Annotated[str | None, typer.Option(help="Items flagged by this detector only. The review is not blind.")]
Environment = Annotated[str | None, typer.Option(help="Items of this environment only.")]
Mine = Annotated[bool, typer.Option("--mine", help="Items assigned to you only.")]


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
    """List the review queue in its order."""
    if context.invoked_subcommand:
        return
    chosen = {"shown": shown, "run": run, "detector": detector, "environment": environment, "mine": mine or None}
    found = list(connect().pages("/review/items", limit=limit, **chosen))
    if as_json:
        return write_json(found)
    rows = [
        (short(item["id"]), item["environment"], short(item["run_id"]), item["reward"], item["verdict"], _reasons(item))
        for item in found
    ]
    head = ("item", "environment", "run", "reward", "verdict", "evidence")
    write_table(head, rows, empty="Nothing to review.")


@app.command("next")
def show_next(
    run: Run = None,
    detector: Detector = None,
    environment: Environment = None,
    mine: Mine = False,
    evidence: Annotated[bool, typer.Option("--evidence", help="Show flags. The review is not blind.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the next item to review: its conversation and rewards."""
    client = connect()
    chosen = {"run": run, "detector": detector, "environment": environment, "mine": mine or None}
    waiting = client.get("/review/items", limit=1, **chosen)["items"]
    if not waiting:
        fail("nothing to review", status=1)
    item = client.get(f"/review/items/{waiting[0]['id']}", evidence=evidence or None, **chosen)
    if as_json:
        return write_json(item)
    write_fields(
        {
            "item": item["id"],
            "run": f"{item['run']} ({short(item['run_id'])})",
            "environment": f"{item['environment']} v{item['version']}",
            "reward": item["reward"],
            **item["columns"],
            "evidence": _reasons(item),
        }
    )
    for message in item["messages"]:
        say(f"\n{message.get('role')}:", style="bold")
        say(str(message.get("content") or ""))


@app.command("stats")
def show_stats(
    target: Annotated[int | None, typer.Option(min=1, help="Set how many items you intend to review per day.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show waiting and assigned items, today's count and your target, and the agreement of reviewers."""
    client = connect()
    found = client.put("/review/target", {"per_day": target}) if target else client.get("/review/stats")
    if as_json:
        return write_json(found)
    write_fields(
        {
            "waiting": found["waiting"],
            "assigned to me": found["mine"],
            "reviewed today": f"{found['today']} of {found['per_day']}",
            "reviewed twice, blind": f"{found['judged_twice']}, {found['agreeing']} agree",
            "Cohen's kappa": found["kappa"],
        }
    )


@renders("review.give_verdict")
def _show_verdict(found: Json) -> None:
    say(f"{len(found['items'])} verdict(s) stored: {found['items'][0]['verdict']}")


@renders("review.undo_verdict")
def _show_undone(found: Json) -> None:
    verdict = found["items"][0]
    say(f"taken back: {verdict['verdict']} on {short(verdict['rollout_id'] or verdict['flag_id'])}")


@renders("review.assign_items")
def _show_assigned(found: Json) -> None:
    say(f"{len(found['items'])} assigned")


@renders("fixtures.keep")
def _show_kept(fixture: Json) -> None:
    say(f"{fixture['name']} must score {_demand(fixture)}")


@renders("fixtures.list")
def _show_fixtures(found: list[Json]) -> None:
    rows = [
        (each["name"], _demand(each), each["created_at"][:16], each["withdrawn_because"] or each["withdrawn_at"] or "")
        for each in found
    ]
    write_table(("fixture", "must score", "since", "withdrawn"), rows, empty="No episode has been kept as a fixture.")


@renders("review.get_safeguards")
def _show_safeguards(found: Json) -> None:
    certificate, reward, audit = found["certificate"], found["reward"], found["audit"]
    write_fields(
        {
            "environment": f"{found['environment']} v{found['version']}",
            "certificate": f"{certificate['status']}, {certificate['passed']} of {certificate['total']} passed"
            if certificate
            else "none",
            "fixtures": f"{found['fixtures_hack']} hacks, {found['fixtures_honest']} honest",
            "flags": ", ".join(f"{each['id']} {each['flags']}" for each in found["detectors"]) or "none",
            "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in found["verdicts"].items()) or "none",
            "audit sample": f"{audit['hacks']} hacks in {audit['looked_at']} of {audit['drawn']} sampled",
            "reward": f"{reward['judged']:.4g} by verdicts, {reward['trained']:.4g} as trained"
            if reward
            else "not reviewed",
            "effort scores": ", ".join(
                f"{each['checkpoint']} {each['outcome'] or each['status']}" for each in found["efforts"]
            )
            or "none",
            "interventions": ", ".join(f"{each['name']} at {each['step']}" for each in found["interventions"])
            or "none",
            "changes": ", ".join(each["name"] for each in found["changes"]) or "none",
        }
    )


def _reasons(item: Json) -> str:
    if item["flags"] is None:
        return "hidden: review the transcript first (--evidence shows flags)"
    return "; ".join(flag["sentence"] for flag in item["flags"]) or "audit sample: no detector flagged it"


def _demand(fixture: Json) -> str:
    if fixture["highest"] is not None:
        return f"at most {fixture['highest']:.4g}"
    return f"at least {fixture['lowest']:.4g}"
