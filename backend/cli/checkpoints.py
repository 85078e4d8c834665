"""`proctor checkpoints …`: how the tree and a checkpoint are shown, and `prune`, which asks for confirmation."""

from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, renders, takes_request
from backend.cli.names import run_of
from backend.cli.output import BAD_RESULT, AsJson, fail, group, say, write_error, write_fields, write_json, write_table
from backend.cli.views import estimate
from backend.web.formats import short

app = group(help="Saved weights: show the tree over runs and disk usage, keep and prune checkpoints.")


@app.command("prune")
@takes_request("checkpoints.prune", "keep_last", "keep_every", "dry_run")
def prune(
    request: Json,
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHECKPOINT]…", help="Checkpoints to prune. Default: all that no retention rule keeps."
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only checkpoints of this run.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete weights; rows and results stay. Shows what would be deleted and asks for confirmation.

    A training run prunes automatically after each held-out evaluation, by its own retention rule
    (checkpoints.keep_last and checkpoints.keep_every). Every rule keeps the best, the untrained and the warm-up
    checkpoint of a run. Checkpoints that are marked, exported, evaluated, studied or used to start another run are
    never deleted. Exits with 1 if a selected checkpoint is in use.
    """
    client = connect()
    request["checkpoint_ids"] = [client.get(f"/checkpoints/{each}")["id"] for each in checkpoints or ()]
    request["run_id"] = run_of(client, run)["id"] if run else None
    plan = client.post("/checkpoints/prune", request | {"dry_run": True})
    if plan["pruned"] and not request.get("dry_run"):
        if not yes:
            if as_json:
                fail("--json needs --yes to delete weights; --dry-run shows what would be deleted")
            _write_plan(plan)
            if not typer.confirm("Delete these weights?"):
                raise typer.Exit(BAD_RESULT)
        plan = client.post("/checkpoints/prune", request)
    (write_json if as_json else _write_plan)(plan)
    if plan["refused"]:
        raise typer.Exit(BAD_RESULT)


def _write_plan(plan: Json) -> None:
    rows = [(_name(each), short(each["id"]), _size(each["size_bytes"])) for each in plan["pruned"]]
    write_table(("checkpoint", "id", "size"), rows, empty="Nothing to prune: every checkpoint is in use or kept.")
    for each in plan["refused"]:
        write_error(f"{_name(each)} is kept: {', '.join(each['kept_by'])}")
    if rows:
        say(f"{_size(plan['freed_bytes'])} {'would be freed' if plan['dry_run'] else 'freed'}")


@renders("checkpoints.get_tree")
def _write_tree(found: Json) -> None:
    columns = ("checkpoint", "id", "held-out reward [95% CI]", "size", "kept by", "")
    write_table(columns, [row for tree in found["trees"] for row in _rows(tree, 0)], empty="No checkpoints yet.")
    disk = found["disk"]
    say(f"{disk['checkpoints']:,} checkpoints with weights, {_size(disk['stored_bytes'])}", "dim")
    if disk["warning"]:
        write_error(disk["warning"])


def _rows(run: Json, depth: int) -> list[tuple[str, ...]]:
    indent = "   " * depth
    start = f", from {run['origin']['stage']} {run['origin']['step']}" if run["origin"] else ""
    head = f"{indent}{run['name']} ({run['environment']}@{run['version']}, {run['status']}{start})"
    rows: list[tuple[str, ...]] = [(head, short(run["run_id"]), "", _size(run["stored_bytes"]), "", "")]
    for each in run["checkpoints"]:
        kept = "pruned" if each["pruned_at"] else ", ".join(each["kept_by"]) or "nothing"
        size = "–" if each["pruned_at"] else _size(each["size_bytes"])
        name = f"{indent}  {each['stage']} {each['step']}"
        rows.append((name, short(each["id"]), _reward(each), size, kept, each["why_best"]))
        for branch in each["branches"]:
            rows += _rows(branch, depth + 1)
    return rows


@renders("checkpoints.get")
@renders("checkpoints.keep")
def _write_checkpoint(found: Json) -> None:
    best = " (best)" if found["is_best"] else ""
    write_fields(
        {
            "checkpoint": f"{_name(found)}{best}",
            "id": found["id"],
            "run": found["run_id"],
            "held-out reward": _reward(found),
            "size": _size(found["size_bytes"]) + (f", pruned {found['pruned_at'][:16]}" if found["pruned_at"] else ""),
            "kept by": ", ".join(found["kept_by"]) or "nothing: the retention rule of its run may delete it",
        }
    )


def _name(found: Json) -> str:
    return f"{found['policy']} {found['stage']} {found['step']}"


def _reward(found: Json) -> str:
    low, high = found["heldout_interval"] or (None, None)
    return estimate({"mean": found["heldout_reward"], "low": low, "high": high})


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
