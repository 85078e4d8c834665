"""The size of a training run as text: rollouts per step, in total, and micro-batches."""

from backend.domain.training.configuration import TrainingConfiguration


def batch_in_words(configuration: TrainingConfiguration) -> str:
    """`20 tasks × 8 episodes = 160 rollouts per step; 100 steps = 16,000 rollouts; 4 micro-batches of 40`"""
    parts = []
    if configuration.recipe.has_sft:
        sft = configuration.sft
        parts.append(f"SFT: {sft.steps:,} steps × {sft.batch:,} = {sft.steps * sft.batch:,} conversations")
    if configuration.recipe.has_grpo:
        grpo, processes = configuration.grpo, configuration.hardware.processes
        step = grpo.episodes_per_step
        micro_batches = "one batch" if grpo.micro_batches == 1 else f"{grpo.micro_batches:,} micro-batches"
        parts += [
            f"{grpo.tasks_per_step:,} tasks × {grpo.group_size:,} episodes = {step:,} rollouts per step",
            f"{grpo.steps:,} steps = {grpo.steps * step:,} rollouts",
            f"{micro_batches} of {step // grpo.micro_batches:,}"
            + ("" if processes == 1 else f", divided among {processes:,} processes"),
        ]
    return "; ".join(parts)
