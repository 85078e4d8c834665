"""Where tokens stand in a padded batch.

TRL pads short prompts on the left and passes no positions: a model then counts the padding too, reads every such
episode at other places than it was sampled at, and one with learned positions may run out of them.
"""

import inspect
from typing import Any

from peft import PeftModel


def count_without_padding(model: Any) -> None:
    """From now on, whoever passes an attention mask but no positions gets those of the tokens themselves."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    if "position_ids" in inspect.signature(type(base).forward).parameters:
        model.register_forward_pre_hook(_with_positions, with_kwargs=True)


def _with_positions(
    _: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask_BT = named.get("attention_mask")
    if mask_BT is None or mask_BT.dim() != 2 or named.get("position_ids") is not None or named.get("past_key_values"):
        return arguments, named
    return arguments, {**named, "position_ids": (mask_BT.long().cumsum(1) - 1).clamp(min=0)}
