"""`proctor rescore`, `proctor replay`, `proctor env history`: other rewards over what was played, and what follows."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.figures import estimate
from backend.cli.names import run_of, short, version_of
from backend.cli.options import AsJson, EnvironmentName, NoWait, RunName
from backend.cli.output import BAD_RESULT, OK, fail, say, write_json, write_table
from backend.cli.watching import watch
from proctor import Client

Where = Annotated[str, typer.Option(help="Only rollouts that fit, e.g. `win = 0 and tokens > 200`.")]
Name = Annotated[str | None, typer.Option(help="Name of the new run.")]
All = Annotated[bool, typer.Option("--all", help="Every completed evaluation of the run's version, one new run each.")]


def rescore(
    run: RunName,
    version: Annotated[int | None, typer.Option(min=1, help="Number of the version whose rewards count.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="e.g. win=1,format=0.5,judge.strict=2; others keep their weight.")
    ] = None,
    where: Where = "",
    reason: Annotated[str, typer.Option(help="Why to go on where re-scoring is not faithful.")] = "",
    everything: All = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what weights would change; store nothing.")] = False,
    name: Name = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's stored rollouts again, without sampling. Ends with 1 when refused or when more rollouts fail."""
    if (version is None) == (weights is None):
        fail("give either --version or --weights")
    client = connect()
    source = run_of(client, run)
    if dry_run:
        _preview(client, source, weights, where, as_json)
        return
    what: dict[str, Any] = {"weights": read_weights(weights)} if weights is not None else {}
    if version is not None:
        what = {"version_id": _version(client, source, version), "override": reason}
    started = client.post("/rescores", {**_taken(source, everything), **what, "where": where, "name": name})
    found = _finish(client, started, no_wait=no_wait, as_json=as_json)
    is_bad = any(each["run"]["status"] != "completed" or _newly_failed(client, each) for each in found)
    raise typer.Exit(BAD_RESULT if is_bad else OK)


def replay(
    run: RunName,
    version: Annotated[int, typer.Option(min=1, help="Number of the version to play on.")],
    where: Where = "",
    everything: All = False,
    name: Name = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Play a run's stored replies on another version. Ends with 1 when any rollout goes another way, as diff does."""
    client = connect()
    source = run_of(client, run)
    what = {"version_id": _version(client, source, version), "where": where, "name": name}
    started = client.post("/replays", {**_taken(source, everything), **what})
    found = _finish(client, started, no_wait=no_wait, as_json=as_json)
    is_bad = any(each["run"]["status"] != "completed" or each["diverged"] or each["failed"] for each in found)
    raise typer.Exit(BAD_RESULT if is_bad else OK)


def history(
    environment: EnvironmentName,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Score all that has no score by this version yet; in the background.")
    ] = False,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """What the other versions' runs earned by this version's rewards, and which conclusions change.

    With --regrade it waits for the re-scores; it ends with 1 when one of them was refused, stopped or failed.
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
        _write_history(found)
    raise typer.Exit(BAD_RESULT if regrade and found["unended"] else OK)


def _write_history(found: dict[str, Any]) -> None:
    counts = (
        f"{found['graded']} of {len(found['parts'])} graded, {found['open']} under way, {found['unended']} did not end"
    )
    say(f"{found['environment']}, history by v{found['version']}: {counts}", "bold")
    changed = found["conclusions"]
    for ranking in changed["rankings"]:
        say(f"\n{ranking['label']}; Kendall's tau {_number(ranking['rank_correlation'])}")
        rows = [
            (each["place_after"], each["place_before"], each["name"], estimate(each["before"]), estimate(each["after"]))
            for each in ranking["contenders"]
        ]
        write_table(("place", "was", "policy", "before [95 %]", "after [95 %]"), rows, empty="")
        for pair in ranking["turned"]:
            sure = "" if pair["is_clear"] else ", which may be chance"
            told = f"{estimate(pair['before'])}, now {estimate(pair['after'])}{sure}"
            say(f"turned: {pair['first']} was above {pair['second']} by {told}", "yellow")
    for each in changed["checkpoints"]:
        after = "stays the best" if not each["is_changed"] else f"gives way to {_checkpoint(each['after'])}"
        say(f"{each['name']}: {_checkpoint(each['before'])} {after}", "yellow" if each["is_changed"] else None)
    for each in changed["moved"]:
        what = f"{each['name']} ({each['phase'] or 'evaluation'})"
        say(f"moved: {what} {estimate(each['before'])} → {estimate(each['after'])}")
    if found["graded"] and not changed["is_changed"]:
        say("no conclusion changes")


def _checkpoint(best: dict[str, Any]) -> str:
    return f"{best['stage']} {best['step']}"


def read_weights(text: str) -> dict[str, float]:
    """`win=1,format=0.5` by name."""
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.rpartition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            fail(f"--weights {part}: write it as column=number, e.g. win=1,format=0.5")
    if not found:
        fail("--weights: name at least one column, e.g. win=1")
    return found


def _version(client: Client, source: dict[str, Any], number: int) -> str:
    return str(version_of(client, f"{source['environment']}@{number}")["id"])


def _taken(source: dict[str, Any], everything: bool) -> dict[str, Any]:
    return {"evaluations_of": source["version_id"]} if everything else {"run_ids": [source["id"]]}


def _preview(client: Client, source: dict[str, Any], weights: str | None, where: str, as_json: bool) -> None:
    if weights is None:
        fail("--dry-run shows what weights would change; a version has to be played, so start it on a part by --where")
    body = {"run_id": source["id"], "weights": read_weights(weights), "where": where}
    found = client.post("/rescores/preview", body)
    if as_json:
        write_json(found)
        return
    shown = found["preview"]
    groups = shown["spread_before"], shown["spread_after"]
    rows: list[tuple[object, ...]] = [
        ("mean reward [95 %]", estimate(shown["before"]), estimate(shown["after"])),
        *((f"groups {kind.replace('_', ' ')}", *(_percent(side, kind) for side in groups)) for kind in _SPREAD),
    ]
    write_table(("", "as it is", "with these weights"), rows, empty="No rollout fits.")
    say(f"\n{shown['rollouts']} rollouts; same order: {_number(shown['rank_correlation'])} (Kendall's tau)")
    if shown["without_value"]:
        say(f"{shown['without_value']} have no value in some column and would be failed rows", "yellow")


_SPREAD = ("mixed", "all_good", "all_bad")


def _percent(spread: dict[str, float] | None, kind: str) -> str:
    return f"{spread[kind]:.1%}" if spread else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _finish(client: Client, started: dict[str, Any], *, no_wait: bool, as_json: bool) -> list[dict[str, Any]]:
    """What each of the runs changed, once they are over."""
    if no_wait:
        if as_json:
            write_json(started)
        else:
            for run in started["runs"]:
                say(f"run {short(run['id'])} is queued: {client.url}/runs/{run['id']}/before-after")
        raise typer.Exit(OK)
    for run in started["runs"]:
        watch(client, run, quiet=as_json)
    found = [client.get(f"/runs/{run['id']}/before-after") for run in started["runs"]]
    if as_json:
        write_json(found)
    else:
        for each in found:
            _write(client, each)
    return found


def _write(client: Client, found: dict[str, Any]) -> None:
    run = found["run"]
    say(f"{run['name']}: {run['status']}", "bold")
    if run["reason"] or found["grounds"]:
        say(run["reason"] or found["grounds"])
    rows = [
        (column["name"], column["before"], column["after"], estimate(column["difference"]))
        for column in found["columns"]
        if found["completed"]
    ]
    write_table(("column", "before", "after", "difference [95 %]"), rows, empty="Nothing was scored.")
    say(
        f"{found['completed']} of {found['rollouts']} completed, {found['changed']} with another reward,"
        f" {found['diverged']} went another way"
    )
    for step, count in found["diverging_steps"].items():
        say(f"  first at {'the reset' if step == '0' else f'step {step}'}: {count}")
    say(f"{client.url}/runs/{run['id']}/before-after\n")


def _newly_failed(client: Client, found: dict[str, Any]) -> bool:
    """Failed here, though the original did not."""
    if not found["failed"] or not found["source_run_id"]:
        return bool(found["failed"])
    before = client.get(f"/runs/{found['source_run_id']}")["summary"].get("failed") or 0
    return bool(found["failed"] > before)
