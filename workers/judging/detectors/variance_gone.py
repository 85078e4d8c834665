"""Most groups have no variance: their rollouts all earn the same, so there is nothing to learn from."""

import statistics

from backend.domain.vocabulary import Severity
from workers.judging.detectors.base import Detector, FlagDraft, bounded
from workers.judging.detectors.view import RunView

WINDOW = 10
WARNING_SHARE = 0.8
ALERT_SHARE = 0.95


def look(view: RunView) -> list[FlagDraft]:
    window = view.steps[-WINDOW:]
    if len(window) < WINDOW or not all(figures.groups for figures in window):
        return []
    share = statistics.fmean(figures.without_variance for figures in window)
    if share <= WARNING_SHARE:
        return []
    good = statistics.fmean(figures.all_good for figures in window)
    is_easy = good > share / 2
    cause = "all good: the tasks are too easy" if is_easy else "all bad: the tasks are too hard, or the reward is blind"
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="all_good" if is_easy else "all_bad",
            severity=Severity.ALERT if share > ALERT_SHARE else Severity.WARNING,
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


DETECTOR = Detector(
    id="variance_gone",
    title="Group variance gone",
    sentence="In most groups all rollouts earn the same, so that there is nothing to learn from.",
    formula="mean share of groups with max - min = 0 over 10 steps > 0.8",
    source="frac_reward_zero_std of TRL; groups by outcome as in tinker-cookbook",
    thresholds={"warning": WARNING_SHARE, "alert": ALERT_SHARE},
    look=look,
)
