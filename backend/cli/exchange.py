"""`proctor rollouts import`, `proctor run delete` and `proctor data sft`: rollouts from and for other tools."""

import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backend.cli import runs
from backend.cli.connection import connect
from backend.cli.derived import Json
from backend.cli.names import run_of
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, OK, fail, say, write_fields, write_json
from backend.cli.watching import progress_bars, watch
from proctor import Client


class ListByDefault(TyperGroup):
    """`proctor rollouts RUN` is `proctor rollouts list RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


rollouts_app = typer.Typer(
    cls=ListByDefault,
    help="List a run's rollouts (`proctor rollouts RUN`), export them, import others.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Training data from rollouts.", no_args_is_help=True, rich_markup_mode=None)


@rollouts_app.command("import")
def import_rollouts(
    file: Annotated[Path, typer.Argument(help="A file, a zip, or a folder that verifiers or datasets wrote.")],
    environment: Annotated[
        str, typer.Option(help="Environment as `name` or `name@version`. Default: the one in the file.")
    ] = "",
    policy: Annotated[str, typer.Option(help="Policy. Default: the model that the file names.")] = "",
    name: Annotated[str, typer.Option(help="Name of the run. Default: from the policy and the file.")] = "",
    split: Annotated[str, typer.Option(help="Split of tasks that do not name theirs: heldout or train.")] = "heldout",
    tasks: Annotated[
        str,
        typer.Option(help="shared: task numbers are those of the environment; foreign: they are not; auto."),
    ] = "auto",
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Import rollouts of verifiers 0.3 and 0.4, plain JSONL, Parquet, a datasets folder or another Proctor as a run.

    Rollouts with an error become failed ones without a reward. If a line is wrong, the file is refused with the number
    of the line and nothing is stored. `proctor run delete RUN` deletes an import. Exits with 1 if the import fails.
    """
    client = connect()
    fields = {"environment": environment, "policy": policy, "name": name, "split": split, "tasks": tasks}
    with tempfile.TemporaryDirectory(prefix="proctor-import-") as folder:
        packed = file
        if file.is_dir():
            packed = Path(folder) / f"{file.resolve().name}.zip"
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(path for path in file.rglob("*") if path.is_file()):
                    archive.write(path, path.relative_to(file))
        elif not file.is_file():
            fail(f"there is no file or folder {file}")
        run = client.upload("/rollouts/import", {"file": packed}, {key: value or None for key, value in fields.items()})
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


@runs.app.command("delete")
def delete_run(run: RunName, as_json: AsJson = False) -> None:
    """Delete an imported run with all its rollouts. Runs that were played here are kept."""
    client = connect()
    found = run_of(client, run)
    client.delete(f"/runs/{found['id']}")
    if as_json:
        write_json({"deleted": found["id"]})
    else:
        say(f"Deleted {found['name']}.")


@data_app.command("sft")
def sft(
    sources: Annotated[list[str], typer.Argument(metavar="RUN…", help="Runs: ids, the ends of them, or `last`.")],
    best_of_group: Annotated[bool, typer.Option("--best-of-group", help="The best rollout of each group.")] = False,
    min_reward: Annotated[float | None, typer.Option(help="Minimum reward.")] = None,
    honest_only: Annotated[bool, typer.Option("--honest-only", help="Only rollouts with the verdict honest.")] = False,
    without_flags: Annotated[
        bool, typer.Option("--without-flags", help="Only rollouts that no detector flagged.")
    ] = False,
    understood_only: Annotated[
        bool, typer.Option("--understood-only", help="Only conversations whose every reply could be parsed.")
    ] = False,
    where: Annotated[str, typer.Option(help="Filter on the rollouts, such as 'tokens > 200'. Default: all.")] = "",
    heldout: Annotated[bool, typer.Option("--heldout", help="Include held-out tasks.")] = False,
    repeats: Annotated[bool, typer.Option("--repeats", help="Keep repeated conversations.")] = False,
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
    query: Json = {
        "run": [run_of(client, run)["id"] for run in sources],
        "best_of_group": best_of_group or None,
        "min_reward": min_reward,
        "honest_only": honest_only or None,
        "without_flags": without_flags or None,
        "understood_only": understood_only or None,
        "where": where or None,
        "heldout": heldout or None,
        "repeats": repeats or None,
    }
    found = client.get("/sft", **query)
    if mark:
        body = {key: value for key, value in query.items() if value is not None}
        found["marked"] = client.post("/sft/demonstrations", body)["changed"]
    if to is not None and found["conversations"]:
        found["output"] = str(_write_sft(client, kind, to, query))
    if as_json:
        write_json(found)
    else:
        write_fields({key: value for key, value in found.items() if key not in {"samples", "is_whole"}})
    raise typer.Exit(OK if found["conversations"] else BAD_RESULT)


def _write_sft(client: Client, kind: str, to: Path, query: Json) -> Path:
    """Download the training data; the folder of `datasets` is unpacked."""
    with progress_bars() as progress, tempfile.TemporaryDirectory(prefix="proctor-sft-") as folder:
        progress.add_task(f"writing {to.name}", total=None, rate="")
        if kind == "jsonl":
            target = to if to.suffix else to / "sft.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            return client.download("/sft/file", target, **query, format=kind)
        packed = client.download("/sft/file", Path(folder) / "sft.zip", **query, format=kind)
        to.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(to)
    return to
