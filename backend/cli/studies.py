"""How the command line shows studies, and `proctor run onset` and `proctor run effort`: a run's latest studies."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, renders, takes_request
from backend.cli.names import RunName, run_of
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, fail, say, write_json, write_table
from backend.cli.runs import finish
from backend.cli.views import estimate
from backend.cli.watching import wait_for
from proctor import Client

Stop = Annotated[bool, typer.Option("--stop", help="Stop the study in progress.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the latest stopped or failed study.")]


@takes_request("studies.start_onset", "cluster", "tasks", "group_size")
def onset(
    run: RunName,
    request: Json,
    detector: Annotated[
        str | None, typer.Option(help="Detector of the pattern to search for. Default: show patterns and studies.")
    ] = None,
    stop: Stop = False,
    resume: Resume = False,
    roll_back: Annotated[
        bool, typer.Option("--roll-back", help="Start a branch from the last honest checkpoint.")
    ] = False,
    version: Annotated[
        int | None, typer.Option(min=1, help="Environment version of the branch. Default: the latest.")
    ] = None,
    without_certificate: Annotated[
        str | None, typer.Option("--without-certificate", help="Reason to train the branch on an unchecked version.")
    ] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Find the first checkpoint that shows a confirmed pattern more often than the starting policy.

    Exits with 1 if the study stopped or failed.
    """
    client = connect()
    path = f"/runs/{run_of(client, run)['id']}/studies"
    if roll_back:
        honest = client.get(path, kind="onset")["last_honest"]
        if honest is None:
            fail("no hack was confirmed in this run, or no checkpoint before it has its weights", BAD_RESULT)
        body = {
            "checkpoint_id": honest["checkpoint_id"],
            "version": version or honest["newest_version"],
            "without_certificate": without_certificate,
        }
        branch = client.post(f"/runs/{honest['run_id']}/branch", body)
        finish(client, client.get(f"/runs/{branch['id']}"), no_wait=no_wait, as_json=as_json)
    elif stop or resume:
        studies = client.get(path, kind="onset")["studies"]
        wanted = {"detector": detector, "cluster": request.get("cluster")}
        matching = [
            study
            for study in studies
            if all(value in (None, study["settings"][name]) for name, value in wanted.items())
        ]
        _end_with(client, _steer(client, matching, is_stop=stop), no_wait=no_wait or stop, as_json=as_json)
    elif detector:
        study = client.post(f"{path}/onset", request | {"detector": detector})
        _end_with(client, study, no_wait=no_wait, as_json=as_json)
    else:
        (write_json if as_json else show_studies)(client.get(path, kind="onset"))


@takes_request("studies.start_effort", "step", "tasks", "group_size", "cuts", "samples", "replies", "measure")
def effort(
    run: RunName,
    request: Json,
    start: Annotated[bool, typer.Option("--start", help="Start a study. Default: show the run's studies.")] = False,
    stop: Stop = False,
    resume: Resume = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much of its reasoning a checkpoint needs to earn its reward, compared with the starting policy.

    RUN is a training run or an evaluation of a local checkpoint. Exits with 1 if the result is suspicious, or if the
    study stopped or failed.
    """
    client = connect()
    path = f"/runs/{run_of(client, run)['id']}/studies"
    if stop or resume:
        study = _steer(client, client.get(path, kind="effort")["studies"], is_stop=stop)
        _end_with(client, study, no_wait=no_wait or stop, as_json=as_json)
    elif start:
        _end_with(client, client.post(f"{path}/effort", request), no_wait=no_wait, as_json=as_json)
    else:
        (write_json if as_json else show_studies)(client.get(path, kind="effort"))


def _steer(client: Client, studies: list[Json], *, is_stop: bool) -> Json:
    """Stop the latest study in progress, or resume the latest that stopped or failed."""
    for study in studies:
        if study["status"] != "completed" and study["is_finished"] != is_stop:
            return client.post(f"/studies/{study['id']}/{'stop' if is_stop else 'resume'}")
    fail("no study is in progress" if is_stop else "there is no study to resume")


def _end_with(client: Client, study: Json, *, no_wait: bool, as_json: bool) -> None:
    if not no_wait:
        study = wait_for(client, f"/studies/{study['id']}", study, quiet=as_json)
    (write_json if as_json else show_study)(study)
    raise typer.Exit(OK if no_wait or study["is_successful"] else BAD_RESULT)


@renders("studies.list")
def show_studies(overview: Json) -> None:
    columns = ("detector", "cluster", "flagged", "confirmed", "first_step", "obstacle")
    patterns = [[pattern[column] for column in columns] for pattern in overview["patterns"]]
    if patterns:
        write_table(("detector", "cluster", "flagged", "confirmed", "first at step", ""), patterns, empty="")
    if overview["effort_obstacle"]:
        say(f"no effort study: {overview['effort_obstacle']}", "yellow")
    if not overview["studies"]:
        say(
            "No studies yet. `proctor review` confirms patterns, `proctor run onset` searches for their onset, "
            "`proctor run effort --start` studies the reasoning of the latest checkpoint."
        )
    for study in overview["studies"]:
        say("")
        show_study(study)
    if honest := overview["last_honest"]:
        where = "before GRPO" if honest["stage"] != "grpo" else f"step {honest['step']}"
        say(f"\nlast honest checkpoint: {where}; --roll-back starts a branch from it on v{honest['newest_version']}")


@renders("studies.get_study")
@renders("studies.start_onset")
@renders("studies.start_effort")
@renders("studies.stop_study")
@renders("studies.resume_study")
def show_study(study: Json) -> None:
    is_effort = study["kind"] == "effort"
    result = study["result"] or {}
    summary = result.get("outcome") or "no result yet" if is_effort else study["conclusion"]
    say(f"{study['title']}: {summary} ({study['status']})", "bold")
    for text in (study["reason"], study["conclusion"] if is_effort else "", *result.get("remarks", ())):
        if text:
            say(text, "yellow")
    rows: list[tuple[object, ...]]
    columns: tuple[str, ...]
    if is_effort:
        rows = [
            (
                f"{side['name']} (base)" if side["is_base"] else side["name"],
                side["succeeded"],
                side["reasoned"],
                len(side["replies"]),
                estimate({**side, "mean": side["value"]}),
                " ".join(f"{value:.2f}" for value in side["curve"]) or side["note"],
            )
            for side in study["checkpoints"]
        ]
        columns = ("policy", "succeeded", "with reasoning", "cut", "area [95%]", "curve by share of the reasoning")
    else:
        rows = [
            (
                "starting policy" if each["is_base"] else each["name"],
                f"{each['flagged']} of {each['rollouts']}",
                estimate({**each, "mean": each["value"]}, form=".1%"),
                each["chance"],
                "" if each["is_base"] else each["is_above"],
            )
            for each in study["checkpoints"]
            if each["rollouts"]
        ]
        columns = ("checkpoint", "flagged", "share [95%]", "p", "above the base rate")
    write_table(columns, rows, empty="No checkpoint was sampled yet.")
