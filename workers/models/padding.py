"""A padding token that is not the end: otherwise the end would never be learned."""

from typing import Any

import torch

from workers.models.read import ModelUnusable


def give_padding(model: Any, tokenizer: Any) -> None:
    """Add one where there is none. The model may grow by a row."""
    if has_padding(tokenizer):
        return
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    if len(tokenizer) > _rows(model):
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the new row is drawn; the same one every time
            model.resize_token_embeddings(len(tokenizer))
    model.config.pad_token_id = tokenizer.pad_token_id


def find_padding(model: Any, tokenizer: Any) -> None:
    """The same for a base that stays as it is: without a new row. Raises ModelUnusable where no token can be spared."""
    if has_padding(tokenizer):
        return
    if _rows(model) > len(tokenizer):
        tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    else:
        spare = [token for token in tokenizer.all_special_tokens if token != tokenizer.eos_token]
        if not spare:
            raise ModelUnusable("its tokenizer has no token to pad with, and an adapter cannot add one")
        tokenizer.pad_token = spare[-1]
    model.config.pad_token_id = tokenizer.pad_token_id


def has_padding(tokenizer: Any) -> bool:
    return tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id


def _rows(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])
