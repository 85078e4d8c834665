"""Measure false alarms: honest training runs from scratch, with every detector on.

Peer: none.
Units: share of rollouts that any detector flags; flags about the run that are more severe than a note.
Repeats: 1. Runs are deterministic for a seed.

The environments have no known hole, so every flag is false. Models are trained from scratch by the presets: a complete
`tictactoe-demo`, a shortened `tictactoe-mastery`, and `quick` on three other built-in environments. A preset for
pretrained models needs weights that the benchmark does not download.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import RolloutStatus, Severity
from backend.rollouts.tables import Rollout
from benchmarks.harness import Measure, Options, import_built_in, installation
from benchmarks.training import train_run

REPEATS = 1
TARGET = 0.001
SHORT: Mapping[str, Any] = {
    "sft": {"episodes": 6000, "steps": 600},
    "grpo": {"steps": 60},
    "gate": {"minimum_success": 0, "minimum_format": 0, "minimum_reward": None},
    "heldout": {"every": 60, "tasks": 100},
}
RUNS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("arithmetic_ladder", "quick", {}),
    ("reverse_text", "quick", {}),
    ("number_guess", "quick", {}),
    ("tictactoe", "tictactoe-mastery", SHORT),
    ("tictactoe", "tictactoe-demo", {}),
)
"""Environment, preset, and changed settings."""


def measure(options: Options) -> Iterator[Measure]:
    flagged = total = 0
    with installation():
        versions = {name: import_built_in(name) for name in dict.fromkeys(name for name, _, _ in RUNS)}
        for environment, preset, changes in RUNS[: options.size(len(RUNS), 1)]:
            choices = PRESETS[preset].configuration.model_dump(mode="json")
            for block, values in changes.items():
                choices[block] |= values
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
