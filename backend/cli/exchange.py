"""`proctor rollouts export|import` and `proctor data sft`: rollouts on their way to and from other tools."""

import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.options import AsJson, NoWait, RunName
from backend.cli.output import BAD_RESULT, OK, fail, say, write_fields, write_json
from backend.cli.watching import progress_bars, watch
from proctor import Client

ENDINGS = {
    "jsonl": ".jsonl",
    "parquet": ".parquet",
    "huggingface": ".zip",
    "verifiers_v0": ".zip",
    "verifiers_v1": ".jsonl",
    "inspect": ".eval",
}
Where = Annotated[str, typer.Option(help="Only rollouts that pass this filter, e.g. 'has flag and tokens > 200'.")]


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


@rollouts_app.command("export")
def export_rollouts(
    run: RunName,
    kind: Annotated[str, typer.Option("--format", help=f"{', '.join(ENDINGS)}.")] = "jsonl",
    where: Where = "",
    to: Annotated[Path | None, typer.Option("-o", "--output", help="The file; left out: named after the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's rollouts to a file for other tools: JSONL, Parquet, Hugging Face, verifiers 0.3 and 0.4, Inspect.

    huggingface and verifiers_v0 are folders, zipped. A failed rollout stays failed in every format.
    """
    if kind not in ENDINGS:
        fail(f"no format is called {kind!r}: {', '.join(ENDINGS)}")
    client = connect()
    found = run_of(client, run)
    target = to or Path(f"rollouts-{short(found['id'])}{ENDINGS[kind]}")
    size = _download(client, f"/runs/{found['id']}/export", target, format=kind, where=where or None)
    if as_json:
        write_json({"run": found["id"], "format": kind, "file": str(target), "bytes": size})
    else:
        say(f"{target} ({size / 1e6:.1f} MB)")


@rollouts_app.command("import")
def import_rollouts(
    file: Annotated[Path, typer.Argument(help="A file, a zip, or a folder that verifiers or datasets wrote.")],
    environment: Annotated[
        str, typer.Option(help="What was played: `name` or `name@version`; left out: what the file names.")
    ] = "",
    policy: Annotated[str, typer.Option(help="Who played; left out: the model that the file names.")] = "",
    name: Annotated[str, typer.Option(help="Of the run.")] = "",
    split: Annotated[str, typer.Option(help="Of tasks that do not say theirs: heldout or train.")] = "heldout",
    tasks: Annotated[
        str,
        typer.Option(help="shared: its task numbers are the environment's own; foreign: they are not; auto."),
    ] = "auto",
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Bring in rollouts of verifiers 0.3 and 0.4, plain JSONL, Parquet, a datasets folder or another Proctor.

    They become a run, whose rollouts with an error are failed ones without a reward. A file with anything wrong in
    it is refused with the line, and nothing is stored. `proctor run delete RUN` takes an import back. Ends with 1
    when the import fails.
    """
    client = connect()
    wishes = {"environment": environment, "policy": policy, "name": name, "split": split, "tasks": tasks}
    with tempfile.TemporaryDirectory(prefix="proctor-import-") as folder:
        sent = _packed(file, Path(folder))
        run = client.upload("/rollouts/import", {"file": sent}, {key: value or None for key, value in wishes.items()})
    if not no_wait:
        run = watch(client, run, quiet=as_json)
    if as_json:
        write_json(run)
    elif not no_wait:
        _tell(run, client.url)
    raise typer.Exit(OK if no_wait or run["status"] == "completed" else BAD_RESULT)


def delete_run(run: RunName, as_json: AsJson = False) -> None:
    """Take an imported run away with all its rollouts. What was played here is kept."""
    client = connect()
    found = run_of(client, run)
    client.delete(f"/runs/{found['id']}")
    if as_json:
        write_json({"deleted": found["id"]})
    else:
        say(f"{found['name']} is deleted")


@data_app.command("sft")
def sft(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Runs: ids, the ends of them, or `last`.")],
    best_of_group: Annotated[bool, typer.Option("--best-of-group", help="Of each group the best rollout.")] = False,
    min_reward: Annotated[float | None, typer.Option(help="At least this reward.")] = None,
    honest_only: Annotated[bool, typer.Option("--honest-only", help="Only what a person judged honest.")] = False,
    without_flags: Annotated[bool, typer.Option("--without-flags", help="Only what no detector flagged.")] = False,
    understood_only: Annotated[
        bool, typer.Option("--understood-only", help="Only conversations whose every reply was understood.")
    ] = False,
    where: Where = "",
    heldout: Annotated[bool, typer.Option("--heldout", help="Held-out tasks too, which nothing should learn.")] = False,
    repeats: Annotated[bool, typer.Option("--repeats", help="Keep repeated conversations.")] = False,
    kind: Annotated[str, typer.Option("--format", help="huggingface (a folder) or jsonl.")] = "huggingface",
    to: Annotated[Path | None, typer.Option("-o", "--output", help="The folder, or the file of jsonl.")] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Mark them as demonstrations that the SFT warm-up here may learn from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Conversations worth imitating, ready for TRL: a folder of `datasets` or chat JSONL, each conversation once.

    Without -o it only says what the filter gives. Ends with 1 when it gives nothing.
    """
    client = connect()
    wanted: dict[str, Any] = {
        "run": [run_of(client, run)["id"] for run in runs],
        "best_of_group": best_of_group or None,
        "min_reward": min_reward,
        "honest_only": honest_only or None,
        "without_flags": without_flags or None,
        "understood_only": understood_only or None,
        "where": where or None,
        "heldout": heldout or None,
        "repeats": repeats or None,
    }
    found = client.get("/sft", **wanted)
    if mark:
        body = {key: value for key, value in wanted.items() if value is not None}
        found["marked"] = client.post("/sft/demonstrations", body)["changed"]
    if to is not None and found["conversations"]:
        found["output"] = str(_write_sft(client, kind, to, wanted))
    if as_json:
        write_json(found)
    else:
        write_fields({key: value for key, value in found.items() if key not in {"samples", "is_whole"}})
    raise typer.Exit(OK if found["conversations"] else BAD_RESULT)


def _write_sft(client: Client, kind: str, to: Path, wanted: dict[str, Any]) -> Path:
    if kind == "jsonl":
        target = to if to.suffix else to / "sft.jsonl"
        _download(client, "/sft/file", target, **wanted, format="jsonl")
        return target
    if kind != "huggingface":
        fail(f"no format is called {kind!r}: huggingface, jsonl")
    with tempfile.TemporaryDirectory(prefix="proctor-sft-") as folder:
        packed = Path(folder) / "sft.zip"
        _download(client, "/sft/file", packed, **wanted, format="huggingface")
        to.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(to)
    return to


def _download(client: Client, path: str, target: Path, **query: object) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    with progress_bars() as progress:
        progress.add_task(f"writing {target.name}", total=None, rate="")
        return client.download(path, target, **query).stat().st_size


def _packed(source: Path, folder: Path) -> Path:
    """A folder as a zip."""
    if source.is_file():
        return source
    if not source.is_dir():
        fail(f"there is no file or folder {source}")
    packed = folder / f"{source.resolve().name}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            archive.write(path, path.relative_to(source))
    return packed


def _tell(run: dict[str, Any], url: str) -> None:
    source = run["configuration"]["source"]
    if run["status"] != "completed":
        say(f"{run['status']}: {run['reason']}", "red")
        return
    say(f"{source['rollouts']:,} rollouts of {source['tool']}, {source['failed']:,} of them failed")
    if source["failed_stored_as_zero"]:
        say(f"{source['failed_stored_as_zero']:,} failed ones were stored there as reward 0; here they have no reward")
    say(f"columns: {', '.join(run['columns'])}")
    say(f"{url}/runs/{run['id']}")
