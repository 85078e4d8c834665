"""What makes decoding on a CPU fast: a cache that grows in place, attention that packs query heads, and weights that
are merged, rounded and laid out once for many products.

Shapes: B rows, H key-value heads, Q query heads for each of them, T tokens, D numbers per head.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora import Linear as AdaptedLinear
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ROOM = 64
"""Tokens for which a cache makes room at once. To copy the whole cache for each token took a fifth of a step's time."""
LEAST_PACKED, LEAST_ROWS = 1 << 16, 8
"""Weights of a layer, and rows of a batch, from which weights are copied to another layout. With fewer rows, a product
takes the time of reading the weights, in any layout."""
PACKED_ATTENTION = "sdpa_packed"  # its name in transformers

Product = Callable[[torch.Tensor], torch.Tensor]


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, appended to a buffer with room for more. Both views are [B, H, T, D]."""

    keys: torch.Tensor
    values: torch.Tensor
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = key_states.device.type
        if torch.is_autocast_enabled(device):  # attention rounds them in any case: once instead of at each token
            dtype = torch.get_autocast_dtype(device)
            key_states, value_states = key_states.to(dtype), value_states.to(dtype)
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


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """Attention of transformers. The query heads that share keys are tokens of one head if there is one token.

    transformers does so with a mask only. Without one, torch's kernel for shared keys took five times as long in bf16.
    """
    shared = getattr(module, "num_key_value_groups", 1)
    if shared == 1 or query.shape[2] > 1 or attention_mask is not None:
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return attended, None
    query_BHQD = query.reshape(query.shape[0], -1, shared, query.shape[-1])
    attended_BHQD = scaled_dot_product_attention(query_BHQD, key, value, scale=scaling)
    return attended_BHQD.flatten(1, 2)[:, None], None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)


class DecodingWeights:
    """Linear layers as sampling computes them: rounded to bf16 with `is_bf16`, which training does at each product;
    otherwise with the adapter merged into a base in float32.

    An adapter is not merged in bf16: rounded together, the weights would differ from the ones that training multiplies.
    They are made for each batch: nothing shows reliably that an optimizer has changed a weight, because fused ones keep
    a tensor's version. They take their memory a second time, so there are none on a GPU, where they would save little.
    """

    def __init__(self, model: PreTrainedModel, *, is_bf16: bool) -> None:
        self._config = model.config
        self._dtype = torch.bfloat16 if is_bf16 else torch.float32
        self._linear = [
            module
            for module in model.modules()
            if type(module) is torch.nn.Linear
            and type(module.weight) is torch.nn.Parameter
            and module.weight.device.type == "cpu"
            and module.weight.dtype in {torch.float32, self._dtype}
            and "forward" not in vars(module)
        ]
        adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
        bases = set(self._linear)
        self._adapted = [module for module in adapted if module.base_layer in bases]

    @contextmanager
    def in_place(self, rows: int) -> Iterator[None]:
        """Let the model compute with them for a batch of `rows`, and afterwards with its own weights again."""
        attention = self._config._attn_implementation
        adapted = {module.base_layer: module for module in self._adapted if _is_plain(module)}
        is_packed = attention == "sdpa" and bool(self._linear) and not self._config.sub_configs
        try:
            if is_packed:
                self._config._attn_implementation = PACKED_ATTENTION
            for layer in self._linear:
                self._replace(layer, adapted.get(layer), rows)
            yield
        finally:
            if is_packed:
                self._config._attn_implementation = attention
            for module in (*self._linear, *adapted.values()):
                vars(module).pop("forward", None)

    @torch.no_grad()
    def _replace(self, layer: torch.nn.Linear, adapted: AdaptedLinear | None, rows: int) -> None:
        weight = layer.weight.detach()
        if adapted is None:
            vars(layer)["forward"] = _product(weight.to(self._dtype), layer.bias, rows)
            return
        [name] = adapted.active_adapters
        if self._dtype is torch.float32:
            vars(adapted)["forward"] = _product(weight + adapted.get_delta_weight(name), layer.bias, rows)
            return
        base, scaling = _product(weight.to(self._dtype), layer.bias, rows), adapted.scaling[name]
        down, up = (part[name].weight.detach().to(self._dtype) for part in (adapted.lora_A, adapted.lora_B))

        def product(inputs: torch.Tensor) -> torch.Tensor:
            inputs = inputs.to(down.dtype)
            result: torch.Tensor = base(inputs) + linear(linear(inputs, down), up) * scaling
            return result

        vars(adapted)["forward"] = product


def _is_plain(adapted: AdaptedLinear) -> bool:
    """Whether a layer has one adapter, of the usual kind, and nothing else that changes its result."""
    names = adapted.active_adapters
    return (
        len(names) == 1
        and names[0] in adapted.lora_A
        and names[0] not in adapted.lora_variant
        and adapted.lora_B[names[0]].bias is None
        and not adapted.disable_adapters
        and not adapted.merged
        and "forward" not in vars(adapted)
    )


def _product(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Product:
    """Return the function of a linear layer. A large weight is copied to the layout of oneDNN's kernel, which torch
    would make for each product: for 32 rows that took as long as 40% of the product itself."""
    dtype = weight.dtype
    bias = None if bias is None else bias.detach().to(dtype)
    can_pack = torch.backends.mkldnn.is_available() and (  # type: ignore[no-untyped-call]
        dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    if not can_pack or rows < LEAST_ROWS or weight.numel() < LEAST_PACKED:
        return lambda inputs: linear(inputs.to(dtype), weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda inputs: torch.ops.mkldnn._linear_pointwise(inputs.to(dtype), packed, bias, "none", [], "")
