"""`proctor judge …`: models that give rollouts a score with a reason."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.figures import estimate
from backend.cli.names import policy_of, run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, console, fail, say, write_fields, write_json, write_table
from backend.cli.watching import progress_bars
from backend.client import Client

app = typer.Typer(help="Model judges: add, try, let one look at a run.", no_args_is_help=True, rich_markup_mode=None)
POLL_SECONDS = 0.5
OVER = {"completed", "failed", "stopped", "paused"}

JudgeName = Annotated[str, typer.Argument(metavar="JUDGE", help="A judge's name or id.")]
Where = Annotated[str, typer.Option(help="Only rollouts that pass this filter, e.g. `reward > 0 and level = 2`.")]


@app.command("list")
def list_judges(as_json: AsJson = False) -> None:
    """All judges by name."""
    found = list(connect().all("/judges"))
    if as_json:
        write_json(found)
        return
    rows = [
        (judge["name"], judge["policy"], asked["target"], asked["scale"], asked["repeats"])
        for judge in found
        for asked in (judge["configuration"],)
    ]
    write_table(("judge", "policy", "looks at", "scale", "repeats"), rows, empty="No judge yet.")


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _; names the column judge.NAME.")],
    policy: Annotated[str, typer.Option(help="Which policy judges: its name or id.")],
    instruction: Annotated[
        str | None, typer.Option(help="What to judge; Jinja over the rollout's fields. `@FILE` reads a file.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Who the judge is. `@FILE` reads a file.")] = None,
    target: Annotated[str, typer.Option(help="answer, transcript or steps.")] = "answer",
    scale: Annotated[str, typer.Option(help="boolean, one_to_five, unit or rubric.")] = "unit",
    criteria: Annotated[
        list[str] | None, typer.Option("--criterion", help="Of a rubric: `name, weight: what it asks`; repeatable.")
    ] = None,
    fold_lowest: Annotated[
        bool, typer.Option("--lowest", help="Steps: the lowest score counts, not the mean.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, max=10, help="How often each rollout is asked about.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Repeats need more than 0.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens a verdict.")] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at a time.")] = 8,
    shows_reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Show it what the policy thought; it can then be no part of a reward.")
    ] = False,
    shows_reference: Annotated[bool, typer.Option("--reference", help="Show it the right answer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a judge. Once it has judged it stays as it is."""
    client = connect()
    body = {
        "name": name,
        "policy_id": policy_of(client, policy)["id"],
        "instruction": text_or_file(instruction),
        "system": text_or_file(system),
        "target": target,
        "scale": scale,
        "criteria": "\n".join(criteria) if criteria else None,
        "fold_lowest": fold_lowest,
        "repeats": repeats,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "concurrency": concurrency,
        "shows_reasoning": shows_reasoning,
        "shows_reference": shows_reference,
    }
    judge = client.post("/judges", {field: value for field, value in body.items() if value is not None})
    if as_json:
        write_json(judge)
    else:
        say(f"judge {judge['name']} added; try it: proctor judge test {judge['name']} ROLLOUT")


@app.command("show")
def show(judge: JudgeName, as_json: AsJson = False) -> None:
    """One judge and how it is asked."""
    found = judge_of(connect(), judge)
    if as_json:
        write_json(found)
    else:
        write_fields({"judge": found["name"], "policy": found["policy"], **found["configuration"]})


@app.command("delete")
def delete(judge: JudgeName, as_json: AsJson = False) -> None:
    """Take a judge out of all choices. What it said stays with the rollouts."""
    client = connect()
    found = judge_of(client, judge)
    client.delete(f"/judges/{found['id']}")
    if as_json:
        write_json({"deleted": found["id"]})
        return
    say(f"judge {found['name']} deleted")


@app.command("test")
def try_out(
    judge: JudgeName,
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="A rollout's id.")],
    sent: Annotated[bool, typer.Option("--sent", help="Show what was sent, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try a judge on one rollout; nothing is stored. Ends with 1 without a verdict."""
    client = connect()
    judge_id = judge_of(client, judge)["id"]
    asked = client.post(f"/judges/{judge_id}/ask", {"rollout_id": rollout})
    while asked["is_waiting"]:
        time.sleep(POLL_SECONDS)
        asked = client.get(f"/judges/{judge_id}/asked/{asked['id']}")
    answer = asked["answer"]
    if as_json:
        write_json(answer)
    else:
        _write_answer(answer, with_sent=sent)
    raise typer.Exit(0 if answer.get("score") is not None else BAD_RESULT)


@app.command("run")
def judge_run(
    judge: JudgeName, run: RunName, where: Where = "", no_wait: NoWait = False, as_json: AsJson = False
) -> None:
    """Let a judge look at a run. What it judged already is kept. Ends with 1 where a verdict is missing."""
    client = connect()
    judge_id, found = judge_of(client, judge)["id"], run_of(client, run)
    work = client.post(f"/runs/{found['id']}/judges", {"judge_id": judge_id, "where": where})
    if not no_wait:
        work = _watch(client, found["id"], work, quiet=as_json)
    if as_json:
        write_json(work)
    elif no_wait:
        say(f"{work['judge']} is {work['status']}: {client.url}/runs/{found['id']}/judges")
    else:
        _write_work(work, client.url, found["id"])
    is_bad = work["status"] != "completed" or work["failed"]
    raise typer.Exit(BAD_RESULT if is_bad and not no_wait else 0)


@app.command("stop")
def stop(judge: JudgeName, run: RunName, as_json: AsJson = False) -> None:
    """Ask a judge to stop after what is in flight. What was judged stays."""
    client = connect()
    work = client.post(f"/runs/{run_of(client, run)['id']}/judges/{judge_of(client, judge)['id']}/stop")
    if as_json:
        write_json(work)
        return
    say(f"{work['judge']} stops; {work['judged']} of {work['total']} are judged")


@app.command("results")
def results(run: RunName, as_json: AsJson = False) -> None:
    """What each judge says of a run: coverage, mean, cost, agreement with people."""
    client = connect()
    found = list(client.all(f"/runs/{run_of(client, run)['id']}/judges"))
    if as_json:
        write_json(found)
        return
    rows = [
        (
            *(work["judge"], work["status"], f"{work['judged']} of {work['total']}", work["failed"]),
            *(estimate(work["score"]), work["spread"], work["cost"], _kappa(work), _injectable(work)),
        )
        for work in found
    ]
    columns = ("judge", "state", "judged", "no verdict", "score [95 %]", "spread", "cost $", "kappa", "injectable")
    write_table(columns, rows, empty="No judge has looked at this run.")


def judge_of(client: Client, name: str) -> dict[str, Any]:
    """By name or id."""
    for judge in client.all("/judges"):
        if name in {judge["name"], judge["id"]}:
            return judge
    fail(f"there is no judge {name!r}; `proctor judge list` shows them")


def _watch(client: Client, run_id: str, work: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Until it is over. Ctrl-C leaves it at work."""
    with progress_bars(quiet=quiet) as progress:
        bar = progress.add_task(f"{work['judge']} judges", total=None, rate="")
        try:
            while work["status"] not in OVER:
                time.sleep(POLL_SECONDS)
                found = client.all(f"/runs/{run_id}/judges")
                work = next(each for each in found if each["judge_id"] == work["judge_id"])
                mean = f"mean {work['score']['mean']:.3f}" if work["score"] else ""
                progress.update(bar, total=work["total"], completed=work["judged"] + work["failed"], rate=mean)
        except KeyboardInterrupt:
            progress.stop()
            told = f"It goes on. `proctor judge stop {work['judge']} {short(run_id)}` stops it."
            console(is_error=True).print(told, markup=False)
            raise SystemExit(0) from None
    return work


def _write_work(work: dict[str, Any], url: str, run_id: str) -> None:
    write_fields(
        {
            "judge": work["judge"],
            "page": f"{url}/runs/{run_id}/judges",
            "status": work["status"] + (f": {work['reason']}" if work["reason"] else ""),
            "judged": f"{work['judged']} of {work['total']}, {work['failed']} without a verdict",
            "score": estimate(work["score"]),
            "spread": work["spread"],
            "cost": work["cost"],
            "kappa": _kappa(work),
        }
    )
    if _injectable(work):
        say("This judge can be talked into a score: do not train on its scores.", "red")


def _write_answer(answer: dict[str, Any], *, with_sent: bool) -> None:
    if answer.get("error"):
        say(answer["error"], "red")
    write_fields({name: answer.get(name) for name in ("score", "spread", "tokens_in", "tokens_out", "cost")})
    for repeat in answer.get("repeats", ()):
        for message in repeat["messages"] if with_sent else ():
            say(f"--- {message['role']}", "bold")
            say(message["content"])
        say("--- said", "bold")
        say(repeat["replies"][-1])


def _kappa(work: dict[str, Any]) -> float | None:
    return work["agreement"]["kappa"] if work["agreement"] else None


def _injectable(work: dict[str, Any]) -> bool | None:
    return work["canaries"]["is_injectable"] if work["canaries"] else None


def text_or_file(given: str | None) -> str | None:
    """As it is given, or what stands in the file behind an `@`."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{given[1:]} cannot be read: {error}")
