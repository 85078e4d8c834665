"""`proctor review …`: the next item and your target; how results of review operations are shown."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import renders, takes_request
from backend.cli.output import BAD_RESULT, AsJson, fail, say, write_fields, write_json, write_table
from backend.web.formats import short
from proctor import Json

app = typer.Typer(help="Review flagged rollouts. Without a command: list the queue.", rich_markup_mode=None)


@renders("review.list_items")
def _show_queue(found: list[Json]) -> None:
    rows = [
        (short(item["id"]), item["environment"], short(item["run_id"]), item["reward"], item["verdict"], _reasons(item))
        for item in found
    ]
    head = ("item", "environment", "run", "reward", "verdict", "evidence")
    write_table(head, rows, empty="Nothing to review.")


@app.command("next")
@takes_request("review.next_item", "run", "detector", "environment", "mine", "evidence")
def show_next(request: Json, as_json: AsJson = False) -> None:
    """Show the next item to review: its conversation and rewards."""
    client = connect()
    waiting = client.get("/review/items", limit=1, **{**request, "evidence": None})["items"]
    if not waiting:
        fail("nothing to review", BAD_RESULT)
    item = client.get(f"/review/items/{waiting[0]['id']}", **request)
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
    fields = {
        "environment": f"{found['environment']} v{found['version']}",
        "certificate": certificate
        and f"{certificate['status']}, {certificate['passed']} of {certificate['total']} passed",
        "fixtures": f"{found['fixtures_hack']} hacks, {found['fixtures_honest']} honest",
        "flags": ", ".join(f"{each['id']} {each['flags']}" for each in found["detectors"]),
        "columns that reward surface": ", ".join(
            f"{each['column']} for {each['family']} ({each['share']:.0%}, {each['low']:.0%} to {each['high']:.0%})"
            for each in found["columns"]
        ),
        "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in found["verdicts"].items()),
        "audit sample": f"{audit['hacks']} hacks in {audit['looked_at']} of {audit['drawn']} sampled",
        "reward": f"{reward['judged']:.4g} by verdicts, {reward['trained']:.4g} as trained"
        if reward
        else "not reviewed",
        "effort scores": ", ".join(
            f"{each['checkpoint']} {each['outcome'] or each['status']}" for each in found["efforts"]
        ),
        "interventions": ", ".join(f"{each['name']} at {each['step']}" for each in found["interventions"]),
        "changes": ", ".join(each["name"] for each in found["changes"]),
    }
    write_fields({name: value or "none" for name, value in fields.items()})


def _reasons(item: Json) -> str:
    if item["flags"] is None:
        return "hidden: review the transcript first (--evidence shows flags)"
    return "; ".join(flag["sentence"] for flag in item["flags"]) or "audit sample: no detector flagged it"


def _demand(fixture: Json) -> str:
    if fixture["highest"] is not None:
        return f"at most {fixture['highest']:.4g}"
    return f"at least {fixture['lowest']:.4g}"
