"""`proctor detectors …`: how each does by people's verdicts, and how it is set for an environment."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.options import AsJson
from backend.cli.output import BAD_RESULT, fail, say, write_fields, write_json, write_table
from backend.domain.detectors.spec import SUSPICION, Action

app = typer.Typer(help="Detectors of reward hacking. Alone: list them.", rich_markup_mode=None)

Environment = Annotated[str, typer.Option(help="Only of this environment.")]
Detector = Annotated[str, typer.Argument(metavar="DETECTOR", help="Its id, such as `paid_exit`.")]


@app.callback(invoke_without_command=True)
def detectors(context: typer.Context, environment: Environment = "", as_json: AsJson = False) -> None:
    """Detectors with their flags, precision by people's verdicts, and the least recall by the blind sample.

    Questions whose answers raise flags stand among them as `question:NAME`.
    """
    if context.invoked_subcommand:
        return
    found = list(connect().pages("/detectors", environment=environment or None))
    if as_json:
        write_json(found)
        return
    rows = [(each["id"], *_figures(each["record"], each["recall_at_least"])) for each in found]
    head = ("detector", "flags", "open", "reviewed", "precision, 95 %", "recall at least")
    write_table(head, rows, empty="There are no detectors.")


@app.command()
def show(detector: Detector, environment: Environment = "", as_json: AsJson = False) -> None:
    """All about one: how it looks, its thresholds, its record by environment, and the cut-off that is suggested."""
    found = connect().get(f"/detectors/{detector}", environment=environment or None)
    if as_json:
        write_json(found)
        return
    suggested = found["suggested"]
    write_fields(
        {
            "detector": found["title"],
            "looks for": found["description"],
            "formula": found["formula"],
            "source": found["source"],
            "needs": ", ".join(found["needs"]) or "nothing more",
            "cost": found["cost"],
            "thresholds": _thresholds(found["thresholds"]),
            "by default": found["action"].replace("_", " "),
            "suggested": f"{SUSPICION} from {suggested['score']:.4g}: {suggested['caught']} caught, "
            f"{suggested['cost']} honest ones flagged"
            if suggested
            else "nothing",
        }
    )
    for name, force in found["settings"].items():
        state = "on" if force["enabled"] else "off"
        say(f"set for {name}: {state}, {force['action'].replace('_', ' ')}, {_thresholds(force['thresholds'])}")
    say("")
    rows = [(name, *_figures(each, each["recall_at_least"])) for name, each in found["by_environment"].items()]
    head = ("environment", "flags", "open", "reviewed", "precision, 95 %", "recall at least")
    write_table(head, rows, empty="It has flagged nothing.")


@app.command("set")
def set_(
    detector: Detector,
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="An environment's name.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=NUMBER]...", help="Thresholds; `name=` is the default again.")
    ] = None,
    is_on: Annotated[bool | None, typer.Option("--on/--off", help="Whether it looks at all.")] = None,
    action: Annotated[Action | None, typer.Option(help="What its flags lead to while a run trains.")] = None,
    suggested: Annotated[
        bool, typer.Option("--suggested", help="Tell flags from the suggested suspicion on only.")
    ] = False,
    default: Annotated[bool, typer.Option("--default", help="Forget all that is set for the environment.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set a detector for an environment; what is not named stays as it was set.

    A run has thresholds of its own: `proctor train --set detectors.thresholds=…`, `proctor run set RUN
    detectors.thresholds=…` while it trains, `proctor run detect RUN --threshold …` for a stored one.
    """
    client = connect()
    path = f"/detectors/{detector}/settings/{environment}"
    if default:
        force = client.put(path, {})
    else:
        thresholds = _read(pairs or [])
        if suggested:
            thresholds[SUSPICION] = _suggested(client.get(f"/detectors/{detector}", environment=environment))
        told = {"enabled": is_on, "action": action}
        changes: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
        if not changes and not thresholds:
            fail("say what to set: thresholds as name=number, --on, --off, --action, --suggested or --default")
        force = client.request("PATCH", path, body={**changes, "thresholds": thresholds})
    if as_json:
        write_json(force)
        return
    state = "on" if force["enabled"] else "off"
    say(
        f"{detector} in {environment}: {state}, {force['action'].replace('_', ' ')}, {_thresholds(force['thresholds'])}"
    )


def _read(pairs: list[str]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            found[name] = float(value) if value else None
        except ValueError:
            fail(f"{pair}: write the threshold as name=number, e.g. {SUSPICION}=0.7")
        if not equals or not name:
            fail(f"{pair}: write it as name=number, e.g. {SUSPICION}=0.7")
    return found


def _suggested(found: dict[str, Any]) -> float:
    if found["suggested"] is None:
        fail("nothing is suggested: it takes more reviewed flags, and a cut-off that is precise enough", BAD_RESULT)
    return float(found["suggested"]["score"])


def _figures(record: dict[str, Any], recall: float | None) -> tuple[object, ...]:
    share = record["precision"]
    precision = f"{share['value']:.0%} ({share['low']:.0%} to {share['high']:.0%})" if share["looked_at"] else "–"
    return record["flags"], record["open"], record["reviewed"], precision, "–" if recall is None else f"{recall:.0%}"


def _thresholds(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in found.items())
