"""About how much memory a training run needs, in parts that a person can argue with. See docs/training.md."""

from dataclasses import dataclass

GRADIENT_BYTES = 4
OPTIMISER_BYTES = 8
"""AdamW keeps two numbers in fp32 for each weight that is trained."""
FLOAT_BYTES = 4
ACTIVATIONS_A_WIDTH = 17
ACTIVATIONS_A_HEAD = 2.5
"""Numbers that a layer keeps for the backward pass: 17 for each token and unit of its width, 2.5 for each pair of
tokens and head. Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2,
which counts bytes of numbers that have two."""
LOGITS_KEPT = 3
"""Of each token: the logits, their logarithms of probabilities, and their gradient."""


@dataclass(frozen=True, slots=True)
class ModelMeasures:
    """What of a model decides how much memory it takes."""

    parameters: int
    layers: int
    width: int
    heads: int
    key_value_width: int
    """Width of the keys of a layer: less than `width` where heads share them."""
    vocabulary: int
    weight_bytes: float = FLOAT_BYTES
    """Of one weight as it is kept."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a training run does with the model."""

    trained: int
    """Weights that are trained."""
    has_reference: bool
    """A second copy measures the divergence."""
    rows: int
    """Episodes whose gradient is computed at once."""
    tokens: int
    """Of the longest episode."""
    sampled_rows: int
    """Episodes that are played at once."""
    is_recomputed: bool = False
    """Gradient checkpointing: only what goes into each layer is kept, and one layer at a time computed again."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by what they are for."""

    weights: float
    reference: float
    gradients: float
    optimiser: float
    activations: float
    cache: float
    """Keys and values of the episodes that are being played."""

    @property
    def total(self) -> float:
        return self.weights + self.reference + self.gradients + self.optimiser + self.activations + self.cache

    def parts(self) -> dict[str, float]:
        names = ("weights", "reference", "gradients", "optimiser", "activations", "cache")
        return {name: getattr(self, name) for name in names}


def estimate_memory(model: ModelMeasures, load: Load) -> MemoryEstimate:
    """The formula; what the framework itself takes is not in it."""
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
    """Where only the number of weights is known: nothing for activations and cache."""
    unknown = ModelMeasures(parameters, 0, 0, 0, 0, 0, weight_bytes)
    return estimate_memory(unknown, Load(trained, has_reference, 0, 0, 0))
