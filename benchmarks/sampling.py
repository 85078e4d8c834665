"""Tokens a second of rollout sampling in training, ours and TRL's own `generate` with the conversation read anew.

    python -m benchmarks.sampling [--episodes 144] [--rounds 5]

Games of several turns by the same weights on the same tasks, turn about. Three ways: ours as a training run plays
(engine, env host, sandbox; `LocalPolicy` keeps the key-value cache between turns), TRL's `GRPOTrainer` generating for
the same game in this process, and our sampler in that same loop. The first pair is what training feels; the last two
differ in nothing but the sampling.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import torch
from datasets import Dataset
from rich.console import Console
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from backend.core.artifacts import get_folder
from backend.domain.vocabulary import Phase
from benchmarks.bare.play import MAX_NEW_TOKENS, Sample, play
from benchmarks.bare.sampler import keeping_cache
from benchmarks.cpu import tree_seconds
from benchmarks.installation import installation
from benchmarks.training_runs import environment, start_run, warmed_up
from workers.models.load import load_folder
from workers.models.policy import LocalPolicy
from workers.training.assignment import read_assignment
from workers.training.context import single_groups
from workers.training.env_pool import arena_of
from workers.training.planning.tasks import warm_up_tasks

ASKED = 1.4
console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    disable_progress_bar()
    torch.set_num_threads(1)
    with installation() as folder, tempfile.TemporaryDirectory() as scratch:
        version = environment("tictactoe")
        console.print("warming a policy up …", style="dim")
        start = warmed_up(version)
        assignment = read_assignment(start_run(version, {"model": {"source": "checkpoint", "checkpoint": start.id}}))
        model, tokenizer = load_folder(get_folder(start.artifact, folder / "weights"))
        plans = single_groups(warm_up_tasks(assignment.venues, options.episodes))
        tasks = [(plan.task.seed, plan.task.level) for plan in plans]
        policy = LocalPolicy(model, tokenizer, temperature=1.0, lockstep=True)
        with arena_of(assignment) as arena:

            def ours() -> int:
                rollouts = arena.play_in_lockstep(plans, policy, phase=Phase.TRAIN, seed=0)
                return sum(rollout.tokens_out for rollout in rollouts)

            ways: dict[str, Callable[[], int]] = {
                "ours in training": ours,
                "TRL's generate": _in_process(tokenizer, tasks, _trl(model, tokenizer, Path(scratch))),
                "our sampler alone": _in_process(tokenizer, tasks, keeping_cache(model, tokenizer, 1.0)),
            }
            rates = _rates(ways, options.rounds)
            arena.close_policy(policy)
    _report(rates)
    return 0


def _in_process(tokenizer: Any, tasks: list[tuple[int, int]], sample: Sample) -> Callable[[], int]:
    return lambda: sum(sum(episode.mask) for episode in play(tokenizer, tasks, sample))


def _trl(model: Any, tokenizer: Any, scratch: Path) -> Sample:
    """TRL's own generation for a turn, as its tool loop calls it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = GRPOConfig(
            output_dir=str(scratch),
            max_completion_length=MAX_NEW_TOKENS,
            temperature=1.0,
            per_device_train_batch_size=8,
            num_generations=8,
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
        )
        trainer = GRPOTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * 8}),
            processing_class=tokenizer,
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        )

    def sample(prompts: list[list[int]]) -> list[list[int]]:
        replies: list[list[int]] = trainer._generate_single_turn(prompts, None, {}, 1)[0]
        return replies

    return sample


@dataclass(slots=True)
class Rates:
    """Tokens a second, round by round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of all processes that take part: other load on the machine does not change it."""


def _rates(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, Rates]:
    """Of each way, which take turns. The first round warms up and does not count."""
    rates = {name: Rates() for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began, spent = time.perf_counter(), tree_seconds()
            tokens = way()
            if number:
                rates[name].wall.append(tokens / (time.perf_counter() - began))
                rates[name].cpu.append(tokens / (tree_seconds() - spent))
    return rates


def _report(rates: dict[str, Rates]) -> None:
    for name, found in rates.items():
        console.print(
            f"{name}: {statistics.median(found.wall):,.0f} tokens/s, {statistics.median(found.cpu):,.0f} a CPU second"
        )
    theirs = rates["TRL's generate"]
    for name in ("ours in training", "our sampler alone"):
        console.print(
            f"{name} / TRL's generate: {_ratio(rates[name].wall, theirs.wall)} (asked {ASKED}); "
            f"by CPU {_ratio(rates[name].cpu, theirs.cpu)}"
        )
    console.print(f"1 thread; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", style="dim")


def _ratio(mine: list[float], theirs: list[float]) -> str:
    ratios = [my / their for my, their in zip(mine, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=144)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
