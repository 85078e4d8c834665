"""One of the highest-reward rollouts, written unlike all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.domain.detectors.context import EnvironmentContext
from backend.domain.detectors.flags import FlagDraft, RolloutDetector, ThresholdValues, flag_rollout, whole_reply
from backend.domain.detectors.run_view import RolloutRow
from backend.domain.detectors.spec import DetectorSpec, Setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPEC = DetectorSpec(
    id="reward_outlier",
    title="Unlike other high-reward rollouts",
    description="One of the best rollouts is written unlike all others that earn as much.",
    formula="robust z of the cosine distance to the center of the rollouts with R ≥ p90, over hashed character"
    " trigrams with inverse frequencies, > 6; 20 such rollouts or more",
    source="distance to the medoid of the best rollouts; feature hashing, Weinberger et al. 2009",
    settings={
        "z": Setting(6.0, "Smallest robust z score of the distance."),
        "quantile": Setting(0.9, "Reward quantile from which rollouts are compared.", maximum=1),
        "fewest": Setting(20, "Minimum number of rollouts to compare."),
    },
    cost="a matrix product per batch",
)

BUCKETS = 1024
MOST_CHARACTERS = 2_000
SHORTEST = 40
"""Bytes: of shorter texts, trigrams say nothing."""
SMALLEST_SPREAD = 0.03
SMALLEST_DISTANCE = 0.5


def find(rows: Sequence[RolloutRow], context: EnvironmentContext, thresholds: ThresholdValues) -> list[FlagDraft]:
    import numpy as np

    best = _best(rows, thresholds["quantile"])
    if len(best) < thresholds["fewest"]:
        return []
    distances = _distances([_text(row) for row in best])
    middle = float(np.median(distances))
    spread = max(1.4826 * float(np.median(np.abs(distances - middle))), SMALLEST_SPREAD)
    return [
        _draft(row, distance, (distance - middle) / spread)
        for row, distance in zip(best, distances.tolist(), strict=True)
        if distance >= SMALLEST_DISTANCE and (distance - middle) / spread > thresholds["z"]
    ]


def _best(rows: Sequence[RolloutRow], quantile: float) -> list[RolloutRow]:
    import numpy as np

    limit = float(np.quantile([row.reward for row in rows], quantile))
    return [row for row in rows if row.reward >= limit and len(_text(row)) >= SHORTEST]


def _text(row: RolloutRow) -> bytes:
    return "\n".join(row.replies)[:MOST_CHARACTERS].lower().encode("utf-8", "replace")


def _distances(texts: Sequence[bytes]) -> NDArray[np.float32]:
    """1 - cosine to the centre of all, over hashed trigrams weighted by how few texts have them."""

    import numpy as np

    counts = np.stack([_trigrams(text) for text in texts])
    weights = np.log((1 + len(texts)) / (1 + np.count_nonzero(counts, axis=0))) + 1.0
    vectors = np.log1p(counts) * weights.astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    centre = vectors.mean(axis=0)
    return np.asarray(1.0 - vectors @ (centre / max(float(np.linalg.norm(centre)), 1e-9)), dtype=np.float32)


def _trigrams(text: bytes) -> NDArray[np.float32]:
    import numpy as np

    values = np.frombuffer(text, dtype=np.uint8).astype(np.uint32)
    hashed = (values[:-2] * 65_599 + values[1:-1] * 257 + values[2:] * 31) % BUCKETS
    return np.bincount(hashed, minlength=BUCKETS).astype(np.float32)


def _draft(row: RolloutRow, distance: float, z: float) -> FlagDraft:
    return flag_rollout(
        SPEC,
        row,
        score=0.4 + 0.03 * min(z, 15.0),
        sentence=f"It earned {row.reward:.3f} like the best, and is written like none of them (distance {distance:.2f},"
        f" robust z {z:.1f}).",
        marks=whole_reply(row, len(row.replies) - 1),
        cluster="unlike the others",
    )


DETECTOR = RolloutDetector(SPEC, find)
