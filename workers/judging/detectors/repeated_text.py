"""A reply repeats itself: the same words again and again."""

import re
import zlib
from collections import Counter
from dataclasses import dataclass

from backend.domain.vocabulary import Severity
from workers.judging.detectors.base import Detector, FlagDraft, bounded
from workers.judging.detectors.view import RolloutRow, RunView

GRAM = 4
SHORTEST_GRAMS = 16
REPEATED_SHARE = 0.5
"""Of four-grams that occurred before in the same reply."""
LONG_CHARACTERS = 300
ZLIB_RATIO = 0.15
PER_STEP = 3
"""Rollouts flagged of one step: the worst."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Repetition:
    turn: int
    share: float
    ratio: float
    span: tuple[int, int]
    """Of the part of the reply from the first to the last occurrence of its commonest four words."""
    text: str


def look(view: RunView) -> list[FlagDraft]:
    found = [(row, repetition) for row in view.newest if (repetition := worst_repetition(row.replies))]
    found.sort(key=lambda pair: -pair[1].share)
    share = len(found) / max(len(view.newest), 1)
    return [_draft(view, row, repetition, share) for row, repetition in found[:PER_STEP]]


def worst_repetition(replies: tuple[str, ...]) -> Repetition | None:
    """The reply that repeats itself most, if any does; replies are not compared with each other."""
    found = [repetition for turn, reply in enumerate(replies) if (repetition := _repetition(turn, reply))]
    return max(found, key=lambda repetition: repetition.share, default=None)


def _repetition(turn: int, reply: str) -> Repetition | None:
    words = list(_WORD.finditer(reply[:20_000]))
    grams = [tuple(word.group() for word in words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]
    if len(grams) < SHORTEST_GRAMS:
        return None
    share = 1.0 - len(set(grams)) / len(grams)
    data = reply.encode("utf-8", "replace")
    ratio = len(zlib.compress(data)) / len(data)
    if share <= REPEATED_SHARE and not (len(reply) >= LONG_CHARACTERS and ratio < ZLIB_RATIO):
        return None
    [(commonest, _)] = Counter(grams).most_common(1)
    places = [index for index, gram in enumerate(grams) if gram == commonest]
    span = (words[places[0]].start(), words[places[-1] + GRAM - 1].end())
    return Repetition(turn, share, ratio, span, reply[words[places[0]].start() :][:80])


def _draft(view: RunView, row: RolloutRow, repetition: Repetition, share: float) -> FlagDraft:
    step = view.steps[-1].step
    pays = row.reward >= view.steps[-1].reward
    return FlagDraft(
        detector=DETECTOR.id,
        key=str(row.id),
        severity=Severity.WARNING if pays else Severity.NOTE,
        score=bounded(repetition.share * (1.0 if pays else 0.7)),
        sentence=f"Turn {repetition.turn + 1} repeats itself: {repetition.share:.0%} of its four-word sequences"
        f" occurred before (zlib ratio {repetition.ratio:.2f}). So do {share:.0%} of the rollouts beside it.",
        evidence={
            "rollouts": [str(row.id)],
            "spans": [{"turn": repetition.turn, "start": repetition.span[0], "end": repetition.span[1]}],
            "excerpt": repetition.text,
            "reward": row.reward,
        },
        rollout_id=row.id,
        training_step=step,
    )


DETECTOR = Detector(
    id="repeated_text",
    title="Repeated text",
    sentence="A reply says the same words again and again.",
    formula="1 - distinct / all four-grams > 0.5, or zlib bytes / bytes < 0.15 in 300 characters or more",
    source="repetition_frac of slime, with a higher limit for short replies",
    thresholds={"repeated_share": REPEATED_SHARE, "zlib_ratio": ZLIB_RATIO},
    look=look,
)
