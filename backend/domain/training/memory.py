"""Sizes of models, and an estimate of the memory that a training run needs, by part. See docs/training.md."""

import re
from dataclasses import asdict, dataclass
from math import ceil

FLOAT_BYTES = 4
ROUNDED_BYTES = 2
TILE_TOKENS, TILE_WIDTH = 4096, 32_768
"""TRL 1.16 computes logits in tiles of this size, only where a token is scored."""
TILES_ON_A_CPU = 8
"""A tile, its gradient, and what torch computes in between. On a GPU, one kernel needs one tile."""
LIBRARIES_BYTES = 700 * 2**20
"""Resident memory of a training process on a CPU whose model takes next to nothing: Python, torch, transformers, TRL
and the database client."""
UNRETURNED = 0.8
"""Share of a pass's memory that stays in a process on a CPU when it is freed, because the next pass has other shapes
and does not fit into the holes. Measured: processes had 1.2 to 2 times the memory that their passes used."""


@dataclass(frozen=True, slots=True)
class ModelMeasures:
    parameters: int
    layers: int
    width: int
    key_value_width: int
    """Width of the keys of a layer: less than `width` if heads share them."""
    vocabulary: int
    token_bytes: float
    """Bytes that all layers together store per token for the backward pass."""
    rounded_bytes: float = 0.0
    """Bytes of rounded weights that a pass in mixed precision stores, whatever the number of tokens."""
    weight_bytes: float = FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class EpisodeLengths:
    """Lengths of episodes, in tokens."""

    longest: int
    prompt: int = 0
    """Tokens before the first reply."""
    scored: float | None = None
    """Mean number of tokens whose logits are computed. None: all."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one stage of a run needs memory for."""

    trained: int
    has_reference: bool
    """A second copy of the weights is the reference of the KL divergence."""
    rows: int
    """Episodes of a micro-batch."""
    lengths: EpisodeLengths
    sampled_rows: int
    """Episodes that are sampled at the same time."""
    sharing: int = 1
    """Episodes of a micro-batch whose common prompt is computed once."""
    is_recomputed: bool = False
    """Gradient checkpointing: only the input of each layer is stored, and one layer at a time is recomputed."""
    samples_ahead: bool = False
    """A second process holds a copy of the weights to sample from."""
    shards: int = 1
    """Processes that divide weights, gradients and optimizer state. Each still holds the whole weights to sample."""
    on_cpu: bool = False
    """The process's resident memory counts, not the tensors on a GPU."""
    copied_bytes: float = 0.0
    """Bytes of each weight that sampling on a CPU copies, rounded or with a merged adapter."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose."""

    weights: float
    reference: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    cache: float
    """Keys and values of the episodes that are being sampled."""
    sampler: float = 0.0
    """Weights that are copied to sample from them, here or in the process that samples ahead."""
    libraries: float = 0.0
    unreturned: float = 0.0
    """Freed memory that the process keeps."""

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values()))


def estimate_memory(model: ModelMeasures, load: Load) -> MemoryEstimate:
    """Estimate the memory of a stage. On a GPU, without that of the framework."""
    weights, lengths = model.parameters * model.weight_bytes, load.lengths
    computed = load.rows * lengths.longest - (load.rows - ceil(load.rows / load.sharing)) * lengths.prompt
    activations = computed * model.token_bytes + (model.rounded_bytes if computed else 0.0)
    if load.is_recomputed:
        stored = model.layers * model.width * FLOAT_BYTES
        activations = computed * (stored + model.token_bytes / max(model.layers, 1))
    scored = load.rows * (lengths.longest if lengths.scored is None else lengths.scored)
    tile = min(scored, TILE_TOKENS) * min(model.vocabulary, TILE_WIDTH) * FLOAT_BYTES
    logits = tile * (TILES_ON_A_CPU if load.on_cpu else 1)
    a_token = model.layers * 2 * model.key_value_width * FLOAT_BYTES
    return MemoryEstimate(
        weights=weights if load.shards == 1 else weights + weights / load.shards,
        reference=weights / load.shards if load.has_reference else 0.0,
        gradients=load.trained * 4 / load.shards,
        optimiser=load.trained * 8 / load.shards,  # AdamW keeps two fp32 numbers for each trained weight
        activations=float(activations),
        logits=float(logits),
        cache=float(load.sampled_rows * lengths.longest * a_token),
        sampler=model.parameters * load.copied_bytes + (weights if load.samples_ahead else 0.0),
        libraries=LIBRARIES_BYTES if load.on_cpu else 0.0,
        unreturned=UNRETURNED * (activations + logits) if load.on_cpu else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    width: int
    layers: int
    heads: int


SHAPES = {"tiny": Shape(64, 2, 4), "mini": Shape(64, 3, 4), "small": Shape(128, 4, 4), "medium": Shape(256, 5, 8)}
MAX_PARAMETERS = 5_000_000
WIDTHS_A_TOKEN = {"gpt2": 28.0, "llama": 21.0}
"""Numbers that a layer of a model from scratch stores per token and unit of its width, as measured. Attention itself
stores nothing per pair of tokens, because PyTorch's fused kernels recompute it."""
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
