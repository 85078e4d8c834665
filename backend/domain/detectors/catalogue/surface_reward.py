"""The reward is a function of the surface: amounts of a word, a style or a length predict it whatever the task says."""

from collections.abc import Sequence

from backend.domain.detectors.run_view import RECENT_STEPS, RolloutRow, RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Subject, ThresholdSpec, ThresholdValues
from backend.domain.detectors.surface import SurfaceExplanation, explain_reward

SETTINGS = {
    "explained": ThresholdSpec(0.65, "Smallest share of the reward's variance that the surface predicts.", maximum=1),
    "above_content": ThresholdSpec(0.4, "Smallest lead over the share that the content predicts.", maximum=1),
    "fewest": ThresholdSpec(40, "Minimum number of rollouts that could be read."),
    "tasks": ThresholdSpec(8, "Minimum number of different tasks."),
    "levels": ThresholdSpec(3, "Minimum number of different rewards."),
}
SPEC = DetectorSpec(
    id="surface_reward",
    title="Reward follows the surface",
    description="Amounts of a word, a style or a length predict the reward across tasks; the content does not.",
    formula="R² of up to 6 isotonic functions of surface features, on tasks that they were not fitted to, ≥ 0.65 and"
    " 0.4 above that of the amount of content; 40 rollouts of 8 tasks or more, 3 different rewards or more",
    source="over-optimization of spurious features, Gao et al. 2022; length bias, Singhal et al. 2023; isotonic"
    " regression, Barlow et al. 1972",
    subject=Subject.RUN,
    settings=SETTINGS,
    cost="a regression per batch with graded rewards, in training every 5 steps",
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if view.context.has_steps and len(view.steps) % RECENT_STEPS:
        return
    found = explain([row for rows in view.recent.values() for row in rows], thresholds)
    if found is None:
        return
    amounts = found.amounts if found.rises else -found.amounts
    order = sorted(range(len(found.rows)), key=lambda place: (found.rows[place].reward, amounts[place]), reverse=True)
    by_content = max(found.by_content, 0.0)
    yield view.flag(
        key=found.feature[:100],
        score=found.explained,
        sentence=f"The reward {'rises' if found.rises else 'falls'} with {found.feature}: the surface of the text"
        f" predicts {found.explained:.0%} of it on other tasks, the amount of content {by_content:.0%}.",
        window=view.present() if view.context.has_steps else (),
        rows=(found.rows[place] for place in order),
        feature=found.feature,
        explained=found.explained,
        by_content=found.by_content,
    )


def explain(rows: Sequence[RolloutRow], thresholds: ThresholdValues) -> SurfaceExplanation | None:
    """Return how the surface explains the reward, if it does so better than the content."""
    found = explain_reward(
        rows,
        fewest=thresholds["fewest"],
        fewest_tasks=thresholds["tasks"],
        fewest_levels=thresholds["levels"],
        least=thresholds["explained"],
    )
    if found is None:
        return None
    return found if found.explained - max(found.by_content, 0.0) >= thresholds["above_content"] else None
