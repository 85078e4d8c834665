"""Sizes of models, and an estimate of the memory that a training run needs, by part. See docs/training.md."""

import re
from dataclasses import asdict, dataclass

FLOAT_BYTES = 4
ACTIVATIONS_A_WIDTH = 17
ACTIVATIONS_A_HEAD = 2.5
"""Numbers that a layer stores for the backward pass: 17 per token and unit of its width, 2.5 per pair of tokens and
head. Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2,
which counts bytes of 2-byte numbers."""


@dataclass(frozen=True, slots=True)
class ModelMeasures:
    parameters: int
    layers: int
    width: int
    heads: int
    key_value_width: int
    """Width of the keys of a layer: less than `width` if heads share them."""
    vocabulary: int
    weight_bytes: float = FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Load:
    trained: int
    has_reference: bool
    """A second copy of the weights is the reference of the KL divergence."""
    rows: int
    """Episodes of a micro-batch."""
    tokens: int
    """Length of the longest episode."""
    sampled_rows: int
    """Episodes that are sampled at the same time."""
    is_recomputed: bool = False
    """Gradient checkpointing: only the input of each layer is stored, and one layer at a time is recomputed."""
    samples_ahead: bool = False
    """A second process holds a copy of the weights to sample from."""
    shards: int = 1
    """Processes that divide weights, gradients and optimizer state. Each still holds the whole weights to sample."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose."""

    weights: float
    reference: float
    gradients: float
    optimiser: float
    activations: float
    cache: float
    """Keys and values of the episodes that are being sampled."""
    sampler: float = 0.0
    """Weights in the process that samples ahead."""

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values()))


def estimate_memory(model: ModelMeasures, load: Load) -> MemoryEstimate:
    """Estimate the memory, without that of the framework."""
    weights = model.parameters * model.weight_bytes
    attention = ACTIVATIONS_A_HEAD * model.heads * load.tokens
    a_layer = ACTIVATIONS_A_WIDTH * model.width + attention
    layers = model.layers * model.width + a_layer if load.is_recomputed else model.layers * a_layer
    a_token = layers + 3 * model.vocabulary  # the logits, their log probabilities, and their gradient
    return MemoryEstimate(
        weights=weights if load.shards == 1 else weights + weights / load.shards,
        reference=weights / load.shards if load.has_reference else 0.0,
        gradients=load.trained * 4 / load.shards,
        optimiser=load.trained * 8 / load.shards,  # AdamW keeps two fp32 numbers for each trained weight
        activations=load.rows * load.tokens * a_token * FLOAT_BYTES,
        cache=float(load.sampled_rows * load.tokens * model.layers * 2 * model.key_value_width * FLOAT_BYTES),
        sampler=weights if load.samples_ahead else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    width: int
    layers: int
    heads: int


SHAPES = {"tiny": Shape(64, 2, 4), "mini": Shape(64, 3, 4), "small": Shape(128, 4, 4), "medium": Shape(256, 5, 8)}
MAX_PARAMETERS = 5_000_000
_BILLIONS = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])", re.IGNORECASE)


def parameters_from_scratch(architecture: str, shape: Shape, *, vocabulary: int, context: int) -> int:
    """Number of weights of a model that `workers.models.build` creates; embeddings are tied."""
    width = shape.width
    if architecture == "gpt2":  # biases, four times as wide inside, learned positions
        per_layer, ends = 12 * width**2 + 13 * width, context * width + 2 * width
    else:  # no biases, three matrices three times as wide inside
        per_layer, ends = 13 * width**2 + 2 * width, width
    return vocabulary * width + shape.layers * per_layer + ends


def parameters_in_name(name: str) -> int | None:
    """Read the number of weights from a name like `Qwen/Qwen2.5-0.5B-Instruct`; None if it has none."""
    found = _BILLIONS.findall(name.rsplit("/", 1)[-1])
    if not found:
        return None
    number, unit = found[-1]
    return int(float(number) * (1e9 if unit.lower() == "b" else 1e6))
