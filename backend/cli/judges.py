"""`proctor judge …`: models that give rollouts a score with a reason."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.figures import estimate
from backend.cli.inquiries import Sort, Where, answer_of_try, is_injectable, status_of, text_or_file
from backend.cli.names import policy_of
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, say, write_fields, write_json, write_table

app = typer.Typer(help="Model judges: add, try, let one look at a run.", no_args_is_help=True, rich_markup_mode=None)

JudgeName = Annotated[str, typer.Argument(metavar="JUDGE", help="A judge's name or id.")]


@app.command("list")
def list_judges(as_json: AsJson = False) -> None:
    """All judges by name."""
    found = list(connect().pages("/judges"))
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
    JUDGES.show(judge, as_json)


@app.command("delete")
def delete(judge: JudgeName, as_json: AsJson = False) -> None:
    """Take a judge out of all choices. What it said stays with the rollouts."""
    JUDGES.delete(judge, as_json, told="judge ")


@app.command("test")
def try_out(
    judge: JudgeName,
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="A rollout's id.")],
    sent: Annotated[bool, typer.Option("--sent", help="Show what was sent, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try a judge on one rollout; nothing is stored. Ends with 1 without a verdict."""
    client = connect()
    address = f"/judges/{JUDGES.find(client, judge)['id']}"
    answer = answer_of_try(client, client.post(f"{address}/ask", {"rollout_id": rollout}), f"{address}/asked")
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
    JUDGES.start(judge, run, {"where": where}, no_wait=no_wait, as_json=as_json)


@app.command("stop")
def stop(judge: JudgeName, run: RunName, as_json: AsJson = False) -> None:
    """Ask a judge to stop after what is in flight. What was judged stays."""
    work = JUDGES.stop(judge, run)
    if as_json:
        write_json(work)
        return
    say(f"{work['judge']} stops; {work['judged']} of {work['total']} are judged")


@app.command("results")
def results(run: RunName, as_json: AsJson = False) -> None:
    """What each judge says of a run: coverage, mean, cost, agreement with people."""
    found = JUDGES.works_on(run)
    if as_json:
        write_json(found)
        return
    rows = [
        (
            *(work["judge"], work["status"], f"{work['judged']} of {work['total']}", work["failed"]),
            *(estimate(work["score"]), work["spread"], work["cost"], _kappa(work), is_injectable(work)),
        )
        for work in found
    ]
    columns = ("judge", "state", "judged", "no verdict", "score [95 %]", "spread", "cost $", "kappa", "injectable")
    write_table(columns, rows, empty="No judge has looked at this run.")


def _write_work(work: dict[str, Any], page: str) -> None:
    write_fields(
        {
            "judge": work["judge"],
            "page": page,
            "status": status_of(work),
            "judged": f"{work['judged']} of {work['total']}, {work['failed']} without a verdict",
            "score": estimate(work["score"]),
            "spread": work["spread"],
            "cost": work["cost"],
            "kappa": _kappa(work),
        }
    )
    if is_injectable(work):
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


def _mean(work: dict[str, Any]) -> str:
    return f"mean {work['score']['mean']:.3f}" if work["score"] else ""


JUDGES = Sort(noun="judge", done="judged", at_work="judges", rate=_mean, write=_write_work)
