"""Most groups have no variance: their rollouts all earn the same, so there is nothing to learn from."""

import statistics

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="variance_gone",
    title="No variance within groups",
    description="In most groups all rollouts earn the same reward, so there is no learning signal.",
    formula="mean share of groups with max - min = 0 over 10 steps > 0.8",
    source="frac_reward_zero_std of TRL; groups by outcome as in tinker-cookbook",
    subject=Subject.RUN,
    settings={
        "warning": ThresholdSpec(0.8, "Share of such groups above which a warning is raised.", maximum=1),
        "alert": ThresholdSpec(0.95, "Share of such groups above which the warning becomes an alert.", maximum=1),
    },
    needs=(Need.STEPS,),
)

WINDOW = 10


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    window = view.steps[-WINDOW:]
    if len(window) < WINDOW or not all(figures.groups for figures in window):
        return
    shares = [figures.all_good + figures.all_bad for figures in view.steps]
    share = statistics.fmean(shares[-WINDOW:])
    if share <= thresholds["warning"]:
        return
    good = statistics.fmean(figures.all_good for figures in window)
    is_easy = good > share / 2
    cause = "all good: the tasks are too easy" if is_easy else "all bad: the tasks are too hard, or the reward is blind"
    yield view.flag(
        key="all_good" if is_easy else "all_bad",
        severity=Severity.ALERT if share > thresholds["alert"] else Severity.WARNING,
        score=share,
        sentence=f"In {share:.0%} of the groups of steps {window[0].step} to {window[-1].step} all rollouts earned"
        f" the same; mostly {cause}.",
        window=window,
        series={"without_variance": shares},
        rows=view.newest,
        all_good=good,
        all_bad=share - good,
    )
