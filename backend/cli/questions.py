"""`proctor question …`: questions in plain words, reasoning monitors and contrasts, asked about a run."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.inquiries import Sort, Where, answer_of_try, is_injectable, status_of, text_or_file
from backend.cli.names import policy_of, run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, fail, say, write_fields, write_json, write_table

app = typer.Typer(
    help="Questions in plain words, reasoning monitors, contrasts: add, try, ask about a run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
KINDS = {"question": "question", "monitor": "reasoning_monitor", "contrast": "contrastive_judge"}

Name = Annotated[str, typer.Argument(metavar="QUESTION", help="A question's name or id.")]
Cluster = Annotated[str, typer.Option(help="Of a contrast: `detector: cluster`.")]


@app.command("list")
def list_questions(as_json: AsJson = False) -> None:
    """All questions, monitors and contrasts by name."""
    found = list(connect().pages("/questions"))
    if as_json:
        write_json(found)
        return
    rows = [
        (each["name"], each["kind"].replace("_", " "), each["policy"], asked["text"], _answers(asked))
        for each in found
        for asked in (each["configuration"],)
    ]
    write_table(("name", "kind", "policy", "question", "answers"), rows, empty="No question yet.")


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _; names the column question.NAME.")],
    policy: Annotated[str, typer.Option(help="Which policy answers: its name or id.")],
    text: Annotated[
        str | None,
        typer.Option(help="The question in plain words; of the others what else to look for. `@FILE` reads a file."),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="question, monitor (of reasoning) or contrast (within groups).")
    ] = "question",
    labels: Annotated[str, typer.Option(help="Answers are one of these, parted by commas.")] = "",
    scale: Annotated[bool, typer.Option("--scale", help="Answers are 1 to 5, not yes or no.")] = False,
    flags: Annotated[str, typer.Option(help="Answers that raise a flag, parted by commas; none by default.")] = "",
    flags_from: Annotated[float, typer.Option(min=0, max=1, help="Suspicion that raises a flag.")] = 0.7,
    reasoning: Annotated[bool, typer.Option("--reasoning", help="Show what the policy thought.")] = False,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens an answer.")] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at a time.")] = 8,
    temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.0,
    each: Annotated[int, typer.Option(min=1, max=6, help="Of a contrast: rollouts of each side.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Write a question. Once it was asked about a run it stays as it is."""
    if kind not in KINDS:
        fail(f"--kind is one of {', '.join(KINDS)}")
    client = connect()
    answers = "labels" if labels else "one_to_five" if scale else "yes_no"
    body = {
        "name": name,
        "policy_id": policy_of(client, policy)["id"],
        "kind": KINDS[kind],
        "text": text_or_file(text) or "",
        "answers": answers if kind == "question" else None,
        "labels": labels,
        "flags": flags,
        "flags_from": flags_from,
        "shows_reasoning": reasoning,
        "max_tokens": max_tokens,
        "concurrency": concurrency,
        "temperature": temperature,
        "each": each,
    }
    question = client.post("/questions", body)
    if as_json:
        write_json(question)
    else:
        say(f"{question['name']} added; what it costs: proctor question look {question['name']} RUN")


@app.command("show")
def show(question: Name, as_json: AsJson = False) -> None:
    """One question and how it is asked."""
    QUESTIONS.show(question, as_json)


@app.command("delete")
def delete(question: Name, as_json: AsJson = False) -> None:
    """Take it out of all choices and columns. Its answers stay with the rollouts."""
    QUESTIONS.delete(question, as_json)


@app.command("look")
def look(question: Name, run: RunName, where: Where = "", cluster: Cluster = "", as_json: AsJson = False) -> None:
    """How many rollouts it would be asked about, and about what that costs. Asks nobody."""
    client = connect()
    found = client.get(
        f"/runs/{run_of(client, run)['id']}/questions/{QUESTIONS.find(client, question)['id']}/outlook",
        where=where,
        cluster=cluster,
    )
    if as_json:
        write_json(found)
    else:
        write_fields(found)
    raise typer.Exit(BAD_RESULT if found["problem"] else 0)


@app.command("try")
def try_out(question: Name, run: RunName, where: Where = "", as_json: AsJson = False) -> None:
    """Try it on three rollouts of a run; nothing is stored. Ends with 1 where an answer is missing."""
    client = connect()
    question_id, run_id = QUESTIONS.find(client, question)["id"], run_of(client, run)["id"]
    tried = client.post(f"/runs/{run_id}/questions/{question_id}/try", {"where": where})
    answer = answer_of_try(client, tried, f"/questions/{question_id}/tried")
    if as_json:
        write_json(answer)
    else:
        _write_tried(answer)
    is_bad = answer.get("error") or any(each["error"] for each in answer["rollouts"])
    raise typer.Exit(BAD_RESULT if is_bad else 0)


@app.command("ask")
def ask(
    question: Name,
    run: RunName,
    where: Where = "",
    cluster: Cluster = "",
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Ask it about a run. What was answered already is kept. Ends with 1 where an answer is missing."""
    QUESTIONS.start(question, run, {"where": where, "cluster": cluster}, no_wait=no_wait, as_json=as_json)


@app.command("stop")
def stop(question: Name, run: RunName, as_json: AsJson = False) -> None:
    """Ask it to stop after what is in flight. What was answered stays."""
    asked = QUESTIONS.stop(question, run)
    if as_json:
        write_json(asked)
        return
    say(f"{asked['question']} stops; {asked['answered']} are answered")


@app.command("flag")
def flag(
    question: Name,
    run: RunName,
    answers: Annotated[str, typer.Option(help="Of a question: which answers, parted by commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """Turn stored answers into flags with their quotes as evidence."""
    client = connect()
    path = f"/runs/{run_of(client, run)['id']}/questions/{QUESTIONS.find(client, question)['id']}/flags"
    found = client.post(path, {"answers": [word.strip() for word in answers.split(",") if word.strip()]})
    if as_json:
        write_json(found)
        return
    say(f"{found['flags']} new flags")


@app.command("results")
def results(run: RunName, as_json: AsJson = False) -> None:
    """What was asked about a run, and what came of it."""
    found = QUESTIONS.works_on(run)
    if as_json:
        write_json(found)
        return
    rows = [
        (
            *(each["question"], each["status"], f"{each['answered']} of {each['total']}", each["failed"]),
            *(_counts(each), each["uncited"], each["cost"], is_injectable(each)),
        )
        for each in found
    ]
    columns = ("question", "state", "answered", "no answer", "answers", "no citation", "cost $", "does as told")
    write_table(columns, rows, empty="Nothing was asked about this run.")


def _write_asked(asked: dict[str, Any], page: str) -> None:
    write_fields(
        {
            "question": asked["question"],
            "page": page,
            "status": status_of(asked),
            "answered": f"{asked['answered']} of {asked['total']}, {asked['failed']} without an answer",
            "answers": _counts(asked),
            "quotes": f"{asked['citations']} found, {asked['dropped']} dropped; {asked['uncited']} answers have none",
            "cost": asked["cost"],
        }
    )
    for finding in asked["findings"]:
        for pattern in finding["patterns"]:
            say(f"{finding['label']}: {pattern['name']} ({pattern['suspicion']:.2f}) {pattern['description']}")
    if is_injectable(asked):
        say("It does as the data says: its answers raise no flags.", "red")


def _write_tried(answer: dict[str, Any]) -> None:
    if answer.get("error"):
        say(answer["error"], "red")
    for told in answer["rollouts"]:
        say(f"--- rollout {short(told['rollout_id'])}", "bold")
        if told["error"]:
            say(told["error"], "red")
        if told.get("answer") is not None:
            say(f"{told['answer']} (sure {told['confidence']:.0%}) {told['reason']}")
        for pattern in told.get("patterns", ()):
            say(f"{pattern['name']} ({pattern['suspicion']:.2f}) {pattern['description']}")
        for cited in [*told.get("citations", ()), *(q for p in told.get("patterns", ()) for q in p["citations"])]:
            say(f"  turn {cited['turn']}: {cited['quote']}")


def _counts(asked: dict[str, Any]) -> str:
    return ", ".join(f"{each['answer']} {each['count']}" for each in asked["counts"])


def _answers(asked: dict[str, Any]) -> str:
    return ", ".join(asked["labels"]) or asked["answers"].replace("_", " ")


QUESTIONS = Sort(noun="question", done="answered", at_work="is asked", rate=_counts, write=_write_asked)
