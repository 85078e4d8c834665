"""A bare GRPO script: TRL's trainer, a `rollout_func` that plays in this process, and nothing stored."""

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from backend.domain.training.grpo import GrpoChoice
from benchmarks.bare.play import Sample, play
from benchmarks.cpu import tree_seconds
from workers.models.load import load_folder

WEIGHTS = {"win": 1.0, "format": 0.2, "invalid_move": 0.1}

MakeSample = Callable[[Any, Any, float], Sample]


class Stamps(TrainerCallback):  # type: ignore[misc]
    """When each step was over, and the CPU seconds until then."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.cpu: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.times.append(time.perf_counter())
        self.cpu.append(tree_seconds())


def train(
    weights: Path, tasks: Sequence[tuple[int, int]], choice: GrpoChoice, scratch: Path, make_sample: MakeSample
) -> Stamps:
    """Train on the tasks (seed, level), one a group."""
    model, tokenizer = load_folder(weights)
    sample = make_sample(model, tokenizer, choice.temperature)

    def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        episodes = play(tokenizer, [tasks[prompt[-1]["group"]] for prompt in prompts], sample)
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.completion for episode in episodes],
            "env_mask": [episode.mask for episode in episodes],
            "logprobs": None,
            "rewards": [episode.game.rewards() for episode in episodes],
        }

    stamps = Stamps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            model=model,
            args=_arguments(choice, scratch),
            train_dataset=_dataset(len(tasks)),
            processing_class=tokenizer,
            reward_funcs=[_reward(name) for name in WEIGHTS],
            rollout_func=rollouts,
            callbacks=[stamps],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return stamps


def _dataset(groups: int) -> Dataset:
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": "", "group": n}] for n in range(groups)]})


def _reward(name: str) -> Callable[..., list[float]]:
    def reward(rewards: list[dict[str, float]], **_: Any) -> list[float]:
        return [columns[name] for columns in rewards]

    reward.__name__ = name
    return reward


def _arguments(choice: GrpoChoice, scratch: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(scratch),
        max_steps=choice.steps,
        per_device_train_batch_size=choice.episodes_per_step,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=choice.group_size,
        shuffle_dataset=False,
        learning_rate=choice.learning_rate,
        lr_scheduler_type=choice.schedule,
        adam_beta2=choice.adam_beta2,
        max_grad_norm=choice.max_grad_norm,
        weight_decay=0.0,
        loss_type=choice.loss_type,
        scale_rewards=choice.scale_rewards,
        reward_weights=list(WEIGHTS.values()),
        beta=choice.beta,
        temperature=choice.temperature,
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
