"""Runs, their figures, rollouts and transcripts in a terminal."""

from typing import Any

from backend.cli.derived import Json, renders
from backend.cli.output import write_fields, write_table
from backend.web.formats import short, usd


def estimate(figure: dict[str, Any] | float | None, scale: float = 1, form: str = ".3f", unit: str = "") -> str:
    """Format a mean with its 95% interval, where there is one; a single episode has a plain number."""
    known: dict[str, Any] = figure if isinstance(figure, dict) else {"mean": figure}
    mean, low, high = (known.get(name) for name in ("mean", "low", "high"))
    if mean is None:
        return "–"
    shown = f"{scale * mean:{form}}{unit}"
    return shown if low is None or high is None else f"{shown} [{scale * low:{form}}, {scale * high:{form}}]"


def percent(figure: dict[str, Any] | float | None) -> str:
    """Format a rate like `estimate`."""
    return estimate(figure, 100, ".1f", "%")


def write_run(run: Json, url: str, found: Json) -> None:
    """Show a run with its figures."""
    reward, *columns = found["columns"]
    success, spent, groups, coverage = found["success"], found["spent"], found["groups"], found["coverage"]
    fields: dict[str, object] = {
        "run": f"{run['name']} ({run['kind']})",
        "page": f"{url}/runs/{run['id']}",
        "status": run["status"] + (f": {run['reason']}" if run["reason"] else ""),
        "environment": f"{run['environment']}@{run['version']}",
        "policy": run["policy"],
        "completed": f"{coverage['completed']:,} of {coverage['total']:,} completed" if coverage else "–",
        "reward": estimate(reward),
        **{f"  {column['name']}": estimate(column) for column in columns},
        f"success ({success['where']})": percent(success["rate"]),
    }
    if match := run["summary"].get("match"):
        against = match["opponent"] or "the environment's script"
        fields[f"score against {against}"] = percent(match["score"])
        for each in match["seats"]:
            fields[f"  as {each['seat']}"] = f"{each['wins']:,} won, {each['draws']:,} drawn, {each['losses']:,} lost"
    if scale := found["scale"]:
        span = f"0 at the floor of {scale['floor']:g}, 1 at gold, {scale['gold']:g}"
        fields["normalized score"] = f"{estimate(found['normalized'])} ({span})"
    for place in found["environments"]:
        fields[f"  normalized in {place['name']}"] = estimate(place["normalized"])
    if len(found["passes"]) > 1:
        for at in found["passes"]:
            fields[f"  k = {at['k']}"] = f"pass@k {percent(at['pass_at_k'])}, pass^k {percent(at['pass_hat_k'])}"
    if cheating := found["cheat_rate"]:
        passed = f"{cheating['passed']:,} of {cheating['played']:,} impossible tasks passed"
        fields["cheat rate"] = f"{passed}, {percent({**cheating, 'mean': cheating['rate']})}"
    for place in found["environments"]:
        if cheating := place["cheat_rate"]:
            fields[f"  in {place['name']}"] = f"{cheating['passed']:,} of {cheating['played']:,} passed"
    if groups:
        parts = ", ".join(f"{groups[kind]:,} {kind.replace('_', ' ')}" for kind in ("mixed", "all_good", "all_bad"))
        fields["groups"] = f"{groups['groups']:,}: {parts}"
    fields["tokens"] = f"{spent['tokens_in']:,} in, {spent['tokens_out']:,} out"
    fields["cost"] = usd(spent["cost"])
    fields["ended by"] = ", ".join(f"{reason} {count:,}" for reason, count in found["stop_reasons"].items())
    for failure in found["failures"]:
        fields[f"failed, {failure['kind']}"] = f"{failure['count']:,} × {failure['message']}"
    fields["rollouts_per_second"] = run["summary"].get("rollouts_per_second")
    write_fields(fields)


@renders("runs.list")
def write_runs(runs: list[Json]) -> None:
    rows = []
    for run in runs:
        found, progress = run.get("coverage") or {}, run["progress"]
        done, total = found.get("completed", progress.get("done")) or 0, found.get("total", progress.get("total"))
        rows.append(
            (
                *(short(run["id"]), run["kind"], run["status"], run["name"]),
                *(f"{run['environment']}@{run['version']}", run["policy"], estimate(run["summary"].get("reward"))),
                *(f"{done:,}/{total:,}" if total or found else "–", usd(run["summary"].get("cost"))),
                str(run["created_at"])[:16].replace("T", " "),
            )
        )
    columns = (
        *("run", "kind", "status", "name", "environment", "policy", "reward [95%]", "completed", "cost"),
        "started (UTC)",
    )
    write_table(columns, rows, empty="No runs yet.")
