"""Where a run begins: the policy before training, as a checkpoint with its examination."""

from typing import Any

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.environments.prompts import render_unparsable
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import Phase
from workers.models.build import build_model, build_tokenizer
from workers.models.chat import ChatTokens
from workers.models.load import start_from_base, start_from_checkpoint
from workers.policies.scripted import ScriptedPolicy
from workers.training.context import TrainingContext
from workers.training.example_sources import texts_to_read

READING_EPISODES = 96
"""Scripted episodes whose text the tokenizer is made from."""
READING_CONVERSATIONS = 400
"""Stored conversations, of each source that is learned from."""


def begin(bench: TrainingContext) -> Checkpoint:
    """The policy before training, as a checkpoint with its examination."""
    row = bench.store.find(Stage.UNTRAINED, 0)
    if row is None:
        model, tokenizer = starting_weights(bench)
        ChatTokens(tokenizer)  # a template that cannot carry a conversation is refused here
        bench.store.save(Stage.UNTRAINED, 0, model, tokenizer)
        row = bench.store.find(Stage.UNTRAINED, 0)
        assert row is not None
    if not row.heldout:
        at = None if bench.configuration.recipe.has_sft else 0
        bench.examine(Stage.UNTRAINED, 0, *bench.store.load(row), at=at)
    return row


def starting_weights(bench: TrainingContext) -> tuple[Any, Any]:
    choice = bench.configuration.model
    match choice.source:
        case "base":
            bench.recorder.progress(phase="loading the base model", done=0, total=1, message=choice.base)
            return start_from_base(choice.base, bench.configuration.adapter, seed=bench.configuration.seed)
        case "checkpoint":
            with transaction() as session:
                checkpoint = session.get_one(Checkpoint, choice.checkpoint)
            return start_from_checkpoint(checkpoint, bench.configuration.adapter, seed=bench.configuration.seed)
        case _:
            reading = _reading(bench)
            tokenizer = build_tokenizer(
                reading, vocabulary=choice.vocabulary, context=choice.context, pieces=choice.pieces
            )
            return build_model(tokenizer, choice, seed=bench.configuration.seed), tokenizer


def _reading(bench: TrainingContext) -> list[str]:
    """What the tokenizer is made from: the text that will be learned, and how the environment refuses a reply."""
    manifest = bench.assignment.manifest
    refusal = render_unparsable(manifest.proctor.agent.unparsable_message, "The reply is empty.")
    played = _scripted_texts(bench) if bench.configuration.sft.uses("script") else []
    return [*played, *texts_to_read(bench, READING_CONVERSATIONS)] + [refusal] * (READING_EPISODES // 4)


def _scripted_texts(bench: TrainingContext) -> list[str]:
    """The environment's own text, from scripted play that is not stored."""
    bench.recorder.progress(phase="reading the environment's text", done=0, total=READING_EPISODES)
    texts: dict[int, list[str]] = {}

    def take(rollout: Rollout) -> None:
        texts[rollout.group] = [str(message["content"]) for message in rollout.messages]

    bench.env_pool.play(
        bench.warm_up_plans(READING_EPISODES),
        ScriptedPolicy(bench.configuration.sft.script),
        phase=Phase.WARM_UP,
        seed=bench.configuration.seed,
        on_rollout=take,
    )
    return [text for group in sorted(texts) for text in texts[group]]
