"""Build a small causal language model and its tokenizer without a download. The result depends only on the seed."""

from collections.abc import Iterable, Mapping

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from backend.domain.training.configuration import ModelChoice, Pieces
from backend.domain.training.memory import MAX_PARAMETERS, SHAPES

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{- '<|assistant|>' }}{% generation %}{{- message['content'] + '<|end|>' }}{% endgeneration %}"
    "{%- elif message['role'] == 'system' %}{{- '<|system|>' + message['content'] + '<|end|>' }}"
    "{%- else %}{{- '<|user|>' + message['content'] + '<|end|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
"""One token per role and one that ends every message: short conversations make training on a CPU fast."""

_TAG = r"</?[A-Za-z][A-Za-z0-9_-]*>"
_ISOLATED: Mapping[Pieces, str] = {"signs": _TAG + r"|[0-9]|[A-Z](?![a-z])|(?<![a-z])[^\w\s]|\n", "phrases": _TAG}
"""Text that is never merged with its neighbors. Tags, digits, single capitals, punctuation that follows no word, and
line breaks carry the state of a game. Phrases between them may become one token, so that fixed instructions cost
little."""


def build_tokenizer(
    texts: Iterable[str], *, vocabulary: int = 384, context: int = 256, pieces: Pieces = "signs"
) -> PreTrainedTokenizerFast:
    """Train byte-level BPE on these texts. It can encode any text, and the environment's own in few tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_ISOLATED[pieces]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast, choice: ModelChoice, *, seed: int) -> PreTrainedModel:
    """Create an untrained model in fp32. Its weights depend only on the seed and the choice."""
    shape = SHAPES[choice.size]
    shared = {
        "vocab_size": len(tokenizer),
        "initializer_range": choice.initializer_range,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if choice.architecture == "gpt2":
            model = GPT2LMHeadModel(
                GPT2Config(
                    n_embd=shape.width,
                    n_layer=shape.layers,
                    n_head=shape.heads,
                    n_inner=4 * shape.width,
                    n_positions=choice.context,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                    activation_function="gelu_pytorch_tanh",
                    bos_token_id=tokenizer.eos_token_id,
                    **shared,
                )
            )
        else:
            model = LlamaForCausalLM(
                LlamaConfig(
                    hidden_size=shape.width,
                    num_hidden_layers=shape.layers,
                    num_attention_heads=shape.heads,
                    num_key_value_heads=shape.heads,
                    intermediate_size=3 * shape.width,
                    max_position_embeddings=choice.context,
                    tie_word_embeddings=True,
                    bos_token_id=None,
                    **shared,
                )
            )
    model = model.float()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.do_sample = True
    count = model.num_parameters()
    if count > MAX_PARAMETERS:
        raise ValueError(f"{count:,} parameters; a model built here has at most {MAX_PARAMETERS:,}")
    return model
