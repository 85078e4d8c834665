"""How the command line shows graders; the old groups `judge` and `question`, which work for one release."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import operations, renders, takes_request
from backend.cli.output import BAD_RESULT, AsJson, fail, group, say, write_fields, write_json, write_table
from backend.cli.views import estimate
from backend.cli.watching import wait_for
from backend.web.formats import short
from proctor import Json

_RENAMED = {"look": "estimate", "ask": "run", "flag": "flag_answers", "results": "list_results", "show": "get"}
"""Old commands whose operation has another name."""
judge_app, question_app = (group(help="Renamed to `grader`. Works for one release.") for _ in range(2))

Name = Annotated[str, typer.Argument(help="Name of the grader.")]


@renders("graders.run")
def show_graded_run(result: Json) -> None:
    rows = {
        result["kind"]: result["grader"],
        "page": f"{connect().url}/runs/{result['run_id']}/graders",
        "status": f"{result['status']}: {result['reason']}" if result["reason"] else result["status"],
        "graded": f"{result['graded']} of {result['total'] or 0}, {result['failed']} failed",
        "score": estimate(result["score"]),
        "answers": _counts(result),
        "quotes": f"{result['citations']} found, {result['dropped']} not found; {result['uncited']} grades have none",
        "cost": result["cost"],
        "kappa": result["agreement"]["kappa"] if result["agreement"] else None,
    }
    is_judge = result["kind"] == "judge"
    hidden = {"answers", "quotes"} if is_judge else {"score"}
    write_fields({name: value for name, value in rows.items() if name not in hidden})
    for finding in result["findings"]:
        for pattern in finding["patterns"]:
            say(f"{finding['label']}: {pattern['name']} ({pattern['suspicion']:.2f}) {pattern['description']}")
    if result["canaries"] and result["canaries"]["is_injectable"]:
        advice = "do not train on its scores" if is_judge else "its answers raise no flags"
        say(f"This grader is injectable: {advice}.", "red")


@renders("graders.list_results")
def show_results(results: Json) -> None:
    rows = [
        (
            *(each["grader"], each["kind"], each["status"], f"{each['graded']} of {each['total'] or 0}"),
            *(each["failed"], estimate(each["score"]), _counts(each), each["uncited"], each["cost"]),
            each["agreement"]["kappa"] if each["agreement"] else None,
            each["canaries"]["is_injectable"] if each["canaries"] else None,
        )
        for each in results
    ]
    columns = (
        *("grader", "kind", "status", "graded", "failed", "score [95%]", "answers", "no quote", "cost $", "kappa"),
        "injectable",
    )
    write_table(columns, rows, empty="No grader was started on this run.")


@renders("graders.try_out")
def show_try(result: Json, *, with_request: bool = False) -> None:
    if result["error"]:
        say(result["error"], "red")
    for each in result["rollouts"]:
        say(f"--- rollout {short(each['rollout_id'])}", "bold")
        if each["error"]:
            say(each["error"], "red")
        if each["answer"] is not None:
            say(f"{each['answer']} (confidence {each['confidence']:.0%}) {each['reason']}")
        elif each["score"] is not None:
            write_fields({name: each[name] for name in ("score", "spread", "tokens_in", "tokens_out", "cost")})
        patterns = each["patterns"] or []
        for pattern in patterns:
            say(f"{pattern['name']} ({pattern['suspicion']:.2f}) {pattern['description']}")
        for quote in [*each["citations"], *(quote for pattern in patterns for quote in pattern["citations"])]:
            say(f"  turn {quote['turn']}: {quote['quote']}")
        for exchange in each["exchanges"]:
            for message in exchange["messages"] if with_request else ():
                say(f"--- {message['role']}", "bold")
                say(message["content"])
            say("--- reply", "bold")
            say(exchange["replies"][-1] if exchange["replies"] else "")


def add_old_groups(app: typer.Typer) -> None:
    """Register `judge` and `question` with the commands of `grader` under their old names."""

    def announce(context: typer.Context) -> None:
        """Renamed to `grader`. Works for one release."""
        message = f"`proctor {context.info_name}` is now `proctor grader`. The old name works until the next release."
        say(message, "yellow", is_error=True)

    for name, old_app, own in (("judge", judge_app, ("run",)), ("question", question_app, ("look", "ask", "flag"))):
        for old in ("show", "delete", "stop", "results", *own):
            operation = operations()[f"graders.{_RENAMED.get(old, old)}"]
            old_app.command(old, deprecated=True)(operation.command())
        old_app.callback()(announce)
        app.add_typer(old_app, name=name)
    for old, new in (("add", "create"), ("list", "list")):
        judge_app.command(old, deprecated=True)(operations()[f"graders.{new}"].command({"kind": "judge"}))


@judge_app.command("test", deprecated=True)
def try_judge(
    judge: Name,
    rollout: Annotated[str, typer.Argument(help="Id of a rollout.")],
    sent: Annotated[bool, typer.Option("--sent", help="Show the request, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try a judge on one rollout. Exits with 1 without a verdict."""
    _try(judge, {"rollout": rollout}, as_json, with_request=sent)


@question_app.command("list", deprecated=True)
def list_questions(as_json: AsJson = False) -> None:
    """List questions, monitors and contrasts."""
    graders = [each for each in connect().pages("/graders") if each["kind"] != "judge"]
    if as_json:
        return write_json(graders)
    rows = []
    for each in graders:
        answers = ", ".join(each["settings"]["labels"]) or each["settings"]["answers"]
        rows.append((each["name"], each["kind"], each["policy"], each["settings"]["text"], answers))
    write_table(("name", "kind", "policy", "question", "answers"), rows, empty="No questions yet.")


@question_app.command("add", deprecated=True)
@takes_request(
    "graders.create",
    *("name", "policy", "text", "labels", "flags", "flags_from", "shows_reasoning", "max_tokens", "concurrency"),
    *("temperature", "each"),
)
def add_question(
    request: Json,
    kind: Annotated[str, typer.Option(help="question, monitor or contrast.")] = "question",
    scale: Annotated[bool, typer.Option("--scale", help="Answers from 1 to 5.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a question, a monitor or a contrast."""
    if kind not in (kinds := ("question", "monitor", "contrast")):
        fail(f"--kind is one of {', '.join(kinds)}")
    answers = "labels" if "labels" in request else "one_to_five" if scale else "yes_no"
    grader = connect().post("/graders", request | {"kind": kind, "answers": answers})
    if as_json:
        write_json(grader)
    else:
        say(f"{grader['name']} created. Next: proctor grader estimate {grader['name']} RUN")


@question_app.command("try", deprecated=True)
def try_question(
    question: Name,
    run: Annotated[str, typer.Argument(help="Id of a run.")],
    where: Annotated[str, typer.Option(help="Filter on the completed rollouts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Try a question on three rollouts. Exits with 1 if an answer is missing."""
    _try(question, {"run": run, "where": where}, as_json)


def _try(grader: str, body: dict[str, str], as_json: bool, *, with_request: bool = False) -> None:
    client = connect()
    result = client.post(f"/graders/{grader}/tries", body)
    result = wait_for(client, f"/graders/{result['grader_id']}/tries/{result['id']}", result, quiet=as_json)
    if as_json:
        write_json(result)
    else:
        show_try(result, with_request=with_request)
    raise typer.Exit(0 if result["is_successful"] else BAD_RESULT)


def _counts(result: Json) -> str:
    return ", ".join(f"{each['answer']} {each['count']}" for each in result["counts"])
