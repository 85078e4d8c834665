"""The policy writes the same whatever the task: it no longer reads what it is shown."""

import statistics
from collections import Counter

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="template_collapse",
    title="Template collapse",
    description="The policy writes the same replies regardless of the task.",
    formula="share of the most common transcript: mean of 5 steps > 0.5 and at least twice that of the first 10",
    source="policies of tic-tac-toe and Nim that won by ignoring the state",
    subject=Subject.RUN,
    settings={
        "share": ThresholdSpec(0.5, "Share of identical transcripts above which a flag is raised.", maximum=1),
        "factor": ThresholdSpec(2.0, "Smallest ratio to the share in the first steps.", minimum=1),
    },
    needs=(Need.STEPS,),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if not view.has_past():
        return
    before = statistics.fmean(figures.commonest for figures in view.base())
    now = statistics.fmean(figures.commonest for figures in view.present())
    rows = [row for rows in view.recent.values() for row in rows]
    [(replies, _)] = Counter(row.replies for row in rows).most_common(1)
    alike = [row for row in rows if row.replies == replies]
    tasks = {row.task for row in alike}
    if now > thresholds["share"] and now >= thresholds["factor"] * before and len(rows) >= 24 and len(tasks) >= 6:
        yield view.flag(
            score=now,
            sentence=f"{now:.0%} of the episodes of a step have exactly the same replies, {before:.0%} at the"
            f" beginning; they were written for {len(tasks)} different tasks.",
            window=view.present(),
            series={"commonest": [figures.commonest for figures in view.steps]},
            rows=alike,
            replies=[reply[:200] for reply in replies[:10]],
        )
