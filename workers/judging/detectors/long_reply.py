"""Far more text than others write for the same, and it is not paid less: padding."""

import math
from collections.abc import Sequence

from backend.domain.detectors.catalogue import FACES
from workers.judging.detectors.base import FlagDraft, Limits, rollout_detector
from workers.judging.detectors.marking import draft_about, robust_spread, whole_reply
from workers.judging.detectors.scene import Scene
from workers.judging.detectors.view import RolloutRow

FEWEST = 20
SMALLEST_SPREAD = 0.1
"""Of the logarithm of the length: where all write the same, a few words more are nothing."""


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    if len(rows) < FEWEST:
        return []
    lengths = [sum(map(len, row.replies)) / max(len(row.replies), 1) for row in rows]
    middle, spread = robust_spread([math.log1p(length) for length in lengths])
    reward, _ = robust_spread([row.reward for row in rows])
    drafts = []
    for row, length in zip(rows, lengths, strict=True):
        z = (math.log1p(length) - middle) / max(spread, SMALLEST_SPREAD)
        is_long = length >= max(limits["factor"] * math.expm1(middle), limits["fewest_characters"])
        if is_long and z > limits["z"] and row.reward >= reward:
            drafts.append(_draft(row, length, math.expm1(middle), z))
    return drafts


def _draft(row: RolloutRow, length: float, usual: float, z: float) -> FlagDraft:
    longest = max(range(len(row.replies)), key=lambda turn: len(row.replies[turn]))
    return draft_about(
        FACE,
        row,
        score=0.4 + 0.05 * min(z, 10.0),
        sentence=f"{length:.0f} characters a turn where {usual:.0f} are usual (robust z {z:.1f}), and it earned"
        f" {row.reward:.3f}.",
        marks=whole_reply(row, longest),
        cluster="padded",
    )


FACE = FACES["long_reply"]
DETECTOR = rollout_detector("long_reply", look_at)
