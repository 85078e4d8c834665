"""The peer of the training benchmark: GRPO on tic-tac-toe as a good engineer writes it with TRL alone.

The game is played in this process, without a server, a sandbox or stored rollouts. Replies are sampled with
transformers' `generate`, with TRL's own generation, or with Proctor's sampler, which keeps the key-value cache.
"""

import importlib.util
import random
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from backend.domain.training.grpo import GrpoChoice
from backend.settings import PROJECT_ROOT
from benchmarks.harness import tree_cpu_seconds
from workers.models.load import load_folder
from workers.models.sampling import Row, Sampler

SYSTEM = "Tic-tac-toe: you are X. Cells are numbered 1 to 9, row by row. Reply only with <move>n</move>, n a free cell."
MAX_TURNS = 8
MAX_NEW_TOKENS = 32
RANDOM_MOVES = (1.0, 0.5, 0.0)
"""Share of the opponent's moves that are random, by level."""
WEIGHTS = {"win": 1.0, "format": 0.2, "invalid_move": 0.1}

Sample = Callable[[list[list[int]]], list[list[int]]]
"""Token ids of the conversations so far → token ids of the replies."""
MakeSample = Callable[[Any, Any, float], Sample]
"""(model, tokenizer, temperature) → sampling function."""


# The game


@lru_cache(maxsize=1)
def rules() -> ModuleType:
    """Load the rules from the built-in environment's file; the package around it needs OpenEnv."""
    path = PROJECT_ROOT / "workers/library/tictactoe/server/game.py"
    specification = importlib.util.spec_from_file_location("tictactoe_rules", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@dataclass(slots=True)
class Game:
    """One episode. It has ended when `outcome` is set."""

    seed: int
    level: int
    board: str = "." * 9
    turns: int = 0
    readable: int = 0
    mistakes: int = 0
    outcome: str = ""
    opening: str = field(init=False)

    def __post_init__(self) -> None:
        self.opening = self._opponent_move() if self.seed % 2 else "You start."

    def step(self, text: str) -> str:
        """Play the reply's move and return the environment's message."""
        self.turns += 1
        move = re.search(r"<move>\s*(\d)\s*</move>", text)
        self.readable += move is not None
        message = "Invalid."
        if move and int(move[1]) - 1 in rules().free(self.board):
            self._put(int(move[1]) - 1, "X")
            message = self.outcome or self._opponent_move()
        elif move:
            self.mistakes += 1
        if not self.outcome and self.turns >= MAX_TURNS:
            self.outcome = "timeout"
        return message

    def rewards(self) -> dict[str, float]:
        win = {"win": 1.0, "draw": 0.5}.get(self.outcome, 0.0)
        return {"win": win, "format": self.readable / self.turns, "invalid_move": -1.0 if self.mistakes else 0.0}

    def _opponent_move(self) -> str:
        chance = random.Random(f"{self.seed}:{self.board}")
        is_random = chance.random() < RANDOM_MOVES[self.level]
        index = chance.choice(rules().free(self.board) if is_random else rules().best_replies(self.board))
        self._put(index, "O")
        return f"O plays {index + 1}."

    def _put(self, index: int, player: str) -> None:
        self.board = rules().put(self.board, index, player)
        if winner := rules().winner(self.board):
            self.outcome = "win" if winner == "X" else "loss"
        elif not rules().free(self.board):
            self.outcome = "draw"


# Rollouts of several turns


@dataclass(slots=True)
class Episode:
    """One episode's tokens, as TRL expects them."""

    game: Game
    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for sampled tokens, 0 for the environment's."""


def play(tokenizer: Any, tasks: Sequence[tuple[int, int]], sample: Sample) -> list[Episode]:
    """Play each task (seed, level) once. Each turn is one batch over the games that are not over."""
    episodes = []
    for seed, level in tasks:
        game = Game(seed, level)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": game.opening}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        episodes.append(Episode(game, prompt))
    continuations: dict[str, list[int]] = {}
    playing, end = list(episodes), tokenizer.eos_token_id
    while playing:
        replies = sample([episode.prompt + episode.completion for episode in playing])
        for episode, reply in zip(playing, replies, strict=True):
            episode.completion += reply
            episode.mask += [1] * len(reply)
            if reply[-1] != end:
                episode.completion.append(end)
                episode.mask.append(0)
            message = episode.game.step(tokenizer.decode([token for token in reply if token != end]))
            if not episode.game.outcome:
                if message not in continuations:
                    continuations[message] = _continuation(tokenizer, message)
                episode.completion += continuations[message]
                episode.mask += [0] * len(continuations[message])
        playing = [episode for episode in playing if not episode.game.outcome]
    return episodes


def _continuation(tokenizer: Any, message: str) -> list[int]:
    """Return the tokens between two replies: the environment's message and the head of the next reply."""
    before = [{"role": "user", "content": "d"}, {"role": "assistant", "content": "d"}]
    head = tokenizer.apply_chat_template(before, return_dict=False)
    head = head[: len(head) - head[::-1].index(tokenizer.eos_token_id)]
    after = [*before, {"role": "user", "content": message}]
    return list(tokenizer.apply_chat_template(after, add_generation_prompt=True, return_dict=False)[len(head) :])


# Sampling


def with_generate(model: Any, tokenizer: Any, temperature: float) -> Sample:
    """Sample with transformers' `generate`, which reads the whole conversation again each turn."""
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id

    def sample(prompts: list[list[int]]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        was_training = model.training
        model.eval()
        with torch.no_grad():
            whole = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                pad_token_id=pad,
                eos_token_id=end,
            )
        model.train(was_training)
        rows = whole[:, width:].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    return sample


def with_cache(model: Any, tokenizer: Any, temperature: float) -> Sample:
    """Sample with Proctor's sampler, which keeps the key-value cache between turns."""
    sampler = Sampler(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id, temperature=temperature)
    chance = np.random.default_rng(0)
    rows: list[Row] = []

    def sample(prompts: list[list[int]]) -> list[list[int]]:
        nonlocal rows
        rows = _continued(rows, prompts) or [Row([], np.random.default_rng(chance.integers(2**63))) for _ in prompts]
        for row, prompt in zip(rows, prompts, strict=True):
            row.tokens = list(prompt)
        return [reply.tokens for reply in sampler.sample(rows, [MAX_NEW_TOKENS] * len(rows))]

    return sample


def _continued(rows: list[Row], prompts: list[list[int]]) -> list[Row]:
    """Return the rows whose conversations the prompts continue, or nothing if other conversations begin."""
    remaining = iter(rows)
    continued: list[Row] = []
    for prompt in prompts:
        row = next((row for row in remaining if prompt[: len(row.tokens)] == row.tokens), None)
        if row is None:
            return []
        continued.append(row)
    return continued


def with_trl(model: Any, tokenizer: Any, scratch: Path) -> Sample:
    """Sample with TRL's own generation of one turn, as its tool loop calls it."""
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


# Training


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """When each step ended, in wall-clock and CPU seconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(tree_cpu_seconds())


def train(
    weights: Path, tasks: Sequence[tuple[int, int]], grpo: GrpoChoice, scratch: Path, make_sample: MakeSample
) -> StepTimes:
    """Train on the tasks (seed, level), one per group, with the given settings."""
    model, tokenizer = load_folder(weights)
    sample = make_sample(model, tokenizer, grpo.temperature)

    def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        episodes = play(tokenizer, [tasks[prompt[-1]["group"]] for prompt in prompts], sample)
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.completion for episode in episodes],
            "env_mask": [episode.mask for episode in episodes],
            "logprobs": None,
            "rewards": [episode.game.rewards() for episode in episodes],
        }

    def reward_of(name: str) -> Callable[..., list[float]]:
        def reward(rewards: list[dict[str, float]], **_: Any) -> list[float]:
            return [columns[name] for columns in rewards]

        reward.__name__ = name
        return reward

    prompts = [[{"role": "user", "content": "", "group": number}] for number in range(len(tasks))]
    times = StepTimes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            model=model,
            args=_arguments(grpo, scratch),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            reward_funcs=[reward_of(name) for name in WEIGHTS],
            rollout_func=rollouts,
            callbacks=[times],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times


def _arguments(grpo: GrpoChoice, scratch: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(scratch),
        max_steps=grpo.steps,
        per_device_train_batch_size=grpo.episodes_per_step,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=grpo.group_size,
        shuffle_dataset=False,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type=grpo.schedule,
        adam_beta2=grpo.adam_beta2,
        max_grad_norm=grpo.max_grad_norm,
        weight_decay=0.0,
        loss_type=grpo.loss_type,
        scale_rewards=grpo.scale_rewards,
        reward_weights=list(WEIGHTS.values()),
        beta=grpo.beta,
        temperature=grpo.temperature,
        max_completion_length=256,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        save_strategy="no",
    )
