"""A reply repeats the same words over and over."""

import re
import zlib
from collections import Counter
from dataclasses import dataclass

from backend.domain.detectors.run_view import Batch
from backend.domain.detectors.spec import COMMON, DetectorSpec, Flags, Mark, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="repeated_text",
    title="Repeated text",
    description="A reply repeats the same words over and over.",
    formula="1 - distinct / all four-grams > 0.5, or zlib bytes / bytes < 0.15 in 300 characters or more; in"
    " programs, which repeat names and calls, > 0.75 and < 0.075",
    source="repetition_frac of slime, with a higher limit for short replies",
    settings={
        "repeated_share": ThresholdSpec(0.5, "Share of repeated four-grams above which a reply is flagged.", maximum=1),
        "zlib_ratio": ThresholdSpec(0.15, "Compression ratio below which a reply is flagged.", maximum=1),
        "common": COMMON,
    },
)

GRAM = 4
SHORTEST_GRAMS = 16
_WORD = re.compile(r"\w+|[^\w\s]")
_PROGRAM = re.compile(r"```|<code>|^\s*(?:def \w+\(|class \w+|import \w+|from \w+ import |#include\b)", re.M)


@dataclass(frozen=True, slots=True)
class Repetition:
    turn: int
    share: float
    ratio: float
    span: tuple[int, int]
    """From the first to the last occurrence of the most frequent four words."""
    words: str


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    found = {row.id: worst for row in batch.rows if (worst := worst_repetition(row.replies, thresholds))}
    for row in batch.uncommon([row for row in batch.rows if row.id in found], thresholds["common"]):
        worst = found[row.id]
        is_rewarded = row.id in batch.earning
        yield row.flag(
            score=worst.share * (1.0 if is_rewarded else 0.7),
            sentence=f"Turn {worst.turn + 1} repeats itself: {worst.share:.0%} of its four-word sequences occurred"
            f" before (zlib ratio {worst.ratio:.2f}). So do {len(found) / len(batch.rows):.0%} of the rollouts in its"
            " batch.",
            marks=[Mark(worst.turn, *worst.span)],
            cluster=f"repeats {worst.words}".lower(),
            severity=Severity.WARNING if is_rewarded else Severity.NOTE,
        )


def worst_repetition(replies: tuple[str, ...], thresholds: ThresholdValues) -> Repetition | None:
    """The reply that repeats itself most, if any does; replies are not compared with each other."""
    found = []
    for turn, reply in enumerate(replies):
        if len(reply) < SHORTEST_GRAMS + GRAM:
            continue
        highest, lowest = thresholds["repeated_share"], thresholds["zlib_ratio"]
        if _PROGRAM.search(reply):
            highest, lowest = (1 + highest) / 2, lowest / 2
        words = list(_WORD.finditer(reply[:20_000]))
        texts = [word.group() for word in words]
        grams = list(zip(*(texts[shift:] for shift in range(GRAM)), strict=False))
        if len(grams) < SHORTEST_GRAMS:
            continue
        share = 1.0 - len(set(grams)) / len(grams)
        data = reply.encode("utf-8", "replace")
        ratio = len(zlib.compress(data)) / len(data) if len(reply) >= 300 else 1.0
        if share > highest or ratio < lowest:
            [(commonest, _)] = Counter(grams).most_common(1)
            places = [index for index, gram in enumerate(grams) if gram == commonest]
            span = (words[places[0]].start(), words[places[-1] + GRAM - 1].end())
            found.append(Repetition(turn, share, ratio, span, " ".join(commonest)))
    return max(found, key=lambda repetition: repetition.share, default=None)
