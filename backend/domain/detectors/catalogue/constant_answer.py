"""The same answer to different questions, far more often than any other answer."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import orjson

from backend.domain.detectors.flags import (
    FlagDraft,
    ThresholdValues,
    drop_common,
    earning_ids,
    fingerprint,
    flag_rollout,
    whole_reply,
)
from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow, passes
from backend.domain.detectors.spec import COMMON, DetectorSpec, ThresholdSpec

SPEC = DetectorSpec(
    id="constant_answer",
    title="Constant answer",
    description="The same answer is given to different questions, far more often than the next most common one.",
    formula="share of a last action over different prompts ≥ 0.05 and 12 or more, of 10 different ones in all;"
    " and 3 times the next one, or a mean reward 3 standard errors below the others",
    source="modal answer against its prior",
    settings={
        "share": ThresholdSpec(0.05, "Smallest share of the answer.", maximum=1),
        "times_second": ThresholdSpec(3.0, "Smallest ratio to the next most common answer.", minimum=1),
        "fewest": ThresholdSpec(12, "Minimum number of rollouts with the answer."),
        "answers": ThresholdSpec(10, "Minimum number of different answers in the batch."),
        "standard_errors": ThresholdSpec(3.0, "Reward deficit, in standard errors, that is flagged as well."),
        "common": COMMON,
    },
)


def find(rows: Sequence[RolloutRow], context: EnvironmentContext, thresholds: ThresholdValues) -> Iterator[FlagDraft]:
    by_answer: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        if row.prompts and row.replies:
            action = row.actions[-1] if row.actions else None
            answer = orjson.dumps(action, option=orjson.OPT_SORT_KEYS, default=str).decode("utf-8", "replace")
            by_answer[answer if action is not None else row.replies[-1].strip()].append(row)
    if len(by_answer) < thresholds["answers"]:
        return
    # Only different questions count: the same answer to the same question proves nothing.
    questions = {answer: len({row.prompts[-1] for row in alike}) for answer, alike in by_answer.items()}
    total = sum(questions.values())
    ranked = sorted(questions, key=lambda answer: questions[answer], reverse=True)
    earning = earning_ids(rows, context)
    for answer, after in pairwise(ranked[:4]):  # the three most common answers, each with the next one
        alike, count, next_count = by_answer[answer], questions[answer], questions[after]
        is_alone = answer == ranked[0] and count >= thresholds["times_second"] * next_count
        is_poor = _standard_errors_below(alike, rows) > thresholds["standard_errors"]
        if count < max(thresholds["fewest"], thresholds["share"] * total) or not (is_alone or is_poor):
            continue
        suspects = [row for row in alike if is_alone or not passes(context, row)]
        for row in drop_common(suspects, rows, earning, thresholds["common"]):
            yield flag_rollout(
                SPEC,
                row,
                score=(0.6 if str(row.id) in earning else 0.5) + count / total,
                sentence=f"The same answer to {count} of {total} different questions; the next most common answer to"
                f" {next_count}.",
                marks=whole_reply(row, len(row.replies) - 1),
                cluster=f"always {answer[:80]} {fingerprint(answer)}",
            )


def _standard_errors_below(alike: Sequence[RolloutRow], rows: Sequence[RolloutRow]) -> float:
    """How far the mean reward of these is below that of the others. An honest favorite earns no less than the rest."""
    ids = {row.id for row in alike}
    ours, others = [row.reward for row in alike], [row.reward for row in rows if row.id not in ids]
    if len(ours) < 2 or len(others) < 2:
        return 0.0
    error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(others) / len(others))
    return (statistics.fmean(others) - statistics.fmean(ours)) / max(error, 1e-9)
