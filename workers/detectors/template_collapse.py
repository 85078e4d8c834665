"""The policy writes the same whatever the task: it no longer reads what it is shown."""

import statistics
from collections import Counter

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.view import RunView

FEWEST_ROLLOUTS = 24
FEWEST_TASKS = 6


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    if not view.has_past():
        return []
    before = statistics.fmean(figures.commonest for figures in view.base())
    now = statistics.fmean(figures.commonest for figures in view.present())
    rows = [row for rows in view.recent.values() for row in rows]
    [(replies, _)] = Counter(row.replies for row in rows).most_common(1)
    alike = [row for row in rows if row.replies == replies]
    tasks = {row.task for row in alike}
    if (
        now <= limits["share"]
        or now < limits["factor"] * before
        or len(rows) < FEWEST_ROLLOUTS
        or len(tasks) < FEWEST_TASKS
    ):
        return []
    last = view.steps[-1].step
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="run",
            severity=Severity.WARNING,
            score=bounded(now),
            sentence=f"{now:.0%} of the episodes of a step have word for word the same replies, {before:.0%} at the"
            f" beginning; they were written for {len(tasks)} different tasks.",
            evidence={
                "window": [view.present()[0].step, last],
                "replies": [reply[:200] for reply in replies[:10]],
                "series": {"commonest": [figures.commonest for figures in view.steps[-60:]]},
                "rollouts": [str(row.id) for row in alike[:5]],
            },
            training_step=last,
        )
    ]


DETECTOR = run_detector("template_collapse", look)
