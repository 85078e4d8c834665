"""`proctor rollouts …` and `proctor data sft`: rollouts as tables, transcripts and files, from and for other tools."""

import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backend.cli.connection import connect
from backend.cli.derived import Json, takes_request
from backend.cli.names import RunName, run_of
from backend.cli.output import (
    BAD_RESULT,
    OK,
    AsJson,
    NoWait,
    console,
    fail,
    group,
    say,
    write_fields,
    write_json,
    write_table,
)
from backend.cli.watching import progress_bars, watch
from backend.web.formats import short


class ListByDefault(TyperGroup):
    """`proctor rollouts RUN` is `proctor rollouts list RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = group(cls=ListByDefault, help="List a run's rollouts (`proctor rollouts RUN`), export them, import others.")
data_app = group(help="Training data from rollouts.")


@app.command("list")
@takes_request(
    "rollouts.list",
    *("where", "sort", "columns", "status", "phase", "step", "level", "min_reward", "max_reward", "text"),
)
def list_rollouts(
    run: RunName,
    request: Json,
    view: Annotated[str | None, typer.Option(help="Saved view: its filter and its order.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of rollouts.")] = False,
    fields: Annotated[
        bool, typer.Option("--fields", help="List the fields of filters and orders of this run.")
    ] = False,
    transcript: Annotated[bool, typer.Option("--transcript", help="Print the whole conversations.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List a run's rollouts that pass a filter, or print their transcripts."""
    client = connect()
    run_id = run_of(client, run)["id"]
    request["run_id"] = run_id
    if view:  # its filter combined with `where`, and its order unless `sort` is given
        views = list(client.pages("/views"))
        if not (saved := next((each for each in views if view in {each["name"], each["id"]}), None)):
            fail(f"there is no view {view!r}; choose from: {', '.join(each['name'] for each in views) or 'none'}")
        both = [part for part in (saved["filter"], request.get("where")) if part]
        request["where"] = " and ".join(f"({part})" for part in both) if len(both) > 1 else "".join(both) or None
        request["sort"] = request.get("sort") or saved["sort"] or None
    if fields:
        words = client.get(f"/runs/{run_id}/filter-words")
        if as_json:
            return write_json(words)
        rows = [
            (each["name"], " ".join(each["operators"]), each["help"], ", ".join(each["choices"]))
            for each in words["fields"]
        ]
        return write_table(("field", "operators", "description", "values"), rows, empty="No fields.")
    if count:
        counts = client.get("/rollouts/count", **request)
        return write_json(counts) if as_json else say(f"{counts['matching']:,} of {counts['total']:,} match")
    found = list(client.pages("/rollouts", limit=limit, **request))
    if transcript:
        found = [client.get(f"/rollouts/{rollout['id']}") for rollout in found]
    if as_json:
        write_json(found)
    elif transcript:
        for rollout in found:
            state = f"{rollout['stop_reason']}, reward {rollout['reward']}"
            console().rule(f"task {rollout['index']}, level {rollout['level']}: {state}")
            for message in rollout["messages"]:
                say(message["role"], "bold")
                say(str(message["content"]))
    elif "columns" in request and found:
        keys = list(found[0]["values"])
        rows = [(short(rollout["id"]), *(rollout["values"][key] for key in keys)) for rollout in found]
        write_table(("rollout", *keys), rows, empty="No rollout matches.")
    else:
        names = list(found[0]["columns"]) if found else []
        rows = [
            (
                *(rollout["seq"], short(rollout["id"]), rollout["index"], rollout["level"], rollout["status"]),
                *(rollout["stop_reason"] or rollout["error_kind"], rollout["reward"]),
                *(rollout["columns"].get(name) for name in names),
                *(rollout["turns"], rollout["excerpt"][:60].replace("\n", " ")),
            )
            for rollout in found
        ]
        columns = ("no.", "rollout", "task", "level", "status", "ended by", "reward", *names, "turns", "last reply")
        write_table(columns, rows, empty="No rollout matches.")


@app.command("import")
@takes_request("rollouts.import", "environment", "policy", "name", "split", "tasks")
def import_rollouts(
    file: Annotated[Path, typer.Argument(help="A file, a zip, or a folder that verifiers or datasets wrote.")],
    request: Json,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Import rollouts of verifiers 0.3 and 0.4, plain JSONL, Parquet, a datasets folder or another Proctor as a run.

    Rollouts with an error become failed ones without a reward. If a line is wrong, the file is refused with the number
    of the line and nothing is stored. `proctor run delete RUN` deletes an import. Exits with 1 if the import fails.
    """
    client = connect()
    with tempfile.TemporaryDirectory(prefix="proctor-import-") as folder:
        packed = file
        if file.is_dir():
            packed = Path(folder) / f"{file.resolve().name}.zip"
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(path for path in file.rglob("*") if path.is_file()):
                    archive.write(path, path.relative_to(file))
        elif not file.is_file():
            fail(f"there is no file or folder {file}")
        run = client.upload("/rollouts/import", {"file": packed}, request)
    if not no_wait:
        run = watch(client, run, quiet=as_json)
    is_completed = run["status"] == "completed"
    if as_json:
        write_json(run)
    elif not no_wait and not is_completed:
        say(f"{run['status']}: {run['reason']}", "red")
    elif not no_wait:
        source = run["configuration"]["source"]
        say(f"{source['rollouts']:,} rollouts of {source['tool']}, {source['failed']:,} of them failed")
        if zeros := source["failed_stored_as_zero"]:
            say(f"{zeros:,} failed rollouts had reward 0 in the file; here they have no reward")
        say(f"columns: {', '.join(run['columns'])}")
        say(f"{client.url}/runs/{run['id']}")
    raise typer.Exit(OK if no_wait or is_completed else BAD_RESULT)


@data_app.command("sft")
@takes_request(
    "training.preview_sft",
    *("best_of_group", "min_reward", "honest_only", "without_flags", "understood_only", "where", "heldout", "repeats"),
)
def sft(
    sources: Annotated[list[str], typer.Argument(metavar="RUN…", help="Runs: ids, the ends of them, or `last`.")],
    request: Json,
    kind: Annotated[str, typer.Option("--format", help="huggingface (a folder) or jsonl.")] = "huggingface",
    to: Annotated[Path | None, typer.Option("-o", "--output", help="The folder, or the file for jsonl.")] = None,
    mark: Annotated[bool, typer.Option("--mark", help="Mark them as demonstrations for the SFT warm-up.")] = False,
    as_json: AsJson = False,
) -> None:
    """Select conversations for SFT and write them for TRL: a `datasets` folder or chat JSONL, without repeats.

    Without -o it only prints the numbers. Exits with 1 if no conversation is selected.
    """
    if kind not in {"huggingface", "jsonl"}:
        fail(f"unknown format {kind!r}; choose huggingface or jsonl")
    client = connect()
    request["run"] = [run_of(client, run)["id"] for run in sources]
    found = client.get("/sft", **request)
    if mark:
        found["marked"] = client.post("/sft/demonstrations", request)["changed"]
    if to is not None and found["conversations"]:
        with progress_bars() as progress, tempfile.TemporaryDirectory(prefix="proctor-sft-") as folder:
            progress.add_task(f"writing {to.name}", total=None, rate="")
            if kind == "jsonl":
                target = to if to.suffix else to / "sft.jsonl"
                target.parent.mkdir(parents=True, exist_ok=True)
                to = client.download("/sft/file", target, **request, format=kind)
            else:
                packed = client.download("/sft/file", Path(folder) / "sft.zip", **request, format=kind)
                to.mkdir(parents=True, exist_ok=True)
                with zipfile.ZipFile(packed) as archive:
                    archive.extractall(to)
        found["output"] = str(to)
    if as_json:
        write_json(found)
    else:
        write_fields({key: value for key, value in found.items() if key not in {"samples", "is_whole"}})
    raise typer.Exit(OK if found["conversations"] else BAD_RESULT)
