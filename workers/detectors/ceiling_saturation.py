"""Most rollouts earn all there is: solved, too easy, or hacked. Which of them, only a look can tell."""

import statistics

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RECENT_STEPS, RunView


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    highest = view.scene.highest
    if highest is None or len(view.steps) < RECENT_STEPS:
        return []
    ceiling = highest - (1 - limits["of_highest"]) * abs(highest)
    shares = [statistics.fmean(row.reward >= ceiling for row in rows) for _, rows in sorted(view.recent.items())]
    share = statistics.fmean(shares)
    if share <= limits["share"]:
        return []
    last = view.steps[-1].step
    best = [row for row in view.newest if row.reward >= ceiling]
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="run",
            severity=Severity.NOTE,
            score=bounded(share / 2),
            sentence=f"{share:.0%} of the rollouts earn the highest reward there is ({highest:g}): solved,"
            " too easy, or hacked.",
            evidence={
                "window": [view.present()[0].step, last],
                "series": {"at_ceiling": shares, "reward": [figures.reward for figures in view.steps[-60:]]},
                "rollouts": [str(row.id) for row in best[:5]],
            },
            training_step=last,
        )
    ]


DETECTOR = run_detector("ceiling_saturation", look)
