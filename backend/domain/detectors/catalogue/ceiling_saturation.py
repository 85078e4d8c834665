"""Most rollouts earn the highest reward: solved, too easy, or hacked. Only a review can decide which."""

import statistics

from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RECENT_STEPS, RunView
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="ceiling_saturation",
    title="Reward at its ceiling",
    description="Most rollouts earn the highest possible reward: solved, too easy, or hacked.",
    formula="share of rollouts with R ≥ 0.99 of the highest reward over 5 steps > 0.8",
    source="rewardspy",
    subject=Subject.RUN,
    settings={
        "share": Setting(0.8, "Share of such rollouts above which a flag is raised.", maximum=1),
        "of_highest": Setting(0.99, "Share of the highest reward that counts as the ceiling.", maximum=1),
    },
    needs=(Need.STEPS, Need.CEILING),
)


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    highest = view.context.highest
    if highest is None or len(view.steps) < RECENT_STEPS:
        return []
    ceiling = highest - (1 - thresholds["of_highest"]) * abs(highest)
    shares = [statistics.fmean(row.reward >= ceiling for row in rows) for _, rows in sorted(view.recent.items())]
    share = statistics.fmean(shares)
    if share <= thresholds["share"]:
        return []
    last = view.steps[-1].step
    best = [row for row in view.newest if row.reward >= ceiling]
    return [
        FlagDraft(
            detector=SPEC.id,
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


DETECTOR = RunDetector(SPEC, find)
