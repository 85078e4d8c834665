"""Runs, rollouts and transcripts in a terminal."""

from backend.cli.derived import Json, renders
from backend.cli.figures import dollars, estimate, figure_fields
from backend.cli.names import short
from backend.cli.output import console, write_fields, write_table


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
                *(f"{done:,}/{total:,}" if total or found else "–", dollars(run["summary"].get("cost"))),
                str(run["created_at"])[:16].replace("T", " "),
            )
        )
    columns = (
        *("run", "kind", "status", "name", "environment", "policy", "reward [95%]", "completed", "cost"),
        "started (UTC)",
    )
    write_table(columns, rows, empty="No runs yet.")


def write_run(run: Json, url: str, figures: Json | None = None) -> None:
    """Show a run with its figures if the caller has read them, otherwise with its summary."""
    summary = run["summary"] if figures is None else {"rollouts_per_second": run["summary"].get("rollouts_per_second")}
    write_fields(
        {
            "run": f"{run['name']} ({run['kind']})",
            "page": f"{url}/runs/{run['id']}",
            "status": run["status"] + (f": {run['reason']}" if run["reason"] else ""),
            "environment": f"{run['environment']}@{run['version']}",
            "policy": run["policy"],
            **(figure_fields(figures) if figures else {}),
            **({"reward": estimate(summary["reward"])} if "reward" in summary else {}),
            **{
                f"  {name}": estimate(figure)
                for name, figure in (summary.get("columns") or {}).items()
                if isinstance(figure, dict)
            },
            **{name: summary[name] for name in ("rollouts", "failed", "rollouts_per_second") if name in summary},
        }
    )


def write_rollouts(rollouts: list[Json]) -> None:
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
    columns = ("no.", "rollout", "task", "level", "status", "ended by", "reward", *names, "turns", "last reply")
    write_table(columns, rows, empty="No rollout matches.")


def write_transcript(rollout: Json) -> None:
    shown = console()
    state = f"{rollout['stop_reason']}, reward {rollout['reward']}"
    shown.rule(f"task {rollout['index']}, level {rollout['level']}: {state}")
    for message in rollout["messages"]:
        shown.print(message["role"], style="bold", markup=False)
        shown.print(str(message["content"]), markup=False)
