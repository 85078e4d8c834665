"""Preference training: pairs of stored episodes, learned with TRL's DPOTrainer.

TRL's own collator counts every token after the prompt, also what the environment says between two replies. Pairs come
here with their tokens and masks, and `collate_pairs` counts the policy's tokens only.

`_DpoTrainer` overrides private methods of TRL 1.16, which is pinned exactly. Tests cover each of them.
"""

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerControl, TrainerState
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.training.configuration import Stage
from backend.domain.training.examples import Conversation
from backend.domain.training.preferences import PreferenceChoice
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.training.example_sources import LearningScope, conversations_of
from backend.training.preference_pairs import select_pairs, too_few
from workers.models.chat import ChatTokens
from workers.models.load import unrounded
from workers.training.checkpoints import newest_complete, reached_step, replace_file
from workers.training.context import TrainingContext, TrainingStopped, UsedUp
from workers.training.examples import BrokenStep, TrainingExample, example_of_conversation, example_order
from workers.training.hardware import resolve_hardware
from workers.training.ranks import StageRun
from workers.training.trl_base import StageListener, TimedTrainer, parts_of_step, shared_arguments, timed

PAIRS_FILE = "pairs.jsonl"
UNBOUNDED = 1 << 30
LOG_EVERY = 1
LOGGED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "rewards/chosen": "pairs/chosen",
    "rewards/rejected": "pairs/rejected",
    "rewards/margins": "pairs/margin",
    "rewards/accuracies": "pairs/accuracy",
}
"""Our curves by TRL's names. The implicit reward of an episode is β times the log-probability that it gained."""


@dataclass(frozen=True, slots=True)
class PairExample:
    """Tokens of a pair, whose prompts are equal."""

    chosen: TrainingExample
    rejected: TrainingExample

    @property
    def tokens(self) -> list[int]:
        """The longer episode, by which pairs of similar length share a batch."""
        return max(self.chosen.tokens, self.rejected.tokens, key=len)


def run_dpo(context: TrainingContext, start: Checkpoint) -> None:
    """Train from the weights of `start`, or from the trainer's last saved state, and evaluate."""
    store, recorder, choice = context.store, context.recorder, context.configuration.preferences
    folder = context.assignment.folder / Stage.DPO
    model, tokenizer = store.load(start)
    pairs = collect_pairs(context, model, tokenizer, folder)
    steps, every = choice.steps_for(len(pairs)), context.configuration.heldout.every
    reached, is_used_up = reached_step(folder), False
    last = store.find(Stage.DPO, steps)

    def evaluate(step: int) -> None:
        # a fresh copy: TRL changed the forward method of the model in training
        saved = store.find(Stage.DPO, step) or store.save(Stage.DPO, step, model, tokenizer)
        if not saved.heldout:
            context.evaluate_heldout(Stage.DPO, step, *store.load(saved), at=step)

    def on_step(step: int, figures: dict[str, float]) -> bool:
        nonlocal reached, is_used_up
        reached = step
        if figures and not math.isfinite(figures["loss"]):
            raise BrokenStep("the loss is not a number: lower preferences.learning_rate")
        recorder.metrics(step, figures)
        recorder.progress(phase=Stage.DPO, done=step, total=steps)
        is_used_up = context.is_used_up()
        if step % every == 0 or step == steps or is_used_up:
            evaluate(step)
        return not recorder.should_stop() and not is_used_up

    if last is None:
        recorder.log(f"DPO: {steps:,} steps of {choice.batch} out of {len(pairs):,} pairs")
        train_dpo(
            DpoRun(
                model=model,
                tokenizer=tokenizer,
                choice=choice,
                pairs=pairs,
                on_step=on_step,
                seed=context.configuration.seed,
                folder=folder,
                save_every=context.configuration.checkpoints.every,
                hardware=resolve_hardware(context.configuration.hardware),
            )
        )
        if is_used_up and reached < steps:
            raise UsedUp
        if reached < steps:
            raise TrainingStopped
    evaluate(steps)
    shutil.rmtree(folder, ignore_errors=True)


def collect_pairs(
    context: TrainingContext, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[PairExample]:
    """Return the run's pairs. Reads them back if they were collected before. Raises BrokenStep if there are too few."""
    file = folder / PAIRS_FILE
    if file.exists():
        with file.open() as lines:
            stored = [json.loads(line) for line in lines]
        return [PairExample(TrainingExample(**each["chosen"]), TrainingExample(**each["rejected"])) for each in stored]
    chat, configuration, run_id = ChatTokens(tokenizer), context.configuration, context.assignment.run_id
    by_model = getattr(model.config.get_text_config(), "max_position_embeddings", None) or UNBOUNDED
    longest = min(int(by_model), int(min(tokenizer.model_max_length or UNBOUNDED, UNBOUNDED)))
    versions = tuple(env.version_id for env in context.assignment.envs)
    with transaction() as session:
        scope = LearningScope(versions, configuration.seed, run_id, session.get_one(Run, run_id).created_at)
        try:
            selection = select_pairs(session, configuration, scope)
        except InvalidInput as error:
            raise BrokenStep(" ".join(error.fields.values())) from error
        ids = list(dict.fromkeys(id_ for pair in selection.pairs for id_ in (pair.chosen, pair.rejected)))
        conversations = {each.source: each for each in conversations_of(session, ids)}
    made = [
        pair_of(conversations[str(pair.chosen)], conversations[str(pair.rejected)], chat) for pair in selection.pairs
    ]
    usable = [pair for pair in made if pair is not None]
    pairs = [pair for pair in usable if len(pair.tokens) <= longest]
    skipped = {"with different prompts or no reply": len(made) - len(usable), "too long": len(usable) - len(pairs)}
    notes = "".join(f", {count:,} {why} skipped" for why, count in skipped.items() if count)
    context.recorder.log(f"{len(pairs):,} pairs from {selection.tasks:,} tasks{notes}", "warning" if notes else "info")
    context.summary["pairs"] = {
        "pairs": len(pairs),
        "tasks": selection.tasks,
        "verdicts": sum(pair.reason == "verdicts" for pair in selection.pairs),
        "rewards": sum(pair.reason == "rewards" for pair in selection.pairs),
        "skipped": len(made) - len(pairs),
    }
    if len(pairs) < configuration.preferences.fewest:
        raise BrokenStep(f"{too_few(selection, configuration.preferences.fewest)} Usable: {len(pairs):,}")
    replace_file(file, "".join(f"{json.dumps(asdict(pair))}\n" for pair in pairs))
    return pairs


def pair_of(chosen: Conversation, rejected: Conversation, chat: ChatTokens) -> PairExample | None:
    """Return the tokens of a pair, or None if the episodes do not begin alike or have no reply.

    All replies count. Replies that were not parsed, too: they are often why an episode was worse.
    """
    halves = []
    for half in (chosen, rejected):
        replies = sum(message["role"] == "assistant" for message in half.messages)
        halves.append(example_of_conversation(replace(half, learned=(True,) * replies), chat))
    first, second = halves
    if first is None or second is None or first.prompt != second.prompt or first.completion == second.completion:
        return None
    return PairExample(first, second)


@dataclass(slots=True, kw_only=True)
class DpoRun(StageRun):
    choice: PreferenceChoice
    pairs: Sequence[PairExample]
    on_step: Callable[[int, dict[str, float]], bool]
    """(step, figures) → whether to continue."""


class _DpoTrainer(TimedTrainer, DPOTrainer):  # type: ignore[misc]
    compute_loss = timed("compute_loss", "forward")

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        """Keep the dataset, which has tokens and masks."""
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask"]


def collate_pairs(rows: Sequence[dict[str, list[int]]], pad: int) -> dict[str, torch.Tensor]:
    """Return a batch as TRL expects it: all chosen episodes, then all rejected ones, padded on the right.

    `completion_mask` is 1 for the policy's tokens.
    """
    ids = [row[f"{half}_ids"] for half in ("chosen", "rejected") for row in rows]
    masks = [row[f"{half}_mask"] for half in ("chosen", "rejected") for row in rows]
    width = max(map(len, ids))
    return {
        "input_ids": torch.tensor([each + [pad] * (width - len(each)) for each in ids]),
        "attention_mask": torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each in ids]),
        "completion_mask": torch.tensor([each + [0] * (width - len(each)) for each in masks]),
    }


def train_dpo(run: DpoRun) -> None:
    """Train until the last step or until `on_step` returns False. Resumes from the newest complete state."""
    choice = run.choice
    steps = choice.steps_for(len(run.pairs))
    order = example_order(run.pairs, batch=choice.batch, steps=steps, seed=run.seed)
    halves = {"chosen": [pair.chosen for pair in run.pairs], "rejected": [pair.rejected for pair in run.pairs]}
    columns = {}
    for half, examples in halves.items():
        columns[f"{half}_ids"] = [example.tokens for example in examples]
        columns[f"{half}_mask"] = [[0] * len(example.prompt) + example.mask for example in examples]
    pad, listener = int(run.tokenizer.pad_token_id or 0), _DpoListener(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unrounded(run.model):
            listener.trainer = trainer = _DpoTrainer(
                model=run.model,
                args=DPOConfig(
                    max_steps=steps,
                    per_device_train_batch_size=choice.batch // choice.micro_batches,
                    gradient_accumulation_steps=choice.micro_batches,
                    lr_scheduler_type="cosine",
                    warmup_steps=min(choice.warmup_steps, steps // 2),
                    max_length=None,
                    loss_type=[choice.loss],
                    beta=choice.beta,
                    label_smoothing=choice.label_noise if choice.loss == "robust" else 0.0,
                    train_sampling_strategy="sequential",  # the pairs are laid out in order
                    logging_steps=LOG_EVERY,
                    save_steps=run.save_every,
                    **shared_arguments(run.model, choice, seed=run.seed, folder=run.folder, hardware=run.hardware),
                ),
                data_collator=lambda rows: collate_pairs(rows, pad),
                train_dataset=Dataset.from_dict(columns).select(order),
                processing_class=run.tokenizer,
                callbacks=[listener],
            )
        trainer.remove_callback(PrinterCallback)
        newest = newest_complete(run.folder)
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)


class _DpoListener(StageListener[DpoRun]):
    def on_log(
        self, _: object, state: TrainerState, control: TrainerControl, logs: dict[str, float], **__: object
    ) -> TrainerControl:
        if "loss" not in logs:
            return control
        now = time.monotonic()
        figures = {curve: float(logs[name]) for name, curve in LOGGED.items() if name in logs}
        spent, seconds = self.trainer.clock.take(), now - self.reported_at
        figures |= {f"seconds/{name}": value for name, value in parts_of_step(spent, seconds).items()}
        if not self.run.on_step(state.global_step, figures):
            control.should_save = control.should_training_stop = True
        self.reported_at = time.monotonic()  # the listener's time is not part of the steps
        return control
