"""Another version of the reward judges the same rollouts otherwise: one of the two is wrong."""

from scipy import stats

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.environment_context import Scene
from workers.detectors.view import RolloutRow, RunView, passes, passes_second


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    total = view.verdicts.total()
    only_first, only_second = view.verdicts[True, False], view.verdicts[False, True]
    if total < limits["fewest"]:
        return []
    rate = (only_first + only_second) / total
    p = mcnemar(only_first, only_second)
    if rate <= limits["rate"] and p >= limits["p"]:
        return []
    other = view.scene.second.name if view.scene.second else "another version"
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key=other,
            severity=Severity.WARNING,
            score=bounded(0.5 + rate),
            sentence=f"The reward and that of {other} disagree about {rate:.1%} of {total} rollouts: {only_first} pass"
            f" by this one only, {only_second} by the other only (McNemar p = {p:.2g}).",
            evidence={
                "passes by this one only": only_first,
                "passes by the other only": only_second,
                "p": p,
                "rollouts": [str(row.id) for row in view.newest if _is_disputed(view.scene, row)][:5],
            },
            training_step=view.steps[-1].step,
        )
    ]


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact, two-sided."""
    if only_first + only_second == 0:
        return 1.0
    return float(stats.binomtest(only_first, only_first + only_second).pvalue)


def _is_disputed(scene: Scene, row: RolloutRow) -> bool:
    return passes_second(scene, row) not in {None, passes(scene, row)}


DETECTOR = run_detector("second_verifier", look)
