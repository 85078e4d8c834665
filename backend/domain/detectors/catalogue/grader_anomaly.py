"""Reward although the grader did not work: a bad exit, a timeout, no output, or no time spent."""

import statistics

from backend.domain.detectors.run_view import Batch
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="grader_anomaly",
    title="Grader failed",
    description="The rollout earned a reward although the grader crashed, timed out or printed nothing.",
    formula="R above the lowest of the batch and exit code ≠ 0, a timeout, no output, or < 0.01 of the median time",
    source="a grader that did not run cannot have found anything",
    settings={
        "time": ThresholdSpec(0.01, "Share of the median grading time below which a grader did not run.", maximum=1),
        "shortest_median_seconds": ThresholdSpec(0.05, "Median grading time below which times are ignored."),
    },
    needs=(Need.GRADER_METRICS,),
)


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    times = [float(row.metrics["grader_seconds"]) for row in batch.rows if "grader_seconds" in row.metrics]
    usual = statistics.median(times) if times else 0.0
    lowest = min(row.reward for row in batch.rows) if batch.context.lowest is None else batch.context.lowest
    for row in batch.rows:
        metrics, odd = row.metrics, []
        if metrics.get("grader_exit_code"):
            odd.append(f"the grader ended with code {metrics['grader_exit_code']:g}")
        if metrics.get("grader_timeout"):
            odd.append("the grader's time was up")
        if metrics.get("grader_output_bytes") == 0:
            odd.append("the grader said nothing")
        seconds = metrics.get("grader_seconds", usual)
        if usual >= thresholds["shortest_median_seconds"] and seconds < thresholds["time"] * usual:
            odd.append(f"the grader took {seconds:.4f} s where {usual:.2f} s are usual")
        if odd and row.reward > lowest:
            yield row.flag(
                score=0.7 + 0.1 * len(odd),
                sentence=f"It earned {row.reward:.3f} although {' and '.join(odd)}.",
                cluster=odd[0].rpartition(" where ")[0] or odd[0],
            )
