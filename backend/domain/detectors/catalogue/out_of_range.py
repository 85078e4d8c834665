"""A reward column that left the range which its manifest declares: the reward is not what its author says."""

from collections.abc import Mapping, Sequence

from backend.domain.detectors.run_view import Batch
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, ThresholdSpec, ThresholdValues
from backend.domain.environments.reward_bounds import RangeBreach, Ranges, range_breaches

SPEC = DetectorSpec(
    id="out_of_range",
    title="Reward out of range",
    description="A reward column left the range that the manifest declares, in one step or over the episode.",
    formula="a column's value over the episode, or in one step, outside `range` of the manifest (0 is always inside"
    " for a step)",
    source="exact: the manifest's own declaration",
    settings={"beyond": ThresholdSpec(0, "Distance outside the range that raises no flag.")},
    needs=(Need.RANGES,),
)


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    for row in batch.rows:
        # by the run's own reward, else by the version that scored the rollout again
        breaches = _breaches(batch.context.ranges.get(row.environment, {}), row.columns, row.step_rewards, thresholds)
        by = ""
        if not breaches and batch.context.second is not None:
            breaches = _breaches(batch.context.second.ranges, row.second_columns, (), thresholds)
            by = f"Scored by {batch.context.second.name}: "
        if not breaches:
            continue
        worst = max(breaches, key=lambda breach: max(breach.value - breach.high, breach.low - breach.value))
        more = f" {len(breaches) - 1} more values are outside their ranges." if len(breaches) > 1 else ""
        is_of_step = worst.step is not None and worst.step < len(row.replies)
        yield row.flag(
            score=1.0,
            sentence=f"{by}{worst.sentence}{more}",
            marks=row.mark_reply(worst.step or 0) if is_of_step else (),
            cluster=f"{worst.column} {'above' if worst.value > worst.high else 'below'} its range",
            column=worst.column,
            value=worst.value,
            range=[worst.low, worst.high],
            step=worst.step,
        )


def _breaches(
    ranges: Ranges, columns: Mapping[str, float], steps: Sequence[Mapping[str, float]], thresholds: ThresholdValues
) -> list[RangeBreach]:
    found = range_breaches(ranges, columns, steps)
    return [each for each in found if max(each.value - each.high, each.low - each.value) > thresholds["beyond"]]
