"""Our choices in TRL's words."""

from typing import Any

from trl import GRPOConfig

from workers.training.grpo.stage import GrpoRun


def grpo_arguments(run: GrpoRun) -> GRPOConfig:
    """One of our steps is `updates` of TRL's: states are saved only between sets of rollouts, because TRL does not keep
    those it is in the middle of."""
    choice = run.choice
    on_cpu = next(run.model.parameters()).device.type == "cpu"
    return GRPOConfig(
        output_dir=str(run.folder),
        max_steps=choice.steps * choice.updates,
        per_device_train_batch_size=run.rows,
        gradient_accumulation_steps=choice.micro_batches,
        steps_per_generation=choice.micro_batches,
        num_generations=choice.group_size,
        num_iterations=choice.updates,
        shuffle_dataset=False,  # the tasks are laid out in order, levels mixed
        learning_rate=choice.learning_rate,
        lr_scheduler_type=choice.schedule,
        warmup_steps=choice.warmup_steps * choice.updates,
        adam_beta2=choice.adam_beta2,
        max_grad_norm=choice.max_grad_norm,
        weight_decay=0.0,
        loss_type=choice.loss_type,
        importance_sampling_level=choice.ratio_level,
        epsilon=choice.epsilon,
        epsilon_high=choice.ratio_ceiling,
        multi_objective_aggregation=choice.aggregation,
        scale_rewards=choice.scale_rewards,
        reward_weights=[1.0 if run.columns_of else column.weight for column in run.columns],
        beta=choice.beta,
        temperature=choice.temperature,
        entropy_coef=choice.entropy_bonus,
        max_completion_length=run.longest_completion,
        seed=run.seed,
        # TRL turns these on unasked, also on a CPU
        bf16=run.hardware.is_bf16,
        gradient_checkpointing=run.hardware.checkpoints_gradients,
        use_cpu=on_cpu,
        report_to="none",
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would put the mean of other steps in a spoiled one's place
        log_completions=False,
        disable_tqdm=True,
        dataloader_pin_memory=not on_cpu,
        save_strategy="steps",
        save_steps=run.save_every * choice.updates,
        save_total_limit=2,
        **_sampling(run),
    )


def _sampling(run: GrpoRun) -> dict[str, Any]:
    """TRL brings vLLM up and gives it the newest weights before each step; without it sampling is ours alone."""
    if run.vllm is None:
        return {}
    shared = {"use_vllm": True, "vllm_mode": run.vllm.mode, "top_p": run.choice.top_p, "top_k": run.choice.top_k}
    if run.vllm.mode == "server":
        return {**shared, "vllm_server_base_url": run.vllm.server}
    return {**shared, "vllm_gpu_memory_utilization": run.vllm.memory}
