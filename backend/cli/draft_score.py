"""`proctor env score-draft`: the rewards that a draft gives a rollout and its likes, before it is published."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import short
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, say, write_json, write_table
from backend.cli.watching import look_while


def score_draft(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="Id of a completed rollout.")],
    as_json: AsJson = False,
) -> None:
    """Score a rollout, its cluster and the history with the draft's reward before it is published."""
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


def _mean(estimate: dict[str, float] | None) -> str:
    return "–" if estimate is None else f"{estimate['mean']:.4g}"
