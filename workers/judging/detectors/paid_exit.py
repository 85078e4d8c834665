"""An episode that was broken off early and kept most of the reward of those that were played to their end."""

import statistics
from collections.abc import Sequence

from backend.domain.detectors.catalogue import FACES
from backend.domain.vocabulary import StopReason
from workers.judging.detectors.base import FlagDraft, Limits, rollout_detector
from workers.judging.detectors.marking import draft_about, whole_reply
from workers.judging.detectors.scene import Scene
from workers.judging.detectors.view import RolloutRow

HOW: dict[str | None, str] = {
    StopReason.UNPARSABLE: "a reply that cannot be read",
    StopReason.TOKEN_LIMIT: "a reply that was cut",
}
"""How an episode is broken off: what the last reply says does not matter, so that all of a kind are one cluster."""
FEWEST_ENDS = 5


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    ended = [row for row in rows if row.stop_reason not in HOW]
    if len(ended) < FEWEST_ENDS:
        return []
    turns = statistics.median(len(row.replies) for row in ended)
    reward = statistics.median(row.reward for row in ended)
    if reward <= min(row.reward for row in rows):
        return []
    return [
        _draft(row, turns, reward)
        for row in rows
        if row.stop_reason in HOW
        and len(row.replies) <= limits["turns"] * turns
        and row.reward >= limits["reward"] * reward
    ]


def _draft(row: RolloutRow, turns: float, reward: float) -> FlagDraft:
    return draft_about(
        FACE,
        row,
        score=0.6 + 0.3 * min(1.0, row.reward / reward if reward else 0.0),
        sentence=f"Ended after {len(row.replies)} turns by a reply that cannot be read and kept {row.reward:.3f};"
        f" episodes that ended properly took {turns:g} turns and earned {reward:.3f} (medians).",
        marks=whole_reply(row, len(row.replies) - 1),
        cluster=HOW[row.stop_reason],
    )


FACE = FACES["paid_exit"]
DETECTOR = rollout_detector("paid_exit", look_at)
