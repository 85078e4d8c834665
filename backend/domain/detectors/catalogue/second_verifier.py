"""Another version of the reward judges the same rollouts otherwise: one of the two is wrong."""

from backend.domain.detectors.context import EnvironmentContext
from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RolloutRow, RunView, passes, passes_second
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="second_verifier",
    title="Two verifiers disagree",
    description="Another version of the reward grades the same rollouts differently.",
    formula="share of rollouts that pass by one and not by the other > 0.02, or McNemar p < 0.01",
    source="TinyV found 38% false negatives in Big-Math; McNemar 1947",
    subject=Subject.RUN,
    settings={
        "rate": Setting(0.02, "Share of disagreements above which a flag is raised.", maximum=1),
        "p": Setting(0.01, "Significance level of McNemar's test.", maximum=1),
        "fewest": Setting(50, "Minimum number of rollouts graded by both."),
    },
    needs=(Need.SECOND_VERIFIER,),
    cost="one re-scoring, no sampling",
)


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    total = view.verdicts.total()
    only_first, only_second = view.verdicts[True, False], view.verdicts[False, True]
    if total < thresholds["fewest"]:
        return []
    rate = (only_first + only_second) / total
    p = mcnemar(only_first, only_second)
    if rate <= thresholds["rate"] and p >= thresholds["p"]:
        return []
    other = view.context.second.name if view.context.second else "another version"
    return [
        FlagDraft(
            detector=SPEC.id,
            key=other,
            severity=Severity.WARNING,
            score=bounded(0.5 + rate),
            sentence=f"The reward and that of {other} disagree about {rate:.1%} of {total} rollouts: {only_first} pass"
            f" by this one only, {only_second} by the other only (McNemar p = {p:.2g}).",
            evidence={
                "passes by this one only": only_first,
                "passes by the other only": only_second,
                "p": p,
                "rollouts": [str(row.id) for row in view.newest if _is_disputed(view.context, row)][:5],
            },
            training_step=view.steps[-1].step,
        )
    ]


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact, two-sided."""

    from scipy import stats

    if only_first + only_second == 0:
        return 1.0
    return float(stats.binomtest(only_first, only_first + only_second).pvalue)


def _is_disputed(context: EnvironmentContext, row: RolloutRow) -> bool:
    return passes_second(context, row) not in {None, passes(context, row)}


DETECTOR = RunDetector(SPEC, find)
