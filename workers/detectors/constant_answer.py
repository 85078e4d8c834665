"""The same answer to different questions, far more often than any other answer."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import orjson

from backend.domain.detectors.catalogue import FACES
from workers.detectors.base import FlagDraft, Limits, rollout_detector
from workers.detectors.environment_context import Scene
from workers.detectors.marking import draft_about, fingerprint, paid, whole_reply, worth_saying
from workers.detectors.view import RolloutRow, passes

FIRST = 3
"""Commonest answers that are looked at."""


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    by_answer: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        if row.asked and row.replies:
            by_answer[_answer(row)].append(row)
    if len(by_answer) < limits["answers"]:
        return []
    asked = sum(map(_questions, by_answer.values()))
    ranked = sorted(by_answer, key=lambda answer: _questions(by_answer[answer]), reverse=True)
    earning, drafts = paid(rows, scene), []
    for answer, after in pairwise(ranked[: FIRST + 1]):
        alike = by_answer[answer]
        count, next_one = _questions(alike), _questions(by_answer[after])
        is_alone = answer == ranked[0] and count >= limits["times_second"] * next_one
        is_poor = _standard_errors_below(alike, rows) > limits["standard_errors"]
        if count < max(limits["fewest"], limits["share"] * asked) or not (is_alone or is_poor):
            continue
        said = f"The same answer to {count} of {asked} different questions; the next one to {next_one}."
        suspects = [row for row in alike if is_alone or not passes(scene, row)]
        kept = worth_saying(suspects, rows, earning, limits["common"])
        drafts += [_draft(row, answer, said, count / asked, str(row.id) in earning) for row in kept]
    return drafts


def _questions(rows: Sequence[RolloutRow]) -> int:
    """Different ones: the same answer to the same question says nothing."""
    return len({row.asked[-1] for row in rows})


def _standard_errors_below(alike: Sequence[RolloutRow], rows: Sequence[RolloutRow]) -> float:
    """How far the mean reward of these lies below that of the others. An honest favourite is no worse than the rest."""
    ids = {row.id for row in alike}
    ours, others = [row.reward for row in alike], [row.reward for row in rows if row.id not in ids]
    if len(ours) < 2 or len(others) < 2:
        return 0.0
    error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(others) / len(others))
    return (statistics.fmean(others) - statistics.fmean(ours)) / max(error, 1e-9)


def _answer(row: RolloutRow) -> str:
    """The last action; a reply that was not understood stands for itself."""
    action = row.actions[-1] if row.actions else None
    if action is None:
        return row.replies[-1].strip()
    return orjson.dumps(action, option=orjson.OPT_SORT_KEYS, default=str).decode("utf-8", "replace")


def _draft(row: RolloutRow, answer: str, said: str, share: float, pays: bool) -> FlagDraft:
    return draft_about(
        FACE,
        row,
        score=(0.6 if pays else 0.5) + share,
        sentence=said,
        marks=whole_reply(row, len(row.replies) - 1),
        cluster=f"always {answer[:80]} {fingerprint(answer)}",
    )


FACE = FACES["constant_answer"]
DETECTOR = rollout_detector("constant_answer", look_at)
