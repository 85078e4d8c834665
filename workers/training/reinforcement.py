"""The GRPO stage: every step plays groups through the engine and stores them all; now and then an examination."""

import shutil
from collections.abc import Sequence

from backend.db.models import Checkpoint
from backend.domain.rollouts import Rollout
from backend.domain.training import Stage
from backend.domain.vocabulary import Phase
from workers.jobs.judging import record_flags, resume_watch
from workers.jobs.rollout_rows import rollout_id
from workers.judging.detectors.view import row_of
from workers.judging.detectors.watch import Watch
from workers.models.policy import LocalPolicy
from workers.rollouts.engine import GroupPlan
from workers.training.reporter import record_step
from workers.training.resume import newest_complete, step_of
from workers.training.tasks import grpo_tasks
from workers.training.trl_grpo import GrpoRun, GrpoStep, train_grpo
from workers.training.workbench import Stopped, Workbench


def reinforce(bench: Workbench, start: Checkpoint) -> None:
    """GRPO from the start's weights, or from the trainer's last saved state."""
    configuration, manifest = bench.configuration, bench.assignment.manifest
    choice = configuration.grpo
    last = bench.store.find(Stage.GRPO, choice.steps)
    if last is not None and last.heldout:
        return
    model, tokenizer = bench.store.load(start)
    policy = LocalPolicy(model, tokenizer, temperature=choice.temperature, lockstep=True)
    tasks = grpo_tasks(manifest, configuration)
    members = tuple(range(choice.group_size))
    folder = bench.folder_of(Stage.GRPO)
    reached = step_of(newest_complete(folder))

    watch = resume_watch(bench.assignment.run_id, before_step=reached + 1)

    def play(step: int, ordinals: Sequence[int]) -> list[Rollout]:
        first = (step - 1) * choice.tasks_per_step
        plans = [GroupPlan(tasks[first + ordinal], ordinal, members) for ordinal in ordinals]
        return bench.arena.play_in_lockstep(
            plans, policy, phase=Phase.TRAIN, seed=configuration.seed, training_step=step
        )

    def on_step(step: GrpoStep) -> bool:
        nonlocal reached
        reached = step.step
        figures = record_step(bench.recorder, step, manifest.column_names)
        _judge(bench, watch, step)
        message = f"reward {figures['reward']:.3f}"
        bench.recorder.progress(phase="grpo", done=step.step, total=choice.steps, message=message)
        goes_on = not bench.recorder.should_stop()
        if step.step % configuration.heldout.every == 0 or step.step == choice.steps:
            bench.store.save(Stage.GRPO, step.step, model, tokenizer)
            bench.examine(Stage.GRPO, step.step, model, tokenizer, at=step.step)
        elif not goes_on:
            bench.store.save(Stage.GRPO, step.step, model, tokenizer)
        return goes_on

    bench.recorder.log(
        f"GRPO: {choice.steps} steps of {choice.tasks_per_step} tasks x {choice.group_size} episodes, "
        f"{bench.arena.capacity} at a time"
    )
    try:
        train_grpo(
            GrpoRun(
                model=model,
                tokenizer=tokenizer,
                choice=choice,
                columns=manifest.columns,
                seed=configuration.seed,
                folder=folder,
                save_every=configuration.checkpoints.every,
                play=play,
                on_step=on_step,
            )
        )
    finally:
        bench.arena.close_policy(policy)
    if reached < choice.steps:
        raise Stopped
    shutil.rmtree(folder, ignore_errors=True)


def _judge(bench: Workbench, watch: Watch, step: GrpoStep) -> None:
    """Let the detectors look at the step; what they find becomes flags."""
    run_id = bench.assignment.run_id
    rows = [row_of(rollout_id(run_id, rollout), rollout) for rollout in step.rollouts]
    drafts = watch.look(step.step, [row for row in rows if row is not None])
    if record_flags(run_id, drafts):
        for draft in drafts:
            bench.recorder.log(f"flag {draft.detector}: {draft.sentence}", "warning")
