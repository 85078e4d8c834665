"""How runs, rollouts and comparisons look in a terminal."""

from typing import Any

from backend.cli.names import short
from backend.cli.output import console, write_fields, write_table


def estimate(figure: dict[str, Any] | None) -> str:
    """A mean with its 95 % interval."""
    if figure is None or figure.get("mean") is None:
        return "–"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def write_runs(runs: list[dict[str, Any]]) -> None:
    rows = [
        (
            *(short(run["id"]), run["kind"], run["status"], run["name"]),
            *(f"{run['environment']}@{run['version']}", run["policy"], estimate(run["summary"].get("reward"))),
            str(run["created_at"])[:16].replace("T", " "),
        )
        for run in runs
    ]
    columns = ("run", "kind", "status", "name", "environment", "policy", "reward [95 %]", "started (UTC)")
    write_table(columns, rows, empty="No run yet.")


def write_run(run: dict[str, Any], url: str) -> None:
    summary = run["summary"]
    write_fields(
        {
            "run": f"{run['name']} ({run['kind']})",
            "page": f"{url}/runs/{run['id']}",
            "status": run["status"] + (f": {run['reason']}" if run["reason"] else ""),
            "environment": f"{run['environment']}@{run['version']}",
            "policy": run["policy"],
            **({"reward": estimate(summary["reward"])} if isinstance(summary.get("reward"), dict) else {}),
            **{
                f"  {name}": estimate(figure)
                for name, figure in (summary.get("columns") or {}).items()
                if isinstance(figure, dict)
            },
            **{name: summary[name] for name in ("rollouts", "failed", "rollouts_per_second") if name in summary},
        }
    )


def write_rollouts(rollouts: list[dict[str, Any]]) -> None:
    names = list(rollouts[0]["columns"]) if rollouts else []
    rows = [
        (
            *(rollout["seq"], short(rollout["id"]), rollout["index"], rollout["level"], rollout["status"]),
            *(rollout["stop_reason"] or rollout["error_kind"], rollout["reward"]),
            *(rollout["columns"].get(name) for name in names),
            *(rollout["turns"], rollout["excerpt"][:60].replace("\n", " ")),
        )
        for rollout in rollouts
    ]
    columns = ("no.", "rollout", "task", "level", "status", "ended by", "reward", *names, "turns", "last words")
    write_table(columns, rows, empty="No rollout fits.")


def write_transcript(rollout: dict[str, Any]) -> None:
    shown = console()
    title = f"task {rollout['index']}, level {rollout['level']}: {rollout['stop_reason']}, reward {rollout['reward']}"
    shown.rule(title)
    for message in rollout["messages"]:
        shown.print(message["role"], style="bold", markup=False)
        shown.print(str(message["content"]), markup=False)


def write_comparison(found: dict[str, Any]) -> None:
    rows = [
        (column["name"], *(estimate(column[side]) for side in ("before", "after", "difference")))
        for column in found["columns"]
    ]
    before, after = found["before"]["name"], found["after"]["name"]
    write_table(("", f"before: {before}", f"after: {after}", "difference [95 %]"), rows, empty="Nothing to compare.")
    shown = console()
    shown.print(f"\nbetter on {found['wins']} tasks, worse on {found['losses']}, the same on {found['ties']}")
    for baseline in found["baselines"]:
        shown.print(f"baseline {baseline['script']}: {estimate(baseline['reward'])}", markup=False)
