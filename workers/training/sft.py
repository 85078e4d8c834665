"""The SFT warm-up: attempts with different seeds, TRL's SFTTrainer, and the gate to GRPO."""

import math
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from datasets import Dataset
from sqlalchemy import select
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.training.warm_up import HOPELESS, GateChoice, SftChoice
from backend.domain.vocabulary import RunStatus
from workers.models.build import build_model
from workers.models.load import Loaded, unrounded
from workers.training.checkpoints import newest_complete, reached_step
from workers.training.context import Ended, TrainingContext, TrainingOutcome, TrainingStopped, UsedUp
from workers.training.example_sources import collect_examples
from workers.training.examples import BrokenStep, TrainingExample, example_order
from workers.training.hardware import peak_memory_mb, resolve_hardware
from workers.training.heartbeats import ACTIVITY
from workers.training.ranks import Ranks, StageOrder, StageRun, leader_only
from workers.training.sharding import gather_weights
from workers.training.steering import WarmUpSteering
from workers.training.trl_base import StageListener, TimedTrainer, parts_of_step, shared_arguments, timed

LOG_EVERY = 5
SEED_STRIDE = 7919
"""Difference between the seeds of two attempts: large enough that runs with neighboring seeds never share one."""


def check_gate(context: TrainingContext, row: Checkpoint) -> None:
    """Pause the run with advice if GRPO would have nothing to learn from. A resumed run may pass."""
    gate = context.configuration.gate
    problems = gate_problems(gate, row)
    context.summary["gate"] = {"is_open": not problems, "problems": problems}
    if not problems:
        if not success_of(row):
            context.recorder.log("no held-out task succeeds yet, and gate.minimum_success allows it", "warning")
        return
    if context.assignment.was_gate_closed:
        context.recorder.log("the gate is closed, but the run was resumed: continuing", "warning")
        return
    advice = f"{gate_advice(gate, row)} Or resume this run to continue anyway."
    raise Ended(TrainingOutcome(RunStatus.PAUSED, f"After the warm-up {' and '.join(problems)}. {advice}"))


def gate_problems(gate: GateChoice, row: Checkpoint) -> list[str]:
    """Return the requirements that an evaluated checkpoint does not meet."""
    success, reward = success_of(row), row.heldout_reward
    problems = []
    if row.heldout["format"] < gate.minimum_format:
        share = f"only {row.heldout['format']:.0%} of replies could be parsed"
        problems.append(f"{share} (required: {gate.minimum_format:.0%})")
    if success < gate.minimum_success:
        share = f"{success:.1%} of held-out tasks succeed" if success else "no held-out task succeeds"
        problems.append(f"{share} (required: {gate.minimum_success:.1%})")
    if gate.minimum_reward is not None and (reward is None or reward < gate.minimum_reward):
        problems.append(f"the held-out reward is {reward or 0:.3f} (required: {gate.minimum_reward:g})")
    return problems


def success_of(row: Checkpoint) -> float:
    """Return the share of held-out tasks that succeeded, 0 if every rollout failed."""
    estimate = row.heldout.get("success")
    return float(estimate["mean"]) if estimate else 0.0


def gate_advice(gate: GateChoice, row: Checkpoint) -> str:
    retry = "" if gate.retries else ", or let it retry automatically (gate.retries)"
    if row.heldout["format"] < gate.minimum_format:
        seeds = "results of small models vary strongly by seed"
        return f"Warm up longer (sft.steps), with another seed or learning rate{retry}: {seeds}."
    if success_of(row) < min(gate.minimum_success, HOPELESS):
        return (
            "The format is right but the play is not: start with an easier level, or use more and better play "
            "(sft.episodes, another scripted policy, a teacher's rollouts). If the reward teaches before anything "
            "succeeds, set gate.minimum_success to 0."
        )
    return f"Warm up longer (sft.steps), on more or better play, or with another learning rate or seed{retry}."


@dataclass(frozen=True, slots=True)
class WarmUpAttempt:
    """One warm-up from the start. Its steps continue the numbering of earlier attempts."""

    number: int
    seed: int
    before: int
    steps: int

    @property
    def last(self) -> int:
        return self.before + self.steps


def attempts_of(configuration: TrainingConfiguration) -> list[WarmUpAttempt]:
    """Return all possible attempts: one, unless a gate follows and allows retries."""
    gate, steps, before = configuration.gate, configuration.sft.steps, 0
    attempts = []
    for number in range(1, 2 + (gate.retries if configuration.recipe.has_grpo else 0)):
        seed = (configuration.seed + SEED_STRIDE * (number - 1)) % 2**31
        attempts.append(WarmUpAttempt(number, seed, before, steps))
        before, steps = before + steps, round(steps * gate.lengthen)
    return attempts


def run_sft(context: TrainingContext, start: Checkpoint) -> Checkpoint:
    """Return the warmed-up checkpoint with its held-out evaluation.

    It is the best of the first attempt that passes the gate, otherwise the best of all. A resume keeps the choice.
    """
    attempts, gate = attempts_of(context.configuration), context.configuration.gate

    def merit(row: Checkpoint) -> tuple[float, int]:
        return (-math.inf if row.heldout_reward is None else row.heldout_reward, -row.step)

    # evaluated as the start of GRPO, with stored rollouts
    final = [row for row in _checkpoints(context, 0, attempts[-1].last) if row.heldout.get("training_step") is not None]
    chosen = final[0] if final else None
    tried: list[tuple[WarmUpAttempt, Checkpoint]] = []
    for attempt in attempts:
        if final and context.store.find(Stage.SFT, attempt.last) is None:
            break
        last = context.store.find(Stage.SFT, attempt.last) or _train(context, start, attempt)
        if not last.heldout:
            selects = context.configuration.sft.examine_every > 0 or len(attempts) > 1
            context.evaluate_heldout(Stage.SFT, last.step, *context.store.load(last), at=0, is_stored=not selects)
        evaluated = [row for row in _checkpoints(context, attempt.before, attempt.last) if row.heldout]
        row = max(evaluated, key=merit)  # the earlier one of two equally good
        tried.append((attempt, row))
        if final:
            continue
        problems = gate_problems(gate, row)
        if len(attempts) == 1 or not problems:
            chosen = row
            break
        prefix = f"warm-up, attempt {attempt.number} of {len(attempts)}"
        context.recorder.log(f"{prefix}: {' and '.join(problems)}", "warning")
    if chosen is None:
        chosen = max((row for _, row in tried), key=merit)
    context.summary["warm_up"] = {
        "attempts": [
            {
                **asdict(attempt),
                "best": row.step,
                "reward": row.heldout_reward,
                "format": row.heldout["format"],
                "success": success_of(row),
                "problems": gate_problems(gate, row),
                "is_chosen": row.id == chosen.id,
            }
            for attempt, row in tried
        ]
    }
    if chosen.heldout.get("training_step") is None:
        context.evaluate_heldout(Stage.SFT, chosen.step, *context.store.load(chosen), at=0)
    shutil.rmtree(context.assignment.folder / Stage.SFT, ignore_errors=True)
    start_of_grpo = context.store.find(Stage.SFT, chosen.step)
    assert start_of_grpo is not None
    return start_of_grpo


def _checkpoints(context: TrainingContext, before: int, last: int) -> Sequence[Checkpoint]:
    of_run = (Checkpoint.run_id == context.assignment.run_id, Checkpoint.stage == Stage.SFT)
    steps = (Checkpoint.step > before, Checkpoint.step <= last)
    with transaction() as session:
        return session.scalars(select(Checkpoint).where(*of_run, *steps).order_by(Checkpoint.step)).all()


def _train(context: TrainingContext, start: Checkpoint, attempt: WarmUpAttempt) -> Checkpoint:
    configuration, recorder, store = context.configuration, context.recorder, context.store
    choice = configuration.sft
    model, tokenizer = store.load(start)
    if attempt.number > 1 and configuration.model.source == "scratch":
        model = build_model(tokenizer, configuration.model, seed=attempt.seed)
    examples = collect_examples(context, model, tokenizer)
    examples_folder = context.assignment.folder / Stage.SFT
    folder = examples_folder if attempt.number == 1 else examples_folder / f"attempt-{attempt.number}"
    reached = reached_step(folder)
    steering = WarmUpSteering(context, before=attempt.before, reached=reached, steps=attempt.steps)
    suffix = f", attempt {attempt.number}" if attempt.number > 1 else ""

    def on_step(step: int, figures: dict[str, float]) -> bool:
        nonlocal reached
        reached = step
        at = attempt.before + step
        if figures:
            recorder.metrics(at, {f"sft/{name}": value for name, value in figures.items()})
            steering.after_step(step, figures)
        elif choice.examine_every and step % choice.examine_every == 0 and step < attempt.steps:
            saved = store.save(Stage.SFT, at, model, tokenizer)
            if not saved.heldout:  # a resumed run passes some steps again
                context.evaluate_heldout(Stage.SFT, at, model, tokenizer, at=0, is_stored=False)
        recorder.progress(phase="sft", done=step, total=attempt.steps, message=suffix)
        return not recorder.should_stop() and not context.budget_tracker.used_up()

    recorder.log(
        f"SFT{suffix}: {attempt.steps:,} steps of {choice.batch} out of {len(examples):,} training examples, "
        f"seed {attempt.seed}"
    )
    order = StageOrder(
        stage=Stage.SFT,
        weights=str(store.folder_of(start)),
        examples=str(examples_folder),
        folder=str(folder),
        steps=attempt.steps,
        seed=attempt.seed,
        save_every=max(configuration.checkpoints.every, attempt.steps // 10),
        checkpoints_gradients=steering.settings.hardware.gradient_checkpointing,
    )
    context.ranks.decide(lambda: asdict(order))
    run = sft_run(configuration, order, context.ranks, (model, tokenizer), examples)
    run.on_step, run.rate_factor = on_step, steering.rate_factor
    train_sft(run)
    if reached < attempt.steps and context.is_used_up():
        store.save(Stage.SFT, attempt.before + reached, model, tokenizer)
        context.evaluate_heldout(Stage.SFT, attempt.before + reached, model, tokenizer, at=0)
        raise UsedUp
    if reached < attempt.steps:
        raise TrainingStopped
    return store.save(Stage.SFT, attempt.last, model, tokenizer)


@dataclass(slots=True, kw_only=True)
class SftRun(StageRun):
    choice: SftChoice
    examples: Sequence[TrainingExample]
    on_step: Callable[[int, dict[str, float]], bool] = leader_only
    """(step, figures, which are empty between logs) → whether to continue."""
    rate_factor: Callable[[int], float] = lambda _: 1.0  # factor of the scheduled rate at a step, from 1; leader only


def sft_run(
    configuration: TrainingConfiguration,
    order: StageOrder,
    ranks: Ranks,
    loaded: Loaded,
    examples: list[TrainingExample],
) -> SftRun:
    """Return the warm-up or round of an order, as it is on every rank."""
    return SftRun(
        model=loaded[0],
        tokenizer=loaded[1],
        choice=configuration.imitation.model_copy(update={"steps": order.steps}),
        examples=examples,
        seed=order.seed,
        folder=Path(order.folder),
        save_every=order.save_every,
        hardware=replace(resolve_hardware(configuration.hardware), checkpoints_gradients=order.checkpoints_gradients),
        ranks=ranks,
    )


class _SftTrainer(TimedTrainer, SFTTrainer):  # type: ignore[misc]
    compute_loss = timed("compute_loss", "forward")


def train_sft(run: SftRun) -> None:
    """Train until the last step or until `on_step` returns False. Resumes from the newest complete state."""
    if not run.examples:
        raise BrokenStep("there are no training examples to learn from")
    choice = run.choice
    order = example_order(run.examples, batch=choice.batch, steps=choice.steps, seed=run.seed)
    # with tokens and labels, TRL neither renders nor masks anything
    columns = {
        "input_ids": [example.tokens for example in run.examples],
        "labels": [example.labels for example in run.examples],
    }
    listener = _SftListener(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unrounded(run.model):
            listener.trainer = trainer = _SftTrainer(
                model=run.model,
                args=SFTConfig(
                    max_steps=choice.steps,
                    per_device_train_batch_size=choice.batch // run.ranks.count,
                    lr_scheduler_type="cosine",
                    warmup_steps=min(choice.warmup_steps, choice.steps // 2),
                    max_length=None,
                    packing=False,
                    train_sampling_strategy="sequential",  # the examples are laid out in order
                    dataset_kwargs={"skip_prepare_dataset": True},
                    logging_steps=LOG_EVERY,
                    save_steps=run.save_every,
                    **shared_arguments(run.model, choice, seed=run.seed, folder=run.folder, hardware=run.hardware),
                ),
                train_dataset=Dataset.from_dict(columns).select(order),
                processing_class=run.tokenizer,
                callbacks=[listener],
                is_sharded=run.hardware.is_sharded,
            )
        trainer.remove_callback(PrinterCallback)
        newest = newest_complete(run.folder)
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
        gather_weights(run.model)


class _SftListener(StageListener[SftRun]):
    _reported_step = 0
    _reported_tokens = 0.0

    def on_train_begin(self, _: object, state: TrainerState, *__: object, **___: object) -> None:
        self.reported_at, self._reported_step = time.monotonic(), state.global_step

    def on_step_begin(self, _: object, state: TrainerState, *__: object, **___: object) -> None:
        ACTIVITY.begin(f"learning in step {state.global_step + 1}")
        self.rate_factor = self.run.ranks.decide(lambda: self.run.rate_factor(state.global_step + 1))

    def on_step_end(self, _: object, state: TrainerState, control: TrainerControl, **__: object) -> TrainerControl:
        return self._report(state.global_step, {}, control)

    def on_log(
        self, _: object, state: TrainerState, control: TrainerControl, logs: dict[str, float], **__: object
    ) -> TrainerControl:
        if "loss" not in logs:
            return control
        names = ("loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy")
        figures = {name: float(logs[name]) for name in names if name in logs}
        if "learning_rate" in figures:
            figures["learning_rate"] *= self.rate_factor
        now, spent, tokens = time.monotonic(), self.trainer.clock.take(), logs.get("num_tokens")
        seconds, steps = now - self.reported_at, max(1, state.global_step - self._reported_step)
        is_known = tokens is not None and seconds > 0
        figures["tokens_per_second"] = ((tokens or 0.0) - self._reported_tokens) / seconds if is_known else math.nan
        figures["memory/peak_mb"] = peak_memory_mb()
        self.reported_at, self._reported_step, self._reported_tokens = now, state.global_step, tokens or 0.0
        figures |= {f"seconds/{name}": value / steps for name, value in parts_of_step(spent, seconds).items()}
        return self._report(state.global_step, figures, control)

    def _report(self, step: int, figures: dict[str, float], control: TrainerControl) -> TrainerControl:
        began = time.monotonic()
        every = self.run.choice.examine_every
        if every and step % every == 0 and not figures:
            gather_weights(self.run.model)  # the leader may save and evaluate them
        if not self.run.ranks.decide(lambda: self.run.on_step(step, figures)):
            control.should_save = control.should_training_stop = True
        self.reported_at += time.monotonic() - began  # the listener's time is not part of the steps
        return control
