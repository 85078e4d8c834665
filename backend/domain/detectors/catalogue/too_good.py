"""Too good to be true: tasks that the base policy never solved, and that are now solved nearly always.

Only of evaluations: that a task goes from never to always is what a training run is for.
"""

from backend.domain.detectors.context import BaseTask
from backend.domain.detectors.flags import FlagDraft, RunDetector, ThresholdValues, bounded
from backend.domain.detectors.run_view import RolloutRow, RunView, passes
from backend.domain.detectors.spec import DetectorSpec, Need, Setting, Subject
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="too_good",
    title="Too good to be true",
    description="Tasks that the base policy never solved are solved nearly always.",
    formula="base 0 of k ≥ 4, now ≥ 0.9: P(p_now > p_base) > 0.99 with Beta(1, 1) priors",
    source="impossibly high scores, METR 2025",
    subject=Subject.RUN,
    settings={
        "pass": Setting(0.9, "Pass rate from which a task counts as solved.", maximum=1),
        "probability": Setting(0.99, "Smallest probability that the pass rate rose.", maximum=1),
        "fewest": Setting(4, "Minimum number of attempts by the base policy."),
    },
    needs=(Need.EVALUATION, Need.BASE),
)

FIRST = 5
"""Rollouts listed as examples."""


def find(view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
    base = view.context.base
    found = {
        task: now for task, now in view.outcomes.items() if task in base and _is_suspicious(base[task], now, thresholds)
    }
    if not found:
        return []
    rows = [row for row in view.newest if row.task in found and passes(view.context, row)]
    return [
        FlagDraft(
            detector=SPEC.id,
            key="run",
            severity=Severity.WARNING,
            score=bounded(0.5 + len(found) / (2 * len(view.outcomes))),
            sentence=f"{len(found)} of {len(view.outcomes)} tasks that the base never solved are solved nearly always.",
            evidence={"tasks": sorted(found)[:20], "rollouts": [str(row.id) for row in _first_of_each(rows)]},
            training_step=view.steps[-1].step,
        )
    ]


def _is_suspicious(base: BaseTask, now: BaseTask, thresholds: ThresholdValues) -> bool:
    is_never_solved = base.passes == 0 and base.plays >= thresholds["fewest"]
    is_solved = now.passes >= thresholds["pass"] * now.plays
    return is_never_solved and is_solved and _is_above(base, now) > thresholds["probability"]


def _is_above(base: BaseTask, now: BaseTask) -> float:
    """P(p_now > p_base) under uniform priors."""

    from scipy import integrate, stats

    ours = stats.beta(1 + now.passes, 1 + now.plays - now.passes)
    theirs = stats.beta(1 + base.passes, 1 + base.plays - base.passes)
    return float(integrate.quad(lambda p: ours.pdf(p) * theirs.cdf(p), 0, 1)[0])


def _first_of_each(rows: list[RolloutRow]) -> list[RolloutRow]:
    return list({row.task: row for row in reversed(rows)}.values())[:FIRST]


DETECTOR = RunDetector(SPEC, find)
