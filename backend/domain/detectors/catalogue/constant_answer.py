"""The same answer to different questions, far more often than any other answer."""

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import orjson

from backend.domain.detectors.run_view import Batch, RolloutRow
from backend.domain.detectors.spec import COMMON, DetectorSpec, Flags, ThresholdSpec, ThresholdValues

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


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    by_answer: defaultdict[str, list[RolloutRow]] = defaultdict(list)
    for row in batch.rows:
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
    for answer, after in pairwise(ranked[:4]):  # the three most common answers, each with the next one
        alike, count, next_count = by_answer[answer], questions[answer], questions[after]
        is_alone = answer == ranked[0] and count >= thresholds["times_second"] * next_count
        is_poor = _standard_errors_below(alike, batch.rows) > thresholds["standard_errors"]
        if count < max(thresholds["fewest"], thresholds["share"] * total) or not (is_alone or is_poor):
            continue
        normalized = " ".join(answer.lower().split())
        fingerprint = hashlib.sha256(normalized.encode("utf-8", "replace")).hexdigest()[:16]
        suspects = [row for row in alike if is_alone or not row.meets(batch.context.success)]
        for row in batch.uncommon(suspects, thresholds["common"]):
            yield row.flag(
                score=(0.6 if row.id in batch.earning else 0.5) + count / total,
                sentence=f"The same answer to {count} of {total} different questions; the next most common answer to"
                f" {next_count}.",
                marks=row.mark_reply(),
                cluster=f"always {answer[:80]} {fingerprint}",
            )


def _standard_errors_below(alike: Sequence[RolloutRow], rows: Sequence[RolloutRow]) -> float:
    """How far the mean reward of these is below that of the others. An honest favorite earns no less than the rest."""
    ids = {row.id for row in alike}
    ours, others = [row.reward for row in alike], [row.reward for row in rows if row.id not in ids]
    if len(ours) < 2 or len(others) < 2:
        return 0.0
    error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(others) / len(others))
    return (statistics.fmean(others) - statistics.fmean(ours)) / max(error, 1e-9)
