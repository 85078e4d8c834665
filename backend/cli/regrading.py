"""`proctor regrade`, `proctor replay`, `proctor env history`: other rewards for stored rollouts, and their effects."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, takes_request
from backend.cli.names import EnvironmentName, RunName, run_of, version_of
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, fail, say, write_json, write_table
from backend.cli.views import estimate
from backend.cli.watching import watch
from backend.web.formats import short
from proctor import Client

All = Annotated[bool, typer.Option("--all", help="Every completed evaluation of the run's version, one new run each.")]


@takes_request("regrading.start", "where", "name")
def regrade(
    run: RunName,
    request: Json,
    version: Annotated[int | None, typer.Option(min=1, help="Number of the version whose rewards to use.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="New weights: win=1,format=0.5,judge.strict=2. Others keep their weight.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason to continue if regrading is not faithful.")] = "",
    everything: All = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Preview the effect of weights; store nothing.")] = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Regrade a run's stored rollouts, without sampling. Exits with 1 if it is refused or if more rollouts fail."""
    if (version is None) == (weights is None):
        fail("give either --version or --weights")
    client = connect()
    source = run_of(client, run)
    if dry_run:
        if weights is None:
            fail("--dry-run previews weights; to try a version, regrade a part of the rollouts with --where")
        request.pop("name", None)
        request |= {"run_id": source["id"], "weights": read_weights(weights)}
        found = client.post("/rescores/preview", request)
        if as_json:
            return write_json(found)
        preview = found["preview"]
        rows: list[tuple[object, ...]] = [
            ("mean reward [95%]", estimate(preview["before"]), estimate(preview["after"]))
        ]
        for kind in ("mixed", "all_good", "all_bad"):
            sides = (preview["spread_before"], preview["spread_after"])
            shares = (f"{spread[kind]:.1%}" if spread else "–" for spread in sides)
            rows.append((f"groups {kind.replace('_', ' ')}", *shares))
        write_table(("", "current", "with these weights"), rows, empty="No rollout matches.")
        correlation = f"rank correlation {estimate(preview['rank_correlation'])} (Kendall's tau)"
        say(f"\n{preview['rollouts']} rollouts; {correlation}")
        if preview["without_value"]:
            say(f"{preview['without_value']} have no value in some column and would be stored as failed", "yellow")
        return
    request |= {"override": reason} if weights is None else {"weights": read_weights(weights)}
    results = _results(client, "/rescores", source, version, everything, request, no_wait=no_wait, as_json=as_json)
    is_bad = False
    for each in results:
        before = client.get(f"/runs/{each['source_run_id']}")["summary"] if each["source_run_id"] else {}
        is_bad |= each["run"]["status"] != "completed" or each["failed"] > (before.get("failed") or 0)
    raise typer.Exit(BAD_RESULT if is_bad else OK)


@takes_request("regrading.start_replay", "where", "name")
def replay(
    run: RunName,
    request: Json,
    version: Annotated[int, typer.Option(min=1, help="Number of the version to play on.")],
    everything: All = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Replay a run's stored replies on another version. Exits with 1 if a rollout diverges, as diff does."""
    client = connect()
    source = run_of(client, run)
    results = _results(client, "/replays", source, version, everything, request, no_wait=no_wait, as_json=as_json)
    is_bad = any(each["run"]["status"] != "completed" or each["diverged"] or each["failed"] for each in results)
    raise typer.Exit(BAD_RESULT if is_bad else OK)


def history(
    environment: EnvironmentName,
    regrade: Annotated[bool, typer.Option("--regrade", help="Regrade all runs that this version has not.")] = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Show the rewards of other versions' runs by this version, and the conclusions that change.

    --regrade waits for the regrading runs. Exits with 1 if one of them is refused, is stopped or fails.
    """
    client = connect()
    name = environment.partition("@")[0]
    path = f"/environments/{name}/versions/{version_of(client, environment)['number']}/history"
    found = client.post(path) if regrade else client.get(path)
    if regrade and not no_wait:
        for part in found["parts"]:
            if part["status"] in {"queued", "running"}:
                watch(client, client.get(f"/runs/{part['rescore_id']}"), quiet=as_json)
        found = client.get(path)
    if as_json:
        write_json(found)
    else:
        counts = f"{found['graded']} of {len(found['parts'])} graded, {found['open']} in progress"
        say(f"{found['environment']}, history by v{found['version']}: {counts}, {found['unended']} not graded", "bold")
        conclusions = found["conclusions"]
        for ranking in conclusions["rankings"]:
            say(f"\n{ranking['label']}; Kendall's tau {estimate(ranking['rank_correlation'])}")
            names = ("place_after", "place_before", "name")
            rows = [
                (*(each[name] for name in names), estimate(each["before"]), estimate(each["after"]))
                for each in ranking["contenders"]
            ]
            write_table(("rank", "was", "policy", "before [95%]", "after [95%]"), rows, empty="")
            for pair in ranking["turned"]:
                chance = "" if pair["is_clear"] else ", not significant"
                differences = f"{estimate(pair['before'])}, now {estimate(pair['after'])}{chance}"
                say(f"reversed: {pair['first']} was above {pair['second']} by {differences}", "yellow")
        for each in conclusions["checkpoints"]:
            old, new = (f"{best['stage']} {best['step']}" for best in (each["before"], each["after"]))
            result = f"is replaced by {new}" if each["is_changed"] else "stays the best"
            say(f"{each['name']}: {old} {result}", "yellow" if each["is_changed"] else None)
        for each in conclusions["moved"]:
            name = f"{each['name']} ({each['phase'] or 'evaluation'})"
            say(f"changed: {name} {estimate(each['before'])} → {estimate(each['after'])}")
        if found["graded"] and not conclusions["is_changed"]:
            say("no conclusion changes")
    raise typer.Exit(BAD_RESULT if regrade and found["unended"] else OK)


def read_weights(text: str) -> dict[str, float]:
    weights = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.rpartition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            fail(f"--weights {part}: write column=number, such as win=1,format=0.5")
    if not weights:
        fail("--weights: name at least one column, such as win=1")
    return weights


def _results(
    client: Client,
    path: str,
    source: Json,
    version: int | None,
    everything: bool,
    body: Json,
    *,
    no_wait: bool,
    as_json: bool,
) -> list[Json]:
    """Start the new runs, wait for them, print what changed, and return it."""
    body |= {"evaluations_of": source["version_id"]} if everything else {"run_ids": [source["id"]]}
    if version is not None:
        body["version_id"] = version_of(client, f"{source['environment']}@{version}")["id"]
    started = client.post(path, body)
    if no_wait:
        if as_json:
            write_json(started)
        else:
            for run in started["runs"]:
                say(f"run {short(run['id'])} is queued: {client.url}/runs/{run['id']}/before-after")
        raise typer.Exit(OK)
    for run in started["runs"]:
        watch(client, run, quiet=as_json)
    results = [client.get(f"/runs/{run['id']}/before-after") for run in started["runs"]]
    if as_json:
        write_json(results)
        return results
    for each in results:
        run = each["run"]
        say(f"{run['name']}: {run['status']}", "bold")
        if run["reason"] or each["grounds"]:
            say(run["reason"] or each["grounds"])
        columns = each["columns"] if each["completed"] else ()
        rows = [(one["name"], one["before"], one["after"], estimate(one["difference"])) for one in columns]
        write_table(("column", "before", "after", "difference [95%]"), rows, empty="Nothing was graded.")
        counts = f"{each['completed']} of {each['rollouts']} completed, {each['changed']} with another reward"
        say(f"{counts}, {each['diverged']} diverged")
        for step, count in each["diverging_steps"].items():
            say(f"  first at {'the reset' if step == '0' else f'step {step}'}: {count}")
        say(f"{client.url}/runs/{run['id']}/before-after\n")
    return results
