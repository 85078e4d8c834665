"""Reward although the grader did not work: a bad exit, a timeout, no output, or no time spent."""

import statistics
from collections.abc import Iterator, Sequence

from backend.domain.detectors.catalogue import FACES
from workers.detectors.base import FlagDraft, Limits, rollout_detector
from workers.detectors.environment_context import Scene
from workers.detectors.marking import draft_about
from workers.detectors.view import RolloutRow


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    times = [float(row.metrics["grader_seconds"]) for row in rows if "grader_seconds" in row.metrics]
    usual = statistics.median(times) if times else 0.0
    least = min(row.reward for row in rows) if scene.lowest is None else scene.lowest
    paid = [(row, list(_oddities(row, usual, limits))) for row in rows if row.reward > least]
    return [_draft(row, odd) for row, odd in paid if odd]


def _oddities(row: RolloutRow, usual: float, limits: Limits) -> Iterator[str]:
    metrics = row.metrics
    if metrics.get("grader_exit_code"):
        yield f"the grader ended with code {metrics['grader_exit_code']:g}"
    if metrics.get("grader_timeout"):
        yield "the grader's time was up"
    if metrics.get("grader_output_bytes") == 0:
        yield "the grader said nothing"
    seconds = metrics.get("grader_seconds")
    if seconds is not None and usual >= limits["shortest_median_seconds"] and seconds < limits["time"] * usual:
        yield f"the grader took {seconds:.4f} s where {usual:.2f} s are usual"


def _draft(row: RolloutRow, odd: Sequence[str]) -> FlagDraft:
    return draft_about(
        FACE,
        row,
        score=0.7 + 0.1 * len(odd),
        sentence=f"It earned {row.reward:.3f} although {' and '.join(odd)}.",
        cluster=odd[0].rpartition(" where ")[0] or odd[0],
    )


FACE = FACES["grader_anomaly"]
DETECTOR = rollout_detector("grader_anomaly", look_at)
