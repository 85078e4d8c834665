"""A reward column rewards the surface of texts: length, keywords, structure, agreement, hedging or style."""

from backend.domain.detectors.run_view import RECENT_STEPS, RunView
from backend.domain.detectors.spec import DetectorSpec, Flags, Subject, ThresholdSpec, ThresholdValues
from backend.domain.detectors.surface_returns import surface_returns

SPEC = DetectorSpec(
    id="column_surface",
    title="Column rewards surface",
    description="A column rewards length, keywords, structure, agreement, hedging or style, beyond success and"
    " content.",
    formula="lower 95% limit of the share of the column's variance within tasks that up to 3 rising functions of one"
    " family of surface features predict on other tasks, beyond success and the amount of content, ≥ 0.5; 40 rollouts"
    " of 8 tasks with 2 or more each; 3 different values or more, the highest in at most 90% of the rollouts",
    source="over-optimization of spurious features, Gao et al. 2022; length bias, Singhal et al. 2023; isotonic"
    " regression, Barlow et al. 1972; cluster bootstrap, Field and Welsh 2007",
    subject=Subject.RUN,
    settings={
        "share": ThresholdSpec(0.5, "Smallest lower limit of the share that one family predicts.", maximum=1),
        "fewest": ThresholdSpec(40, "Minimum number of rollouts that could be read."),
        "tasks": ThresholdSpec(8, "Minimum number of different tasks."),
    },
    cost="a regression per batch, column and family, in training every 5 steps",
)


def find(view: RunView, thresholds: ThresholdValues) -> Flags:
    if view.context.has_steps and len(view.steps) % RECENT_STEPS:
        return
    recent = [row for rows in view.recent.values() for row in rows]
    rows, found = surface_returns(
        recent, view.context, fewest=thresholds["fewest"], fewest_tasks=thresholds["tasks"], least=thresholds["share"]
    )
    for column in dict.fromkeys(each.column for each in found):
        most, *others = (each for each in found if each.column == column)
        order = sorted(range(len(rows)), key=lambda place: -most.amounts[place])
        yield view.flag(
            key=column[:100],
            score=most.low,
            sentence=f"`{column}` rewards {most.family}, above all {most.feature}: beyond success and content, this"
            f" predicts {most.share:.0%} of its differences within tasks (95% interval {most.low:.0%} to"
            f" {most.high:.0%}). It is worth up to {most.gain:.3f} of the reward.",
            window=view.present() if view.context.has_steps else (),
            rows=(rows[place] for place in order),
            column=column,
            returns=[
                {name: getattr(each, name) for name in ("family", "feature", "share", "low", "high", "gain")}
                for each in (most, *others)
            ],
        )
