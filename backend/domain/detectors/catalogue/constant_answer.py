"""The same answer to different questions, far more often than any other answer."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import orjson

from backend.domain.detectors.context import EnvironmentContext
from backend.domain.detectors.flags import (
    FlagDraft,
    RolloutDetector,
    ThresholdValues,
    drop_common,
    earning_ids,
    fingerprint,
    flag_rollout,
    whole_reply,
)
from backend.domain.detectors.run_view import RolloutRow, passes
from backend.domain.detectors.spec import COMMON, DetectorSpec, Setting

SPEC = DetectorSpec(
    id="constant_answer",
    title="Constant answer",
    description="The same answer is given to different questions, far more often than the next most common one.",
    formula="share of a last action over different prompts ≥ 0.05 and 12 or more, of 10 different ones in all;"
    " and 3 times the next one, or a mean reward 3 standard errors below the others",
    source="modal answer against its prior",
    settings={
        "share": Setting(0.05, "Smallest share of the answer.", maximum=1),
        "times_second": Setting(3.0, "Smallest ratio to the next most common answer.", minimum=1),
        "fewest": Setting(12, "Minimum number of rollouts with the answer."),
        "answers": Setting(10, "Minimum number of different answers in the batch."),
        "standard_errors": Setting(3.0, "Reward deficit, in standard errors, that is flagged as well."),
        "common": COMMON,
    },
)

FIRST = 3
"""Number of most common answers that are tested."""


def find(rows: Sequence[RolloutRow], context: EnvironmentContext, thresholds: ThresholdValues) -> list[FlagDraft]:
    by_answer: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        if row.asked and row.replies:
            by_answer[_answer(row)].append(row)
    if len(by_answer) < thresholds["answers"]:
        return []
    asked = sum(map(_questions, by_answer.values()))
    ranked = sorted(by_answer, key=lambda answer: _questions(by_answer[answer]), reverse=True)
    earning, drafts = earning_ids(rows, context), []
    for answer, after in pairwise(ranked[: FIRST + 1]):
        alike = by_answer[answer]
        count, next_one = _questions(alike), _questions(by_answer[after])
        is_alone = answer == ranked[0] and count >= thresholds["times_second"] * next_one
        is_poor = _standard_errors_below(alike, rows) > thresholds["standard_errors"]
        if count < max(thresholds["fewest"], thresholds["share"] * asked) or not (is_alone or is_poor):
            continue
        said = f"The same answer to {count} of {asked} different questions; the next one to {next_one}."
        suspects = [row for row in alike if is_alone or not passes(context, row)]
        kept = drop_common(suspects, rows, earning, thresholds["common"])
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
    """The last action, or the reply itself if it could not be read."""
    action = row.actions[-1] if row.actions else None
    if action is None:
        return row.replies[-1].strip()
    return orjson.dumps(action, option=orjson.OPT_SORT_KEYS, default=str).decode("utf-8", "replace")


def _draft(row: RolloutRow, answer: str, said: str, share: float, pays: bool) -> FlagDraft:
    return flag_rollout(
        SPEC,
        row,
        score=(0.6 if pays else 0.5) + share,
        sentence=said,
        marks=whole_reply(row, len(row.replies) - 1),
        cluster=f"always {answer[:80]} {fingerprint(answer)}",
    )


DETECTOR = RolloutDetector(SPEC, find)
