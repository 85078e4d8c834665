"""`proctor compare` and `proctor leaderboard`: which policy is better, and by how much."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, write_json
from backend.cli.result_tables import write_comparison, write_leaderboard
from proctor import Client, ProctorError

NOT_COMPARABLE = 409


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Two to eight runs: ids, the ends of ids, or `last`; the first is what the others are held against. "
            "Of a training run RUN@STEP for one of its held-out examinations.",
        ),
    ],
    before_step: Annotated[int | None, typer.Option(help="Of the first run, a training run: which step.")] = None,
    after_step: Annotated[int | None, typer.Option(help="Of the second run, a training run: which step.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the tasks that all of them completed: paired differences with 95 % intervals, a sign test and a
    permutation test, who wins over whom, and the baselines. Ends with 1 when they cannot be compared."""
    if len(runs) < 2:
        fail("name two runs or more")
    client = connect()
    references = [_reference(client, run) for run in runs]
    for place, step in enumerate((before_step, after_step)):
        if step is not None:
            references[place] = f"{references[place].partition('@')[0]}@{step}"
    try:
        found = client.get("/compare", run=references, tasks=0 if not as_json else 1000)
    except ProctorError as refused:
        if refused.status != NOT_COMPARABLE:
            raise
        fail(str(refused), BAD_RESULT)
    if as_json:
        write_json(found)
    else:
        write_comparison(found)


def _reference(client: Client, name: str) -> str:
    run, at, step = name.partition("@")
    return f"{run_of(client, run)['id']}{at}{step}"


def leaderboard(
    environment: Annotated[
        str, typer.Argument(metavar="ENVIRONMENT[:N]", help="An environment, and which version of it.")
    ],
    exam: Annotated[str | None, typer.Option(help="Key of an examination; left out: what most were given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rank the policies that sat the same examination of an environment version; others stand apart with the reason."""
    name, _, number = environment.replace("@", ":").partition(":")
    if number and not number.isdecimal():
        fail(f"{environment}: write the version as a number, e.g. {name}:2")
    found = connect().get(f"/leaderboards/{name}", version=number or None, exam=exam)
    if as_json:
        write_json(found)
    else:
        write_leaderboard(found)
