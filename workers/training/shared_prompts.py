"""Compute a group's prompt once in training: its members have different completions of the same prompt.

Shapes: B episodes, U different prompts, P tokens of a prompt, C tokens of a completion.
"""

import inspect

import torch
from peft import PeftModel
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from workers.models.load import LoadedModel

LEAST_PARAMETERS = 20_000_000
"""Below this size a second pass costs more than the tokens that it saves."""
LEAST_SAVED = 0.2
"""Share of a batch's tokens from which prompts are computed apart."""


def can_share_prompts(model: LoadedModel) -> bool:
    """Whether a completion can be computed from the keys and values of its prompt, and whether that is faster.

    On a GPU it would be too; there, memory and kernels for padded batches have not been measured.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = DynamicCache(config=base.config).layers
    return (
        next(base.parameters()).device.type == "cpu"
        and base.num_parameters() >= LEAST_PARAMETERS
        and not base.is_activation_checkpointing
        and bool(layers)
        and all(type(layer) is DynamicLayer for layer in layers)
        and "position_ids" in inspect.signature(type(base).forward).parameters
    )


def score_completions(
    model: LoadedModel, tokens_BT: torch.Tensor, mask_BT: torch.Tensor, completion: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return log-probabilities and entropies of the last `completion` tokens with TRL's fused head, and 0 for padding.

    Prompts are padded at their start and completions at their end. The gradient flows through the shared prompts.
    Returns None if too few tokens are shared.
    """
    prompt = tokens_BT.shape[1] - completion
    used = int(mask_BT[:, prompt:].any(0).sum())  # padding of all completions is left out
    unused = completion - used
    tokens_BT, mask_BT = tokens_BT[:, : prompt + used], mask_BT[:, : prompt + used]
    # the last token of a prompt predicts the first one of the completion, so it is computed with that
    hidden = prompt - 1
    marked_BP = tokens_BT[:, :hidden].masked_fill(mask_BT[:, :hidden] == 0, -1)
    different_UP, place_B = torch.unique(marked_BP, dim=0, return_inverse=True)
    saved = (len(tokens_BT) - len(different_UP)) * hidden + unused * len(tokens_BT)
    if hidden < 1 or saved < LEAST_SAVED * len(tokens_BT) * (prompt + completion):
        return None
    real_UP = (different_UP >= 0).long()
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    cache = DynamicCache(config=base.config)
    nothing = torch.full_like(different_UP, -100)
    model(
        input_ids=different_UP.clamp(min=0),
        attention_mask=real_UP,
        position_ids=(real_UP.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        labels=nothing,
        fused_lm_head=True,
    )
    cache.batch_select_indices(place_B)
    labels_BC = tokens_BT[:, hidden:].masked_fill(mask_BT[:, hidden:] == 0, -100)
    output = model(
        input_ids=tokens_BT[:, hidden:],
        attention_mask=mask_BT,
        position_ids=(mask_BT.long().cumsum(1) - 1).clamp(min=0)[:, hidden:],
        past_key_values=cache,
        labels=labels_BC,
        fused_lm_head=True,
    )
    return pad(output.log_probs, (0, unused)), pad(output.entropy, (0, unused))
