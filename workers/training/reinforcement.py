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
from workers.training.grpo.stage import GrpoControls, GrpoRun, GrpoStep
from workers.training.hardware import settle
from workers.training.pace import Pace
from workers.training.planning.memory import PlanMemory
from workers.training.planning.planner import Planner
from workers.training.reporter import record_step
from workers.training.steering import Steering
from workers.training.trl_grpo import reached_step, train_grpo
from workers.training.verdicts import Hacks
from workers.training.workbench import Stopped, Workbench


def reinforce(bench: Workbench, start: Checkpoint) -> None:
    """GRPO from the start's weights, or from the trainer's last saved state."""
    configuration, columns = bench.configuration, bench.assignment.columns
    choice = configuration.grpo
    last = bench.store.find(Stage.GRPO, choice.steps)
    if last is not None and last.heldout:
        return
    folder = bench.folder_of(Stage.GRPO)
    reached = reached_step(folder, choice)
    bench.purse.recall(bench.assignment.run_id, reached)
    if not reached and bench.is_used_up():
        return
    model, tokenizer = bench.store.load(start)
    hardware = settle(configuration.hardware)
    policy = LocalPolicy(
        model, tokenizer, temperature=choice.temperature, top_p=choice.top_p, top_k=choice.top_k, lockstep=True
    )
    policy.set_precision(is_bf16=hardware.is_bf16)
    watch = resume_watch(bench.assignment.run_id, before_step=reached + 1)
    environments = {venue.tag: venue.name for venue in bench.assignment.venues}
    pace = Pace(reached)
    planner, memory = Planner(bench.assignment.venues, configuration), PlanMemory(folder)
    memory.recall(reached, planner, bench.assignment.player_of(reached))
    steering = Steering(bench, controls := GrpoControls())
    steering.begin(reached)
    is_used_up = False

    def play(step: int, ordinals: Sequence[int]) -> list[Rollout]:
        return bench.arena.play_in_lockstep(
            planner.plans_of(step, ordinals), policy, phase=Phase.TRAIN, seed=configuration.seed, training_step=step
        )

    def on_step(step: GrpoStep) -> bool:
        nonlocal reached, is_used_up
        reached = step.step
        figures = record_step(bench.recorder, step, [column.name for column in columns], environments)
        _judge(bench, watch, step)
        bench.recorder.metrics(step.step, planner.learn(step.step, step.rollouts))
        memory.keep(step.step, planner)
        bench.purse.pay(step.rollouts)
        is_used_up = bench.is_used_up()
        message = ", ".join(filter(None, (f"reward {figures['reward']:.3f}", bench.purse.told)))
        left = {"seconds_left": pace.seconds_left(step.step, choice.steps)}
        bench.recorder.progress(phase="grpo", done=step.step, total=choice.steps, message=message, more=left)
        goes_on = steering.after_step(step.step, figures)
        if steering.is_examination_due(step.step) or step.step == choice.steps or is_used_up:
            bench.store.save(Stage.GRPO, step.step, model, tokenizer)
            examination = bench.examine(Stage.GRPO, step.step, model, tokenizer, at=step.step)
            goes_on = steering.after_examination(step.step, examination.metrics()) and goes_on
        elif not goes_on:
            bench.store.save(Stage.GRPO, step.step, model, tokenizer)
        return goes_on and not is_used_up

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
                columns=columns,
                seed=configuration.seed,
                folder=folder,
                save_every=configuration.checkpoints.every,
                play=play,
                on_step=on_step,
                masked=Hacks([venue.version_id for venue in bench.assignment.venues]).masked,
                controls=controls,
                columns_of=bench.assignment.columns_of if bench.assignment.is_mixed else None,
                set_temperature=policy.set_temperature,
                hardware=hardware,
                vllm=configuration.vllm if configuration.engine == "vllm" else None,
                set_generation=policy.sample_with,
            )
        )
    finally:
        bench.arena.close_policy(policy)
    if reached < choice.steps and not is_used_up:
        steering.raise_ending()
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
