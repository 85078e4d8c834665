"""A preset that masters tic-tac-toe, from nothing: trained, then examined on games that nothing else ever played.

    python -m benchmarks.mastery [--seeds 0,1,2] [--set grpo.steps=400 …] [--games 1000] [--gold] [--keep FOLDER]

Each seed is one training run of the product in a process of its own, as a worker starts it: env host and sandbox,
Postgres with every rollout. Its best checkpoint by its own examinations, which use other held-out tasks, then plays
the games against the random and the perfect opponent, greedily and at temperature 1. Beside it stand the warm-up alone,
scripts that need no learning and, with `--gold`, the same warm-up on perfect play, which is the upper reference.
`--examine FOLDER` trains nothing and examines the weights that `--keep` left there.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog
import torch
from rich.console import Console
from sqlalchemy import select
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.studies.queries import start_of
from backend.training.choices import nest
from backend.training.schemas import resolve_configuration
from benchmarks.installation import installation
from benchmarks.mastery_games import (
    FIRST_OF_SEARCH,
    FIRST_UNSEEN,
    LEVELS,
    Games,
    Play,
    arena_for,
    baselines,
    count_games,
    player,
)
from benchmarks.mastery_runs import Trained, train_apart
from benchmarks.mastery_table import print_games, print_runs
from benchmarks.training_runs import environment
from workers.models.load import load_folder
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy

PRESET = "tictactoe-mastery"
ENVIRONMENT = "tictactoe"
TEMPERATURES = (0.0, 1.0)

console = Console(soft_wrap=True)
Weights = dict[str, Path]
"""Folders by the name of the policy in the table."""


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    disable_progress_bar()
    torch.set_num_threads(1)
    with installation(), tempfile.TemporaryDirectory(prefix="mastery-") as scratch:
        version = environment(ENVIRONMENT)
        weights = {path.name: path for path in options.examine}
        if not weights:
            runs = list(_trained(version, options))
            print_runs(console, runs)
            weights = _weights(runs, options.keep or Path(scratch))
        _examine(version, weights, options.games, FIRST_OF_SEARCH if options.search else FIRST_UNSEEN)
    return 0


def _trained(version: EnvironmentVersion, options: argparse.Namespace) -> Iterator[Trained]:
    for seed in options.seeds:
        choices = nest(dict(options.set) | {"seed": str(seed)})
        configuration = resolve_configuration(options.preset, choices)
        yield _run(version, f"seed {seed}", configuration)
        if options.gold:
            lessons = configuration.sft.model_copy(update={"script": "gold"})
            yield _run(
                version, f"gold, seed {seed}", configuration.model_copy(update={"recipe": "sft", "sft": lessons})
            )


def _run(version: EnvironmentVersion, name: str, configuration: TrainingConfiguration) -> Trained:
    console.print(f"{name} …", style="dim")
    run = train_apart(version, name, configuration)
    console.print(f"{name}: {run.status}, {run.seconds:,.0f} s, {run.cpu_seconds:,.0f} CPU s", style="dim")
    return run


def _weights(runs: Sequence[Trained], folder: Path) -> Weights:
    """Of each run the checkpoint that it calls its best, and the one after its warm-up."""
    found: Weights = {}
    for run in runs:
        with transaction() as session:
            of_run = Checkpoint.run_id == run.run_id, Checkpoint.is_best, Checkpoint.pruned_at.is_(None)
            best = session.scalars(select(Checkpoint).where(*of_run)).one_or_none()
            warmed = start_of(session, session.get_one(Run, run.run_id))
        for name, checkpoint in [(f"{run.name}, warm-up alone", warmed), (run.name, best)]:
            if checkpoint is not None:
                target = folder / name
                shutil.rmtree(target, ignore_errors=True)
                found[name] = get_folder(checkpoint.artifact, target)
    return found


def _examine(version: EnvironmentVersion, weights: Weights, games: int, first_task: int) -> None:
    with arena_for(version) as arena:
        play = player(version, arena, first_task)
        rows: list[tuple[str, str, list[Games]]] = []
        for name, script in baselines().items():
            rows.append((name, "", _against_all(play, script, games)))
        for name, folder in weights.items():
            model, tokenizer = load_folder(folder)
            for temperature in TEMPERATURES:
                policy = LocalPolicy(model, tokenizer, temperature=temperature, lockstep=True)
                rows.append((name, f"{temperature:g}", _against_all(play, policy, games)))
                arena.close_policy(policy)
    print_games(console, rows)


def _against_all(play: Play, policy: Policy, games: int) -> list[Games]:
    return [count_games(play(policy, level, games)) for level in LEVELS]


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name.strip(), value.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mastery", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--games", type=int, default=1000, help="on each level, of each policy and temperature")
    parser.add_argument("--gold", action="store_true", help="also the same warm-up on perfect play")
    parser.add_argument("--keep", type=Path, help="where the weights stay")
    parser.add_argument("--search", action="store_true", help="settings are looked for: leaves the final games alone")
    parser.add_argument("--examine", type=Path, action="append", default=[], metavar="FOLDER")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
