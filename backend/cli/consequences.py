"""What verdicts lead to, in the terminal: judged fixtures, a run's safeguards, scores by a draft."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, say, write_fields, write_json, write_table
from backend.cli.watching import look_while


def register(review: typer.Typer, run: typer.Typer, env: typer.Typer) -> None:
    """Each command beside what it is about."""
    review.command("keep")(keep)
    review.command("take-back")(take_back)
    run.command("safeguards")(safeguards)
    env.command("judged")(judged)
    env.command("score-draft")(score_draft)


def keep(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="Id of a judged rollout.")],
    bound: Annotated[
        float | None, typer.Option(help="What it may earn at most, or must earn at least: authors say it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have every later certificate replay a rollout that was judged a hack or honest."""
    found = connect().post(f"/rollouts/{rollout}/fixture", {"bound": bound})
    if as_json:
        write_json(found)
    else:
        say(f"{found['name']} must score {_demand(found)}")


def take_back(
    fixture: Annotated[str, typer.Argument(metavar="FIXTURE", help="Its id.")],
    as_json: AsJson = False,
) -> None:
    """No certificate replays it any more; it stays in the history. For authors."""
    connect().delete(f"/fixtures/{fixture}")
    if as_json:
        write_json({"taken_back": fixture})
        return
    say("taken back")


def judged(
    name: Annotated[str, typer.Argument(metavar="ENVIRONMENT")],
    as_json: AsJson = False,
) -> None:
    """List the judged episodes that certificates replay, and those that were taken back."""
    found = list(connect().pages(f"/environments/{name}/judged-fixtures"))
    if as_json:
        write_json(found)
        return
    rows = [
        (each["name"], _demand(each), each["created_at"][:16], each["withdrawn_because"] or each["withdrawn_at"] or "")
        for each in found
    ]
    write_table(("fixture", "must score", "since", "taken back"), rows, empty="Nobody judged an episode.")


def safeguards(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, the end of it, or `last`.")],
    as_json: AsJson = False,
) -> None:
    """What was done so that a run's reward means what it says."""
    client = connect()
    found = client.get(f"/runs/{run_of(client, run)['id']}/safeguards")
    if as_json:
        write_json(found)
        return
    certificate, reward, audit = found["certificate"], found["reward"], found["audit"]
    write_fields(
        {
            "environment": f"{found['environment']} v{found['version']}",
            "certificate": f"{certificate['status']}, {certificate['passed']} of {certificate['total']} passed"
            if certificate
            else "none",
            "judged episodes": f"{found['fixtures_hack']} hacks, {found['fixtures_honest']} honest",
            "flags": ", ".join(f"{each['id']} {each['flags']}" for each in found["detectors"]) or "none",
            "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in found["verdicts"].items()) or "none",
            "blind sample": f"{audit['hacks']} hacks in {audit['looked_at']} of {audit['drawn']} drawn",
            "as judged": f"{reward['judged']:.4g}, {reward['trained']:.4g} as trained" if reward else "nobody judged",
            "effort scores": ", ".join(
                f"{each['checkpoint']} {each['outcome'] or each['status']}" for each in found["efforts"]
            )
            or "none",
            "stepped in": ", ".join(f"{each['name']} at {each['step']}" for each in found["interventions"]) or "none",
            "changes": ", ".join(each["name"] for each in found["changes"]) or "none",
        }
    )


def score_draft(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="Id of a completed rollout.")],
    as_json: AsJson = False,
) -> None:
    """What the draft's reward gives this rollout, others of its pattern and the history, before it is published."""
    client = connect()
    asked = client.post(f"/rollouts/{rollout}/draft-score")
    found = look_while(lambda each: each["answer"] is None, asked, lambda: client.get(f"/draft-scores/{asked['id']}"))
    if as_json:
        write_json(found)
        return
    answer = found["answer"]
    if answer["error"]:
        fail(answer["error"], BAD_RESULT)
    rows = [
        (name, part["count"], _mean(part["before"]), _mean(part["after"]), part["lower"], part["higher"])
        for name, part in (("this", answer["this"]), ("its pattern", answer["cluster"]), ("history", answer["history"]))
    ]
    say(f"by the draft of {found['environment']}, for {short(rollout)}")
    write_table(("episodes", "count", "before", "after", "lower", "higher"), rows, empty="")


def _demand(fixture: dict[str, Any]) -> str:
    if fixture["highest"] is not None:
        return f"at most {fixture['highest']:.4g}"
    return f"at least {fixture['lowest']:.4g}"


def _mean(estimate: dict[str, float] | None) -> str:
    return "–" if estimate is None else f"{estimate['mean']:.4g}"
