"""The numbers of a training run in words: what is played in a step, in all, and in which parts it is learned."""

from backend.domain.training.configuration import TrainingConfiguration


def batch_in_words(configuration: TrainingConfiguration) -> str:
    """`20 tasks × 8 episodes = 160 rollouts a step; 100 steps = 16,000 rollouts; learned in 4 parts of 40`."""
    told = []
    if configuration.recipe.has_sft:
        sft = configuration.sft
        told.append(
            f"imitation: {sft.steps:,} steps × {sft.batch:,} conversations = {sft.steps * sft.batch:,} looked at"
        )
    if configuration.recipe.has_grpo:
        grpo = configuration.grpo
        step = grpo.episodes_per_step
        told += [
            f"{grpo.tasks_per_step:,} tasks × {grpo.group_size:,} episodes = {step:,} rollouts a step",
            f"{grpo.steps:,} steps = {grpo.steps * step:,} rollouts",
            _parts(grpo.micro_batches, step // grpo.micro_batches, configuration.hardware.processes),
        ]
    return "; ".join(told)


def _parts(count: int, rollouts: int, processes: int) -> str:
    told = "learned in one part" if count == 1 else f"learned in {count:,} parts of {rollouts:,}"
    return told if processes == 1 else f"{told}, divided among {processes:,} processes"
