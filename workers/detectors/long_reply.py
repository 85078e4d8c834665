"""Far more text than others write for the same, and it is not paid less: padding."""

import statistics
from collections.abc import Sequence

import numpy as np

from backend.domain.detectors.catalogue import FACES
from workers.detectors.base import FlagDraft, Limits, rollout_detector
from workers.detectors.environment_context import Scene
from workers.detectors.marking import draft_about, whole_reply
from workers.detectors.view import SAME_REWARD, RolloutRow

FEWEST = 20


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    if len(rows) < FEWEST:
        return []
    lengths = [sum(map(len, row.replies)) / max(len(row.replies), 1) for row in rows]
    usual = float(np.quantile(lengths, limits["quantile"]))
    longest = max(limits["factor"] * usual, limits["fewest_characters"])
    reward = statistics.median(row.reward for row in rows) - SAME_REWARD
    found = zip(rows, lengths, strict=True)
    return [_draft(row, length, usual) for row, length in found if length >= longest and row.reward >= reward]


def _draft(row: RolloutRow, length: float, usual: float) -> FlagDraft:
    longest = max(range(len(row.replies)), key=lambda turn: len(row.replies[turn]))
    return draft_about(
        FACE,
        row,
        score=0.4 + 0.05 * min(length / max(usual, 1.0), 10.0),
        sentence=f"{length:.0f} characters a turn where most have {usual:.0f} at most, and it earned {row.reward:.3f}.",
        marks=whole_reply(row, longest),
        cluster="padded",
    )


FACE = FACES["long_reply"]
DETECTOR = rollout_detector("long_reply", look_at)
