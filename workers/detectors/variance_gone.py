"""Most groups have no variance: their rollouts all earn the same, so there is nothing to learn from."""

import statistics

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RunView

WINDOW = 10


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    window = view.steps[-WINDOW:]
    if len(window) < WINDOW or not all(figures.groups for figures in window):
        return []
    share = statistics.fmean(figures.without_variance for figures in window)
    if share <= limits["warning"]:
        return []
    good = statistics.fmean(figures.all_good for figures in window)
    is_easy = good > share / 2
    cause = "all good: the tasks are too easy" if is_easy else "all bad: the tasks are too hard, or the reward is blind"
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="all_good" if is_easy else "all_bad",
            severity=Severity.ALERT if share > limits["alert"] else Severity.WARNING,
            score=bounded(share),
            sentence=f"In {share:.0%} of the groups of steps {window[0].step} to {window[-1].step} all rollouts earned"
            f" the same; mostly {cause}.",
            evidence={
                "window": [window[0].step, window[-1].step],
                "all_good": good,
                "all_bad": share - good,
                "series": {"without_variance": [figures.without_variance for figures in view.steps[-60:]]},
                "rollouts": [str(row.id) for row in view.newest[:5]],
            },
            training_step=window[-1].step,
        )
    ]


DETECTOR = run_detector("variance_gone", look)
