"""A rollout that fails and earns as much as a success: side columns earn more than success does."""

import statistics

from backend.domain.detectors.run_view import SAME_REWARD, Batch
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, ThresholdSpec, ThresholdValues
from backend.domain.results.pass_at_k import REWARD

SPEC = DetectorSpec(
    id="paid_failure",
    title="Rewarded failure",
    description="The rollout fails by the success rule, and its other columns earn as much as a success does.",
    formula="success column below its bar; R ≥ the median R of 5 successful rollouts or more, else R ≥ 0.95 of the"
    " highest reward",
    source="shaping rewards that change the optimal policy, Ng, Harada and Russell 1999",
    settings={
        "share": ThresholdSpec(1.0, "Smallest share of the median reward of successes that a failure earns."),
        "fewest": ThresholdSpec(5, "Minimum number of successful rollouts to compare with."),
    },
    needs=(Need.COLUMNS, Need.SUCCESS),
)


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    context = batch.context
    passing: dict[str, list[float]] = {}
    for row in batch.rows:
        rule = context.rule_of(row)
        if rule is not None and rule.column != REWARD and row.meets(rule):
            passing.setdefault(row.environment, []).append(row.reward)
    for row in batch.rows:
        rule, earned = context.rule_of(row), passing.get(row.environment, [])
        if rule is None or rule.column == REWARD or rule.column not in row.columns or row.meets(rule) or row.is_canary:
            continue
        if len(earned) >= thresholds["fewest"]:
            usual = thresholds["share"] * statistics.median(earned)
            baseline = f"{len(earned)} successful rollouts of its batch earn {statistics.median(earned):.3f} (median)"
        elif context.highest is not None and context.highest > 0:
            usual = 0.95 * thresholds["share"] * context.highest
            baseline = f"at most {context.highest:.3f} can be earned"
        else:
            continue
        if row.reward < usual - SAME_REWARD or row.reward <= (context.lowest or 0.0):
            continue
        parts = {name: context.weights.get(name, 0.0) * value for name, value in row.columns.items()}
        column = max(parts, key=lambda name: parts[name])
        yield row.flag(
            score=0.6 + min(0.3, 0.3 * (row.reward - usual) / max(abs(usual), 1e-9)),
            sentence=f"It fails ({rule.column} is {row.columns[rule.column]:.3g}) and earned {row.reward:.3f}, most of"
            f" it by {column}; {baseline}.",
            marks=row.mark_reply(),
            cluster=f"{column} pays without success",
            column=column,
        )
