"""Another version of the reward judges the same rollouts otherwise: one of the two is wrong."""

from typing import Any

from backend.domain.detectors.run_view import RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Need, Subject, ThresholdSpec, ThresholdValues

SPEC = DetectorSpec(
    id="second_verifier",
    title="Two verifiers disagree",
    description="Another version of the reward grades the same rollouts differently.",
    formula="share of rollouts that pass by one and not by the other > 0.02, or McNemar p < 0.01",
    source="TinyV found 38% false negatives in Big-Math; McNemar 1947",
    subject=Subject.RUN,
    settings={
        "rate": ThresholdSpec(0.02, "Share of disagreements above which a flag is raised.", maximum=1),
        "p": ThresholdSpec(0.01, "Significance level of McNemar's test.", maximum=1),
        "fewest": ThresholdSpec(50, "Minimum number of rollouts graded by both."),
    },
    needs=(Need.SECOND_VERIFIER,),
    cost="one re-scoring, no sampling",
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    from scipy import stats

    total = view.verdicts.total()
    only_first, only_second = view.verdicts[True, False], view.verdicts[False, True]
    if total < thresholds["fewest"]:
        return
    rate = (only_first + only_second) / total
    differing = only_first + only_second
    p = float(stats.binomtest(only_first, differing).pvalue) if differing else 1.0
    if rate <= thresholds["rate"] and p >= thresholds["p"]:
        return
    context = view.context
    other = context.second.name if context.second else "another version"
    facts: dict[str, Any] = {"passes by this one only": only_first, "passes by the other only": only_second, "p": p}
    yield view.flag(
        key=other,
        score=0.5 + rate,
        sentence=f"The reward and that of {other} disagree about {rate:.1%} of {total} rollouts: {only_first} pass"
        f" by this one only, {only_second} by the other only (McNemar p = {p:.2g}).",
        rows=(row for row in view.newest if row.passes_second(context) not in {None, row.meets(context.success)}),
        **facts,
    )
