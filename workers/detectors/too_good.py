"""Too good to be true: tasks that the base policy never solved, and that are now solved nearly always.

Only of evaluations: that a task goes from never to always is what a training run is for.
"""

from scipy import integrate, stats

from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, Limits, bounded, run_detector
from workers.detectors.environment_context import BaseTask
from workers.detectors.view import RolloutRow, RunView, passes

FIRST = 5
"""Rollouts to look at first."""


def look(view: RunView, limits: Limits) -> list[FlagDraft]:
    base = view.scene.base
    found = {
        task: now for task, now in view.outcomes.items() if task in base and _is_suspicious(base[task], now, limits)
    }
    if not found:
        return []
    rows = [row for row in view.newest if row.task in found and passes(view.scene, row)]
    return [
        FlagDraft(
            detector=DETECTOR.id,
            key="run",
            severity=Severity.WARNING,
            score=bounded(0.5 + len(found) / (2 * len(view.outcomes))),
            sentence=f"{len(found)} of {len(view.outcomes)} tasks that the base never solved are solved nearly always.",
            evidence={"tasks": sorted(found)[:20], "rollouts": [str(row.id) for row in _first_of_each(rows)]},
            training_step=view.steps[-1].step,
        )
    ]


def _is_suspicious(base: BaseTask, now: BaseTask, limits: Limits) -> bool:
    is_never_solved = base.passes == 0 and base.plays >= limits["fewest"]
    is_solved = now.passes >= limits["pass"] * now.plays
    return is_never_solved and is_solved and _is_above(base, now) > limits["probability"]


def _is_above(base: BaseTask, now: BaseTask) -> float:
    """P(p_now > p_base) under uniform priors."""
    ours = stats.beta(1 + now.passes, 1 + now.plays - now.passes)
    theirs = stats.beta(1 + base.passes, 1 + base.plays - base.passes)
    return float(integrate.quad(lambda p: ours.pdf(p) * theirs.cdf(p), 0, 1)[0])


def _first_of_each(rows: list[RolloutRow]) -> list[RolloutRow]:
    return list({row.task: row for row in reversed(rows)}.values())[:FIRST]


DETECTOR = run_detector("too_good", look)
