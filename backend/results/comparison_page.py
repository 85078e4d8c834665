"""The content of a comparison: the differences, the most changed tasks, and one task side by side."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from pydantic import Field
from sqlalchemy import Row
from sqlalchemy.orm import Session

from backend.domain.statistics import TIE
from backend.domain.vocabulary import RunKind
from backend.environments.views import with_rollout_views
from backend.results.baselines import BaselineResponse, baselines
from backend.results.comparison import MAX_SIDES, ComparisonNote, Pairing, RunComparison, TaskPair, compare, task_pairs
from backend.results.differences import SettingDifference, differing_settings
from backend.results.planning import PlanSampleSize, SamplePlan, plan_for
from backend.results.schemas import CompareRuns
from backend.results.scores import ComparedRun
from backend.rollouts import queries as rollout_queries
from backend.rollouts.queries import columns_of
from backend.rollouts.transcripts import mark_differences
from backend.runs.tables import Run
from backend.web.transcripts import Entry, transcript_of

LISTED_TASKS = 12
"""At either end of the list."""


class ComparisonChoice(CompareRuns):
    detect: float | None = Field(None, gt=0, le=1e6)
    """Difference of the reward for which the page plans the number of tasks."""
    focus: int = 1
    """Position of the run that the tables compare with the first one."""
    task: uuid.UUID | None = None

    def url(self, **changes: object) -> str:
        """The same page with other choices; `run` is a list of references."""
        values = {"run": self.references, "focus": self.focus, "task": self.task, "detect": self.detect} | changes
        if values["focus"] == 1:
            values.pop("focus")
        return "/compare?" + urlencode({name: value for name, value in values.items() if value}, doseq=True)

    def without(self, position: int) -> str:
        kept = [reference for place, reference in enumerate(self.references) if place != position]
        return self.url(run=kept, focus=1, task=None)

    def first(self, position: int) -> str:
        """The same page, comparing with this run."""
        references = self.references
        return self.url(run=[references.pop(position), *references], focus=1, task=None)


@dataclass(slots=True)
class ComparePage:
    choice: ComparisonChoice
    sides: Sequence[ComparedRun] = ()
    candidates: Sequence[Row[uuid.UUID, str, RunKind, datetime]] = ()
    """Runs that can be selected: id, name, kind and creation."""
    problem: ComparisonNote | None = None
    found: RunComparison | None = None
    pairing: Pairing | None = None
    """The run in focus compared with the first."""
    plan: SamplePlan | None = None
    """Tasks that detect a difference between the two; by default the observed one."""
    baselines: list[BaselineResponse] = field(default_factory=list)
    open: TaskPair | None = None
    played: Sequence[dict[str, Any]] = ()
    """Rollout, entries and columns of both sides of the open task."""
    parting: int | None = None
    """First turn in which the replies of the open task differ."""
    improved: Sequence[TaskPair] = ()
    """Most improved first."""
    regressed: Sequence[TaskPair] = ()
    """Most regressed first."""
    differences: Sequence[SettingDifference] = ()
    best: dict[uuid.UUID, int] = field(default_factory=dict)
    """Training steps of the candidates' best checkpoints."""
    trained: Sequence[uuid.UUID] = ()
    """Training runs among the sides, and the training runs of evaluated checkpoints."""
    most: int = MAX_SIDES


def comparison_page(
    session: Session, choice: ComparisonChoice, excerpt: Callable[[Sequence[Entry]], Sequence[Entry]] | None = None
) -> ComparePage:
    """Compare the chosen runs. `excerpt` shortens the conversations of the open task."""
    sides = choice.sides(session)[:MAX_SIDES]
    context = ComparePage(choice, sides)
    if len(sides) < 2:
        return context
    comparison = compare(session, sides)
    if not comparison.pairings:
        context.problem = comparison.remarks[0]
        return context

    # The run in focus, its most changed tasks, and the open task side by side.
    pairing = comparison.pairings[min(max(choice.focus, 1), len(comparison.pairings)) - 1]
    context.found, context.pairing = comparison, pairing
    context.differences = differing_settings([side.run for side in sides])
    curves = (side.run.id if side.run.kind is RunKind.TRAINING else _trained_by(side.run) for side in sides)
    context.trained = list(dict.fromkeys(filter(None, curves)))
    # how many tasks would decide it
    differs = choice.detect or float(f"{abs(pairing.reward.difference.mean):.2g}")
    if differs > TIE and len(comparison.shared) > 1:
        wanted = PlanSampleSize(run=pairing.before.side.reference, difference=differs)
        context.plan = plan_for((pairing.before, pairing.after), wanted)
    scripts = {each.side.run.policy.configuration.get("script") for each in comparison.sides if each.side.run.policy}
    nearby = baselines(session, pairing.after.side.run, comparison.shared, comparison.sides)
    context.baselines = [each for each in nearby if each.script not in scripts]
    order, differences = pairing.order.tolist(), pairing.differences
    improved = [position for position in order[:LISTED_TASKS] if differences[position] > TIE]
    regressed = [position for position in order[: -LISTED_TASKS - 1 : -1] if differences[position] < -TIE]
    is_regressed = -differences[order[-1]] > differences[order[0]]
    opened = order[-1] if is_regressed else order[0]  # the most changed task
    after = pairing.after
    if choice.task is not None:
        place = after.place_of(choice.task, comparison.shared)
        opened = opened if place is None else place
    *listed, context.open = task_pairs(session, comparison, pairing, [*improved, *regressed, opened])
    context.improved, context.regressed = listed[: len(improved)], listed[len(improved) :]
    played: list[dict[str, Any]] = []
    for rollout_id in (context.open.rollout_before, context.open.rollout_after):
        rollout = rollout_queries.get_rollout(session, rollout_id)
        weights = rollout_queries.weights_of(rollout)
        entries = transcript_of(rollout.messages, rollout.steps, list(weights), weights=list(weights.values()))
        played.append({"rollout": rollout, "entries": entries, "columns": columns_of(rollout.run, rollout)})
    one, other = played
    one["entries"], other["entries"], context.parting = mark_differences(one["entries"], other["entries"])
    for play in played:
        shown = excerpt(play["entries"]) if excerpt else play["entries"]
        play["entries"] = with_rollout_views(session, play["rollout"], shown, is_end_shown=excerpt is None)
    context.played = played
    return context


def _trained_by(run: Run) -> uuid.UUID | None:
    return run.checkpoint.run_id if run.checkpoint else None
