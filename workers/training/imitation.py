"""SFT, with an examination now and then, and once more with another seed while the gate stays closed."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.training.configuration import Stage, TrainingConfiguration
from workers.models.build import build_model
from workers.training.context import Stopped, TrainingContext, UsedUp
from workers.training.example_sources import gathered_lessons
from workers.training.gate import gate_problems, success_of
from workers.training.hardware import settle
from workers.training.ranks.orders import SftOrder
from workers.training.resume import newest_complete, step_of
from workers.training.steering import WarmUpSteering
from workers.training.trl_sft import SftRun, train_sft

_SEED_STRIDE = 7919
"""Between the seeds of two attempts: far enough that runs with neighbouring seeds never share one."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One warm-up from the start. Its steps are counted on from those of the attempts before it."""

    number: int
    """From 1."""
    seed: int
    before: int
    """Steps of earlier attempts."""
    steps: int

    @property
    def last(self) -> int:
        """The step of its last checkpoint."""
        return self.before + self.steps


def attempts_of(configuration: TrainingConfiguration) -> list[Attempt]:
    """All that there may be; without a gate behind it, or further tries, it is one."""
    gate, steps, before = configuration.gate, configuration.sft.steps, 0
    attempts = []
    for number in range(1, 2 + (gate.retries if configuration.recipe.has_grpo else 0)):
        seed = (configuration.seed + _SEED_STRIDE * (number - 1)) % 2**31
        attempts.append(Attempt(number, seed, before, steps))
        before, steps = before + steps, round(steps * gate.lengthen)
    return attempts


def run_sft(bench: TrainingContext, start: Checkpoint) -> Checkpoint:
    """The checkpoint that goes on, examined: the best of the first attempt that passes the gate, else of all."""
    tried, chosen = _tried(bench, start)
    bench.summary["warm_up"] = {"attempts": [_told(bench, attempt, row, chosen) for attempt, row in tried]}
    if not _is_settled(chosen):
        bench.examine(Stage.SFT, chosen.step, *bench.store.load(chosen), at=0)
    shutil.rmtree(bench.folder_of(Stage.SFT), ignore_errors=True)
    return _row(bench, chosen.step)


def _tried(bench: TrainingContext, start: Checkpoint) -> tuple[list[tuple[Attempt, Checkpoint]], Checkpoint]:
    """All attempts with their best checkpoints, and the one that goes on, which a resume does not change."""
    attempts = attempts_of(bench.configuration)
    settled = next((row for row in _rows(bench, 0, attempts[-1].last) if _is_settled(row)), None)
    tried: list[tuple[Attempt, Checkpoint]] = []
    for attempt in attempts:
        if settled is not None and bench.store.find(Stage.SFT, attempt.last) is None:
            break
        tried.append((attempt, _best_of(bench, start, attempt)))
        if settled is None and (len(attempts) == 1 or not _is_closed(bench, *tried[-1], of=len(attempts))):
            break
    if settled is not None:
        return tried, settled
    last = tried[-1][1]
    is_open = not gate_problems(bench.configuration.gate, last)
    return tried, last if is_open else max((row for _, row in tried), key=_merit)


def _is_settled(row: Checkpoint) -> bool:
    """Was it examined as what reinforcement starts from, its rollouts stored?"""
    return row.heldout.get("training_step") is not None


def _is_closed(bench: TrainingContext, attempt: Attempt, row: Checkpoint, *, of: int) -> bool:
    problems = gate_problems(bench.configuration.gate, row)
    if problems:
        bench.recorder.log(f"warm-up, attempt {attempt.number} of {of}: {' and '.join(problems)}", "warning")
    return bool(problems)


def _told(bench: TrainingContext, attempt: Attempt, row: Checkpoint, chosen: Checkpoint) -> dict[str, Any]:
    reached = {"reward": row.heldout_reward, "format": row.heldout["format"], "success": success_of(row)}
    problems = gate_problems(bench.configuration.gate, row)
    is_chosen = row.id == chosen.id
    return {**asdict(attempt), "best": row.step, **reached, "problems": problems, "is_chosen": is_chosen}


def _best_of(bench: TrainingContext, start: Checkpoint, attempt: Attempt) -> Checkpoint:
    """The attempt's best checkpoint by the examinations on its way, the earlier of two that are as good."""
    if bench.store.find(Stage.SFT, attempt.last) is None:
        _train(bench, start, attempt)
    last = _row(bench, attempt.last)
    if not last.heldout:
        model, tokenizer = bench.store.load(last)
        if _is_chosen_from_several(bench.configuration):
            bench.validate(Stage.SFT, last.step, model, tokenizer)
        else:
            bench.examine(Stage.SFT, last.step, model, tokenizer, at=0)
    of_attempt = _rows(bench, attempt.before, attempt.last)
    return max((row for row in of_attempt if row.heldout), key=_merit)


def _is_chosen_from_several(configuration: TrainingConfiguration) -> bool:
    return configuration.sft.examine_every > 0 or len(attempts_of(configuration)) > 1


def _merit(row: Checkpoint) -> tuple[float, int]:
    return (-math.inf if row.heldout_reward is None else row.heldout_reward, -row.step)


def _train(bench: TrainingContext, start: Checkpoint, attempt: Attempt) -> None:
    choice = bench.configuration.sft
    model, tokenizer = _weights(bench, start, attempt)
    lessons = gathered_lessons(bench, model, tokenizer)
    folder = _states(bench, attempt)
    reached = step_of(newest_complete(folder))
    steering = WarmUpSteering(bench, before=attempt.before, reached=reached, steps=attempt.steps)

    def on_step(step: int, figures: dict[str, float]) -> bool:
        nonlocal reached
        reached = step
        at = attempt.before + step
        if figures:
            bench.recorder.metrics(at, {f"sft/{name}": value for name, value in figures.items()})
            steering.after_step(step, figures)
        elif choice.examine_every and step % choice.examine_every == 0 and step < attempt.steps:
            _examine_on_the_way(bench, at, model, tokenizer)
        bench.recorder.progress(phase="sft", done=step, total=attempt.steps, message=_which(attempt))
        return not bench.recorder.should_stop() and not bench.budget_tracker.used_up()

    bench.recorder.log(
        f"SFT{_which(attempt)}: {attempt.steps:,} steps of {choice.batch} out of {len(lessons):,} lessons, "
        f"seed {attempt.seed}"
    )
    save_every = max(bench.configuration.checkpoints.every, attempt.steps // 10)
    weights, kept = bench.store.folder_of(start), bench.folder_of(Stage.SFT)
    hardware = settle(steering.settings.hardware)
    order = SftOrder(
        str(weights), str(kept), str(folder), attempt.steps, attempt.seed, save_every, hardware.checkpoints_gradients
    )
    bench.ranks.tell(order.as_json())
    train_sft(
        SftRun(
            model=model,
            tokenizer=tokenizer,
            choice=choice.model_copy(update={"steps": attempt.steps}),
            lessons=lessons,
            seed=attempt.seed,
            folder=folder,
            save_every=save_every,
            on_step=on_step,
            rate_factor=steering.rate_factor,
            hardware=hardware,
            ranks=bench.ranks,
        )
    )
    if reached < attempt.steps and bench.is_used_up():
        bench.store.save(Stage.SFT, attempt.before + reached, model, tokenizer)
        bench.examine(Stage.SFT, attempt.before + reached, model, tokenizer, at=0)
        raise UsedUp
    if reached < attempt.steps:
        raise Stopped
    bench.store.save(Stage.SFT, attempt.last, model, tokenizer)


def _examine_on_the_way(bench: TrainingContext, step: int, model: Any, tokenizer: Any) -> None:
    """Not again where a resumed run comes by once more."""
    bench.store.save(Stage.SFT, step, model, tokenizer)
    if not _row(bench, step).heldout:
        bench.validate(Stage.SFT, step, model, tokenizer)


def _weights(bench: TrainingContext, start: Checkpoint, attempt: Attempt) -> tuple[Any, Any]:
    """Where an attempt begins: made from scratch, with the attempt's own seed; else the same weights again."""
    model, tokenizer = bench.store.load(start)
    choice = bench.configuration.model
    if attempt.number > 1 and choice.source == "scratch":
        model = build_model(tokenizer, choice, seed=attempt.seed)
    return model, tokenizer


def _states(bench: TrainingContext, attempt: Attempt) -> Path:
    folder = bench.folder_of(Stage.SFT)
    return folder if attempt.number == 1 else folder / f"attempt-{attempt.number}"


def _which(attempt: Attempt) -> str:
    return f", attempt {attempt.number}" if attempt.number > 1 else ""


def _row(bench: TrainingContext, step: int) -> Checkpoint:
    row = bench.store.find(Stage.SFT, step)
    assert row is not None
    return row


def _rows(bench: TrainingContext, before: int, last: int) -> Sequence[Checkpoint]:
    """The warm-up's checkpoints of these steps."""
    wanted = (
        Checkpoint.run_id == bench.assignment.run_id,
        Checkpoint.stage == Stage.SFT,
        Checkpoint.step > before,
        Checkpoint.step <= last,
    )
    with transaction() as session:
        return session.scalars(select(Checkpoint).where(*wanted).order_by(Checkpoint.step)).all()
