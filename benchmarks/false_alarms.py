"""Measure false alarms: honest training runs from scratch, with every detector on.

Peer: none.
Units: share of rollouts that any detector flags; flags about the run that are more severe than a note.
Repeats: 1. Runs are deterministic for a seed.

    python -m benchmarks.false_alarms --only instruct   # the runs whose preset or environment contains this text

The environments have no known hole, so every flag is false. Models are trained from scratch by the presets: a complete
`tictactoe-demo`, a shortened `tictactoe-mastery`, and `quick` on three other built-in environments. Three further runs
train SmolLM2-135M-Instruct with an adapter, for a few steps. They are skipped if its weights are not installed
(`make instruct`).
"""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import structlog
from rich.console import Console
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import RolloutStatus, Severity
from backend.rollouts.tables import Rollout
from benchmarks.harness import Measure, Options, import_built_in, installation, print_table
from benchmarks.training import train_run
from workers.models.gguf_base import PACKAGED

REPEATS = 1
LIMIT_SECONDS = 3 * 3600
TARGET = 0.001
SHORT: Mapping[str, Any] = {
    "sft": {"episodes": 6000, "steps": 600},
    "grpo": {"steps": 60},
    "gate": {"minimum_success": 0, "minimum_format": 0, "minimum_reward": None},
    "heldout": {"every": 60, "tasks": 100},
}
FEW_STEPS: Mapping[str, Any] = {
    "grpo": {"steps": 3, "tasks_per_step": 8, "group_size": 8, "micro_batches": 8},
    "heldout": {"every": 3, "tasks": 20},
    "concurrency": 16,
}
ALL_LEVELS: Mapping[str, Any] = {"sft": {"script_where": ""}, "grpo": {**FEW_STEPS["grpo"], "levels": None}}
Setup = tuple[str, str, Mapping[str, Any]]
"""Environment, preset, and changed settings."""
RUNS: tuple[Setup, ...] = (
    ("arithmetic_ladder", "quick", {}),
    ("reverse_text", "quick", {}),
    ("number_guess", "quick", {}),
    ("tictactoe", "tictactoe-mastery", SHORT),
    ("tictactoe", "tictactoe-demo", {}),
)
INSTRUCT_RUNS: tuple[Setup, ...] = (
    ("arithmetic_ladder", "instruct-135m-quick", FEW_STEPS),
    ("reverse_text", "instruct-135m-quick", {**FEW_STEPS, **ALL_LEVELS}),
    ("number_guess", "instruct-135m-quick", {**FEW_STEPS, **ALL_LEVELS}),
)


def measure(options: Options) -> Iterator[Measure]:
    runs = RUNS + (INSTRUCT_RUNS if has_instruct_model() else ())
    yield from measure_runs(runs[: options.size(len(runs), 1)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs whose preset or environment contains this text")
    chosen = parser.parse_args().only
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)
    runs = [run for run in RUNS + INSTRUCT_RUNS if chosen in f"{run[1]} {run[0]}"]
    if any(run in INSTRUCT_RUNS for run in runs) and not has_instruct_model():
        raise SystemExit("The instruct model is not installed. Run `make instruct` once.")
    print_table(Console(), "false alarms", list(measure_runs(runs)))
    return 0


def has_instruct_model() -> bool:
    return all(find_spec(model.module) for model in PACKAGED.values())


def measure_runs(runs: Sequence[Setup]) -> Iterator[Measure]:
    flagged = total = 0
    with installation():
        versions = {name: import_built_in(name) for name in dict.fromkeys(name for name, _, _ in runs)}
        for environment, preset, changes in runs:
            choices = PRESETS[preset].configuration.model_dump(mode="json")
            for name, values in changes.items():
                choices[name] = choices[name] | values if isinstance(values, dict) else values
            configuration = TrainingConfiguration.model_validate(choices)
            run_id, _ = train_run(versions[environment], configuration.model_dump(mode="json"))
            of_run = Flag.run_id == run_id
            with transaction() as session:
                count = session.scalar(
                    select(func.count()).where(Rollout.run_id == run_id, Rollout.status == RolloutStatus.COMPLETED)
                )
                ids = session.scalar(select(func.count(Flag.rollout_id.distinct())).where(of_run)) or 0
                by = Counter(session.scalars(select(Flag.detector).where(of_run)))
                severe = session.scalars(
                    select(Flag.detector).where(of_run, Flag.rollout_id.is_(None), Flag.severity != Severity.NOTE)
                ).all()
            title, rollouts = f"{preset}, {environment}", count or 0
            flagged, total = flagged + ids, total + rollouts
            note = f"{ids:,} of {rollouts:,}" + "".join(f", {name} {number}" for name, number in by.most_common())
            yield Measure(f"{title}: rollouts flagged", "share", [ids / max(rollouts, 1)], target=TARGET, note=note)
            note = ", ".join(severe)
            yield Measure(f"{title}: flags about the run", "flags", [len(severe)], target=0, note=note)
    yield Measure(
        "all: rollouts flagged", "share", [flagged / max(total, 1)], target=TARGET, note=f"{total:,} rollouts"
    )


if __name__ == "__main__":
    sys.exit(main())
