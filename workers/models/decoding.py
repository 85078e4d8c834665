"""What makes decoding on a CPU fast: a cache that grows in place, and weights that are merged and rounded once.

Shapes: B rows, H key-value heads, T tokens, D numbers per head.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora import Linear as AdaptedLinear
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""Tokens for which a cache makes room at once. To copy the whole cache for each token took a fifth of a step's time."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, appended to a buffer with room for more. Both views are [B, H, T, D]."""

    keys: torch.Tensor
    values: torch.Tensor
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        length = held + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < length:
            buffers = tuple(
                torch.empty(*states.shape[:-2], length + ROOM, states.shape[-1], dtype=states.dtype, device=self.device)
                for states in (key_states, value_states)
            )
            self._buffers = (buffers[0], buffers[1])
            if held:
                for buffer, states in zip(self._buffers, (self.keys, self.values), strict=True):
                    buffer[..., :held, :] = states
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., held:length, :] = states
        self.keys, self.values = (buffer[..., :length, :] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._buffers = None  # of other rows


def new_cache(config: PretrainedConfig) -> DynamicCache:
    """An empty cache whose plain layers grow in place. Layers with a sliding window or a state stay as they are."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    return cache


class DecodingWeights:
    """The weights of linear layers as sampling multiplies them: rounded to bf16 with `is_bf16`, which training does at
    each product; otherwise with the adapter merged into a base in float32.

    An adapter is not merged in bf16: rounded together, the weights would differ from the ones that training multiplies.
    They are made for each batch: nothing shows reliably that an optimizer has changed a weight, because fused ones keep
    a tensor's version. They take their memory a second time, so there are none on a GPU, where both cost little.
    """

    def __init__(self, model: PreTrainedModel, *, is_bf16: bool) -> None:
        self._is_bf16 = is_bf16
        self._adapted: dict[torch.nn.Linear, AdaptedLinear] = {}
        linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
        if not is_bf16:
            adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
            self._adapted = {module.base_layer: module for module in adapted if module.base_layer in linear}
            linear = list(self._adapted)
        self._layers = [
            layer
            for layer in linear
            if type(layer.weight) is torch.nn.Parameter
            and layer.weight.device.type == "cpu"
            and layer.weight.dtype is torch.float32
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put them into the model. After the block it has its own weights again, the same tensors as before."""
        own = {layer: layer.weight for layer in self._layers}
        try:
            for layer in self._layers:
                layer.weight = self._made_of(layer)
                if adapted := self._adapted.get(layer):
                    adapted.merged_adapters.extend(adapted.active_adapters)
            yield
        finally:
            for layer, weight in own.items():
                layer.weight = weight
                if adapted := self._adapted.get(layer):
                    adapted.merged_adapters.clear()

    @torch.no_grad()
    def _made_of(self, layer: torch.nn.Linear) -> torch.nn.Parameter:
        made = layer.weight.detach()
        if adapted := self._adapted.get(layer):
            made = made + sum(adapted.get_delta_weight(name) for name in adapted.active_adapters)
        return torch.nn.Parameter(made.to(torch.bfloat16) if self._is_bf16 else made, requires_grad=False)
