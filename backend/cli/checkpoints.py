"""`proctor checkpoints …`: the tree of saved weights, what they take, marking them to be kept, pruning."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import policy_of, run_of, short
from backend.cli.options import AsJson
from backend.cli.output import fail, say, write_error, write_fields, write_json, write_table
from proctor import Client

app = typer.Typer(
    help="Saved weights: the tree over runs, disk use, keeping and pruning.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_SEARCHED = 500
_END = 4
"""Characters of an id's end that are enough to name it."""

CheckpointName = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's id or the end of it.")]


@app.command("list")
def list_checkpoints(
    environment: Annotated[str | None, typer.Option(help="Only runs on this environment.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only of this policy: its name or id.")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run, those it comes from and those from it.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most so many runs.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Checkpoints as a tree over runs, with what they take on disk."""
    client = connect()
    wanted = {
        "environment": environment,
        "policy_id": policy_of(client, policy)["id"] if policy else None,
        "run_id": run_of(client, run)["id"] if run else None,
    }
    trees = list(client.pages("/checkpoints/tree", limit=limit, **wanted))
    disk = client.get("/checkpoints/disk", run_id=wanted["run_id"])
    if as_json:
        write_json({"trees": trees, "disk": disk})
        return
    rows = [row for tree in trees for row in _rows(tree, 0)]
    columns = ("checkpoint", "id", "held-out reward [95 %]", "size", "kept by", "")
    write_table(columns, rows, empty="No checkpoint yet.")
    _say_disk(disk)


def _rows(branch: dict[str, Any], depth: int) -> list[tuple[str, ...]]:
    indent = "   " * depth
    start = f", from {branch['origin']['stage']} {branch['origin']['step']}" if branch["origin"] else ""
    head = f"{indent}{branch['name']} ({branch['environment']}@{branch['version']}, {branch['status']}{start})"
    rows: list[tuple[str, ...]] = [(head, short(branch["run_id"]), "", _size(branch["stored_bytes"]), "", "")]
    for leaf in branch["checkpoints"]:
        kept = "pruned" if leaf["pruned_at"] else ", ".join(leaf["kept_by"]) or "nothing"
        size = "–" if leaf["pruned_at"] else _size(leaf["size_bytes"])
        name = f"{indent}  {leaf['stage']} {leaf['step']}"
        rows.append((name, short(leaf["id"]), _reward(leaf), size, kept, leaf["why_best"]))
        for below in leaf["branches"]:
            rows += _rows(below, depth + 1)
    return rows


@app.command("show")
def show(checkpoint: CheckpointName, as_json: AsJson = False) -> None:
    """One checkpoint: what it reached, why it is kept, what it takes."""
    _tell(_checkpoint(connect(), checkpoint), as_json=as_json)


@app.command("keep")
def keep(
    checkpoint: CheckpointName,
    release: Annotated[bool, typer.Option("--release", help="Take the mark away: its run's rule decides.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mark a checkpoint to be kept, whatever the rule says."""
    client = connect()
    found = _checkpoint(client, checkpoint)
    _tell(client.post(f"/checkpoints/{found['id']}/{'release' if release else 'keep'}"), as_json=as_json)


@app.command("prune")
def prune(
    checkpoints: Annotated[
        list[str] | None, typer.Argument(metavar="[CHECKPOINT]…", help="These ones; left out: what the rules let go.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run's.")] = None,
    keep_last: Annotated[int | None, typer.Option(min=0, help="Another rule: keep the newest so many.")] = None,
    keep_every: Annotated[int | None, typer.Option(min=0, help="And one of every so many steps.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete weights; rows and figures stay. Shows what would be freed and asks, unless told --yes.

    A training run does the same by itself after each examination, by its own rule (checkpoints.keep_last and
    checkpoints.keep_every) and without asking. The best, the untrained and the warmed-up checkpoints of a run are kept
    by every rule; what is marked, exported, evaluated, studied or trained on from is never deleted. Ends with 1 when a
    checkpoint that was named is held by something.
    """
    client = connect()
    asked: dict[str, Any] = {"keep_last": keep_last, "keep_every": keep_every}
    asked["checkpoint_ids"] = [_checkpoint(client, each)["id"] for each in checkpoints or ()]
    asked["run_id"] = run_of(client, run)["id"] if run else None
    plan = client.post("/checkpoints/prune", asked | {"dry_run": True})
    if dry_run or not plan["pruned"]:
        _tell_plan(plan, as_json=as_json)
    else:
        if not yes:
            _ask(plan, as_json=as_json)
        plan = client.post("/checkpoints/prune", asked)
        _tell_plan(plan, as_json=as_json)
    if plan["refused"]:
        raise typer.Exit(1)


def _ask(plan: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        fail("deleting needs --yes where nobody can be asked; --dry-run shows what would go")
    _tell_plan(plan, as_json=False)
    if not typer.confirm("Delete these weights?"):
        raise typer.Exit(1)


def _tell_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(plan)
        return
    rows = [
        (f"{each['policy']} {each['stage']} {each['step']}", short(each["id"]), _size(each["size_bytes"]))
        for each in plan["pruned"]
    ]
    write_table(("checkpoint", "id", "size"), rows, empty="Nothing to prune: every checkpoint has a reason to stay.")
    for each in plan["refused"]:
        write_error(f"{each['policy']} {each['stage']} {each['step']} stays: {', '.join(each['kept_by'])}")
    if rows:
        say(f"{_size(plan['freed_bytes'])} {'would be freed' if plan['dry_run'] else 'freed'}")


def _tell(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(found)
        return
    write_fields(
        {
            "checkpoint": f"{found['policy']} {found['stage']} {found['step']}"
            + (" (best)" if found["is_best"] else ""),
            "id": found["id"],
            "run": found["run_id"],
            "held-out reward": _reward(found),
            "size": _size(found["size_bytes"]) + (f", pruned {found['pruned_at'][:16]}" if found["pruned_at"] else ""),
            "kept by": ", ".join(found["kept_by"]) or "nothing: its run's rule lets it go",
        }
    )


def _say_disk(disk: dict[str, Any]) -> None:
    say(f"{disk['checkpoints']:,} checkpoints with weights, {_size(disk['stored_bytes'])}", "dim")
    if disk["warning"]:
        write_error(disk["warning"])


def _checkpoint(client: Client, text: str) -> dict[str, Any]:
    for found in client.pages("/checkpoints", limit=_SEARCHED):
        if len(text) >= _END and found["id"].replace("-", "").endswith(text.replace("-", "")):
            return found
    fail(f"there is no checkpoint {text!r}; `proctor checkpoints list` shows them")


def _reward(found: dict[str, Any]) -> str:
    if found["heldout_reward"] is None:
        return "–"
    interval = found["heldout_interval"]
    return f"{found['heldout_reward']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
