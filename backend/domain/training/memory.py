"""An estimate of the memory that a training run needs, by part. See docs/training.md."""

from dataclasses import dataclass

GRADIENT_BYTES = 4
OPTIMISER_BYTES = 8
"""AdamW keeps two fp32 numbers for each trained weight."""
FLOAT_BYTES = 4
ACTIVATIONS_A_WIDTH = 17
ACTIVATIONS_A_HEAD = 2.5
"""Numbers that a layer stores for the backward pass: 17 per token and unit of its width, 2.5 per pair of tokens and
head. Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2,
which counts bytes of 2-byte numbers."""
LOGITS_KEPT = 3
"""Copies per token: the logits, their log probabilities, and their gradient."""


@dataclass(frozen=True, slots=True)
class ModelMeasures:
    """The measures of a model that determine its memory."""

    parameters: int
    layers: int
    width: int
    heads: int
    key_value_width: int
    """Width of the keys of a layer: less than `width` if heads share them."""
    vocabulary: int
    weight_bytes: float = FLOAT_BYTES
    """Bytes of one stored weight."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a training run uses the model."""

    trained: int
    """Number of trained weights."""
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

    @property
    def total(self) -> float:
        return self.weights + self.reference + self.gradients + self.optimiser + self.activations + self.cache

    def parts(self) -> dict[str, float]:
        names = ("weights", "reference", "gradients", "optimiser", "activations", "cache")
        return {name: getattr(self, name) for name in names}


def estimate_memory(model: ModelMeasures, load: Load) -> MemoryEstimate:
    """Estimate the memory, without that of the framework."""
    weights = model.parameters * model.weight_bytes
    attention = ACTIVATIONS_A_HEAD * model.heads * load.tokens
    a_layer = ACTIVATIONS_A_WIDTH * model.width + attention
    layers = model.layers * model.width + a_layer if load.is_recomputed else model.layers * a_layer
    a_token = layers + LOGITS_KEPT * model.vocabulary
    return MemoryEstimate(
        weights=weights,
        reference=weights if load.has_reference else 0.0,
        gradients=float(load.trained * GRADIENT_BYTES),
        optimiser=float(load.trained * OPTIMISER_BYTES),
        activations=load.rows * load.tokens * a_token * FLOAT_BYTES,
        cache=float(load.sampled_rows * load.tokens * model.layers * 2 * model.key_value_width * FLOAT_BYTES),
    )


def least_memory(parameters: int, *, trained: int, has_reference: bool, weight_bytes: float) -> MemoryEstimate:
    """A lower bound if only the number of weights is known: without activations and cache."""
    unknown = ModelMeasures(parameters, 0, 0, 0, 0, 0, weight_bytes)
    return estimate_memory(unknown, Load(trained, has_reference, 0, 0, 0))
