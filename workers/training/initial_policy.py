"""The policy before training: its weights, and its checkpoint with a held-out evaluation."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

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

READING_EPISODES = 96  # scripted episodes whose text a new tokenizer is built from
READING_CONVERSATIONS = 400  # stored conversations of each source that a new tokenizer is built from


def initial_checkpoint(context: TrainingContext) -> Checkpoint:
    row = context.store.find(Stage.UNTRAINED, 0)
    if row is None:
        model, tokenizer = starting_weights(context)
        ChatTokens(tokenizer)  # rejects a template that cannot render a conversation
        context.store.save(Stage.UNTRAINED, 0, model, tokenizer)
        row = context.store.find(Stage.UNTRAINED, 0)
        assert row is not None
    if not row.heldout:
        at = None if context.configuration.recipe.has_sft else 0
        context.evaluate_heldout(Stage.UNTRAINED, 0, *context.store.load(row), at=at)
    return row


def starting_weights(context: TrainingContext) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    configuration = context.configuration
    choice, seed = configuration.model, configuration.seed
    match choice.source:
        case "base":
            context.recorder.progress(phase="loading the base model", done=0, total=1, message=choice.base)
            return start_from_base(choice.base, configuration.adapter, seed=seed)
        case "checkpoint":
            with transaction() as session:
                checkpoint = session.get_one(Checkpoint, choice.checkpoint)
            return start_from_checkpoint(checkpoint, configuration.adapter, seed=seed)
    texts = _scripted_texts(context) if configuration.sft.uses("script") else []
    texts += texts_to_read(context, READING_CONVERSATIONS)
    agent = context.assignment.manifest.proctor.agent
    texts += [render_unparsable(agent.unparsable_message, "The reply is empty.")] * (READING_EPISODES // 4)
    tokenizer = build_tokenizer(texts, vocabulary=choice.vocabulary, context=choice.context, pieces=choice.pieces)
    return build_model(tokenizer, choice, seed=seed), tokenizer


def _scripted_texts(context: TrainingContext) -> list[str]:
    """Play the scripted policy without storing it, and return the text of its episodes."""
    context.recorder.progress(phase="reading the environment's text", done=0, total=READING_EPISODES)
    texts: dict[int, list[str]] = {}

    def take(rollout: Rollout) -> None:
        texts[rollout.group] = [str(message["content"]) for message in rollout.messages]

    context.env_pool.play(
        context.warm_up_plans(READING_EPISODES),
        ScriptedPolicy(context.configuration.sft.script),
        phase=Phase.WARM_UP,
        seed=context.configuration.seed,
        on_rollout=take,
    )
    return [text for group in sorted(texts) for text in texts[group]]
