"""A rollout among the best paid that is written like none of the others."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backend.domain.detectors.catalogue import FACES
from workers.detectors.base import FlagDraft, Limits, rollout_detector
from workers.detectors.environment_context import Scene
from workers.detectors.marking import draft_about, whole_reply
from workers.detectors.view import RolloutRow

BUCKETS = 1024
MOST_CHARACTERS = 2_000
SHORTEST = 40
"""Bytes: of shorter texts, trigrams say nothing."""
SMALLEST_SPREAD = 0.03
SMALLEST_DISTANCE = 0.5


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    best = _best(rows, limits["quantile"])
    if len(best) < limits["fewest"]:
        return []
    distances = _distances([_text(row) for row in best])
    middle = float(np.median(distances))
    spread = max(1.4826 * float(np.median(np.abs(distances - middle))), SMALLEST_SPREAD)
    return [
        _draft(row, distance, (distance - middle) / spread)
        for row, distance in zip(best, distances.tolist(), strict=True)
        if distance >= SMALLEST_DISTANCE and (distance - middle) / spread > limits["z"]
    ]


def _best(rows: Sequence[RolloutRow], quantile: float) -> list[RolloutRow]:
    limit = float(np.quantile([row.reward for row in rows], quantile))
    return [row for row in rows if row.reward >= limit and len(_text(row)) >= SHORTEST]


def _text(row: RolloutRow) -> bytes:
    return "\n".join(row.replies)[:MOST_CHARACTERS].lower().encode("utf-8", "replace")


def _distances(texts: Sequence[bytes]) -> NDArray[np.float32]:
    """1 - cosine to the centre of all, over hashed trigrams weighted by how few texts have them."""
    counts = np.stack([_trigrams(text) for text in texts])
    weights = np.log((1 + len(texts)) / (1 + np.count_nonzero(counts, axis=0))) + 1.0
    vectors = np.log1p(counts) * weights.astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    centre = vectors.mean(axis=0)
    return np.asarray(1.0 - vectors @ (centre / max(float(np.linalg.norm(centre)), 1e-9)), dtype=np.float32)


def _trigrams(text: bytes) -> NDArray[np.float32]:
    values = np.frombuffer(text, dtype=np.uint8).astype(np.uint32)
    hashed = (values[:-2] * 65_599 + values[1:-1] * 257 + values[2:] * 31) % BUCKETS
    return np.bincount(hashed, minlength=BUCKETS).astype(np.float32)


def _draft(row: RolloutRow, distance: float, z: float) -> FlagDraft:
    return draft_about(
        FACE,
        row,
        score=0.4 + 0.03 * min(z, 15.0),
        sentence=f"It earned {row.reward:.3f} like the best, and is written like none of them (distance {distance:.2f},"
        f" robust z {z:.1f}).",
        marks=whole_reply(row, len(row.replies) - 1),
        cluster="unlike the others",
    )


FACE = FACES["reward_outlier"]
DETECTOR = rollout_detector("reward_outlier", look_at)
