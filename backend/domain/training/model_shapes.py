"""Sizes of models: the shapes of those created here, and the number of weights in a name."""

import re
from dataclasses import dataclass

BYTES_OF_FLOAT = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model from scratch."""

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
