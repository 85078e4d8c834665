"""Most rollouts earn the highest reward: solved, too easy, or hacked. Only a review can decide which."""

import statistics

from backend.domain.detectors.run_view import RECENT_STEPS, RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="ceiling_saturation",
    title="Reward at its ceiling",
    description="Most rollouts earn the highest possible reward: solved, too easy, or hacked.",
    formula="share of rollouts with R ≥ 0.99 of the highest reward over 5 steps > 0.8",
    source="rewardspy",
    subject=Subject.RUN,
    settings={
        "share": ThresholdSpec(0.8, "Share of such rollouts above which a flag is raised.", maximum=1),
        "of_highest": ThresholdSpec(0.99, "Share of the highest reward that counts as the ceiling.", maximum=1),
    },
    needs=(Need.STEPS, Need.CEILING),
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    highest = view.context.highest
    if highest is None or len(view.steps) < RECENT_STEPS:
        return
    ceiling = highest - (1 - thresholds["of_highest"]) * abs(highest)
    shares = [statistics.fmean(row.reward >= ceiling for row in rows) for _, rows in sorted(view.recent.items())]
    share = statistics.fmean(shares)
    if share > thresholds["share"]:
        yield view.flag(
            severity=Severity.NOTE,
            score=share / 2,
            sentence=f"{share:.0%} of the rollouts earn the highest possible reward ({highest:g}): solved, too easy,"
            " or hacked.",
            window=view.present(),
            series={"at_ceiling": shares, "reward": [figures.reward for figures in view.steps]},
            rows=(row for row in view.newest if row.reward >= ceiling),
        )
