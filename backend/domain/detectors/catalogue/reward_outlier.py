"""One of the highest-reward rollouts, written unlike all others."""

import statistics
from collections.abc import Sequence

from backend.domain.detectors.run_view import Batch
from backend.domain.detectors.spec import DetectorSpec, Flags, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="reward_outlier",
    title="Unlike other high-reward rollouts",
    description="One of the best rollouts is written unlike all others that earn as much.",
    formula="robust z of the cosine distance to the center of the rollouts with R ≥ p90, over hashed character"
    " trigrams with inverse frequencies, > 6, and half of its trigrams are in at most a tenth of these rollouts; 20"
    " such rollouts or more",
    source="distance to the medoid of the best rollouts; feature hashing, Weinberger et al. 2009",
    settings={
        "z": ThresholdSpec(6.0, "Smallest robust z score of the distance."),
        "quantile": ThresholdSpec(0.9, "Reward quantile from which rollouts are compared.", maximum=1),
        "fewest": ThresholdSpec(20, "Minimum number of rollouts to compare."),
        "rare": ThresholdSpec(0.5, "Smallest share of trigrams that hardly any other of them has.", maximum=1),
    },
    cost="a matrix product per batch",
)

BUCKETS = 1024
SHORTEST = 40
"""Bytes: shorter texts have too few trigrams."""


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    import numpy as np

    limit = float(np.quantile([row.reward for row in batch.rows], thresholds["quantile"]))
    texts = [
        (row, "\n".join(row.replies)[:2_000].lower().encode("utf-8", "replace"))
        for row in batch.rows
        if row.reward >= limit
    ]
    best = [(row, text) for row, text in texts if len(text) >= SHORTEST]
    if len(best) < thresholds["fewest"]:
        return
    distances, rare = _distances([text for _, text in best])
    middle = statistics.median(distances)
    spread = max(1.4826 * statistics.median(abs(distance - middle) for distance in distances), 0.03)
    for (row, _), distance, share in zip(best, distances, rare, strict=True):
        z = (distance - middle) / spread
        # A game with other moves is made of the same pieces. A text of its own is not.
        if distance >= 0.5 and z > thresholds["z"] and share >= thresholds["rare"]:
            yield row.flag(
                score=0.4 + 0.03 * min(z, 15.0),
                sentence=f"It earned {row.reward:.3f} like the best, but its text is unlike theirs (distance"
                f" {distance:.2f}, robust z {z:.1f}; {share:.0%} of its trigrams are rare among them).",
                marks=row.mark_reply(),
                cluster="unlike the others",
            )


def _distances(texts: Sequence[bytes]) -> tuple[list[float], list[float]]:
    """1 - cosine to the center of all texts, over hashed trigrams weighted by inverse document frequency; and the share
    of each text's different trigrams that at most a tenth of the texts contain."""

    import numpy as np

    counts = np.zeros((len(texts), BUCKETS), dtype=np.float32)
    for place, text in enumerate(texts):
        values = np.frombuffer(text, dtype=np.uint8).astype(np.uint32)
        hashed = (values[:-2] * 65_599 + values[1:-1] * 257 + values[2:] * 31) % BUCKETS
        counts[place] = np.bincount(hashed, minlength=BUCKETS)
    frequencies = np.count_nonzero(counts, axis=0)
    is_rare = frequencies <= max(1.0, len(texts) / 10)
    rare: list[float] = (np.count_nonzero(counts[:, is_rare], axis=1) / np.count_nonzero(counts, axis=1)).tolist()
    weights = np.log((1 + len(texts)) / (1 + frequencies)) + 1.0
    vectors = np.log1p(counts) * weights.astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    center = vectors.mean(axis=0)
    distances: list[float] = (1.0 - vectors @ (center / max(float(np.linalg.norm(center)), 1e-9))).tolist()
    return distances, rare
