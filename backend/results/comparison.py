"""Compare runs on the same tasks and seeds: paired differences to the first run, wins and losses, notes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from sqlalchemy.orm import Session

from backend.domain.described import described
from backend.domain.results.pass_at_k import REWARD
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import TIE, Estimate, PairedTest, estimate_mean, paired_difference, paired_test
from backend.domain.vocabulary import RunKind
from backend.results.scores import ComparedRun, TaskKeys, TaskScores, first_rollouts, scores
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_SIDES = 8
DERIVED = frozenset({RunKind.RESCORE, RunKind.REPLAY})
"""Kinds of run that apply another version's rewards to the rollouts of an older one."""


@dataclass(frozen=True, slots=True)
class ComparisonNote:
    """A difference between the compared runs, with the action that removes it."""

    text: str
    href: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
@described
class TaskPair:
    """A task that both sides played, with its mean reward over the rollouts of each side."""

    task_id: uuid.UUID
    """In the version of the second side."""
    index: int
    level: int
    before: float
    after: float
    difference: float
    rollout_before: uuid.UUID
    """The first completed member of its group."""
    rollout_after: uuid.UUID


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """One column on both sides, and the difference after - before over tasks with its 95% interval."""

    name: str
    weight: float | None
    before: Estimate
    after: Estimate
    difference: Estimate


@dataclass(frozen=True, slots=True)
class LevelDifference:
    """The reward at one level."""

    level: int
    tasks: int
    before: float
    after: float
    difference: Estimate


@dataclass(slots=True)
class Pairing:
    """A side compared with the first one, on the shared tasks."""

    before: TaskScores
    after: TaskScores
    columns: list[ColumnDifference]
    """The reward first."""
    reward: ColumnDifference
    verdict: str
    """The second side is `better`, `worse` or `undecided`; empty if the rewards are different sums."""
    levels: list[LevelDifference]
    test: PairedTest
    """Compares the rewards."""
    order: NDArray[np.int64]
    """Positions in the shared tasks, most improved first."""
    differences: NDArray[np.float64]
    """Of the reward, in the order of the shared tasks."""


@dataclass(frozen=True, slots=True)
class HeadToHead:
    """Number of shared tasks on which one side earns more, less and the same as another."""

    wins: int
    losses: int
    ties: int


@dataclass(slots=True)
class RunComparison:
    """Runs on the tasks that all of them completed. Without pairings, the first note gives the reason."""

    sides: list[TaskScores]
    shared: TaskKeys
    means: list[Estimate | None]
    """Reward of each side on the shared tasks."""
    pairings: list[Pairing] = field(default_factory=list)
    """Every other side compared with the first."""
    matrix: list[list[HeadToHead]] = field(default_factory=list)
    """Row against column."""
    remarks: list[ComparisonNote] = field(default_factory=list)


def compare(session: Session, sides: Sequence[ComparedRun]) -> RunComparison:
    """Pair the tasks that all sides completed; failed rollouts are excluded. Reads nothing if that is impossible."""
    if blocking := why_not_comparable(sides):
        return RunComparison([], TaskKeys.of([]), [], remarks=[blocking])
    all_scores = [scores(session, side) for side in sides]
    shared = all_scores[0].keys.shared_with(each.keys for each in all_scores[1:])
    if not len(shared):
        counts = ", ".join(f"{each.side.label} {each.completed:,}" for each in all_scores)
        note = ComparisonNote(f"No task was completed on both sides ({counts}).")
        return RunComparison(all_scores, shared, [], remarks=[note])
    rewards = [each.rows(shared)[:, -1] for each in all_scores]
    matrix = []
    for row in rewards:
        wins = [(int((row - other > TIE).sum()), int((other - row > TIE).sum())) for other in rewards]
        matrix.append([HeadToHead(won, lost, len(row) - won - lost) for won, lost in wins])
    return RunComparison(
        all_scores,
        shared,
        [estimate_mean(reward) for reward in rewards],
        [_pair(all_scores[0], other, shared) for other in all_scores[1:]],
        matrix,
        notes_on(all_scores, shared),
    )


def _pair(before: TaskScores, after: TaskScores, shared: TaskKeys) -> Pairing:
    import numpy as np

    values_before, values_after = before.rows(shared), after.rows(shared)
    rewards_before, rewards_after = values_before[:, -1], values_after[:, -1]
    run_before, run_after = before.side.run, after.side.run
    places: list[tuple[str, float | None, int, int]] = [(REWARD, None, -1, -1)]
    places += [
        (name, weight, run_before.columns.index(name), position)
        for position, (name, weight) in enumerate(zip(run_after.columns, run_after.weights, strict=False))
        if name in run_before.columns
    ]
    columns = []
    for name, weight, place_before, place_after in places:
        one, other = values_before[:, place_before], values_after[:, place_after]
        mean_before, mean_after, difference = estimate_mean(one), estimate_mean(other), paired_difference(one, other)
        if mean_before and mean_after and difference:
            columns.append(ColumnDifference(name, weight, mean_before, mean_after, difference))
    levels = []
    level_of = after.levels[after.keys.places(shared)]
    for level in np.unique(level_of):
        one, other = rewards_before[level_of == level], rewards_after[level_of == level]
        difference = paired_difference(one, other)
        assert difference is not None  # every level has a task
        levels.append(LevelDifference(int(level), len(one), float(one.mean()), float(other.mean()), difference))
    reward, verdict = columns[0], ""
    if _weights(run_before) == _weights(run_after):
        verdict = "better" if reward.difference.mean > 0 else "worse"
        verdict = verdict if reward.difference.excludes_zero else "undecided"
    differences = rewards_after - rewards_before
    order = np.argsort(-differences, kind="stable")
    test = paired_test(rewards_before, rewards_after)
    return Pairing(before, after, columns, reward, verdict, levels, test, order, differences)


def task_pairs(
    session: Session, comparison: RunComparison, pairing: Pairing, positions: Sequence[int]
) -> list[TaskPair]:
    """These shared tasks, with an example rollout of each side."""
    before, after = pairing.before, pairing.after
    keys = TaskKeys(comparison.shared.packed[list(positions)])
    rows = list(zip(keys, before.keys.places(keys).tolist(), after.keys.places(keys).tolist(), strict=True))
    examples_before = first_rollouts(session, before.side, [before.task_id(row) for _, row, _ in rows])
    examples_after = first_rollouts(session, after.side, [after.task_id(row) for _, _, row in rows])
    pairs = []
    for key, row_before, row_after in rows:
        one, other = float(before.values[row_before, -1]), float(after.values[row_after, -1])
        task_id, level = after.task_id(row_after), int(after.levels[row_after])
        examples = examples_before[before.task_id(row_before)], examples_after[task_id]
        pairs.append(TaskPair(task_id, key.number, level, one, other, other - one, *examples))
    return pairs


def why_not_comparable(sides: Sequence[ComparedRun]) -> ComparisonNote | None:
    """Why runs cannot be compared whatever they played; None if they can."""
    if len({side.reference for side in sides}) < len(sides):
        return ComparisonNote("The same run was selected twice. Choose another one.")
    first = sides[0]
    for other in sides[1:]:
        one, two = first.run.version, other.run.version
        if one.environment_id != two.environment_id:
            names = f"{one.environment.name} and {two.environment.name}"
            return ComparisonNote(f"These runs played different environments: {names}.")
        if one.id != two.id and not DERIVED & {first.run.kind, other.run.kind}:
            newer, older = (first, other) if one.number > two.number else (other, first)
            again = {"again": newer.run.id, "policy_id": older.run.policy_id, "checkpoint_id": older.run.checkpoint_id}
            return ComparisonNote(
                f"These runs played different versions of {one.environment.name}, v{one.number} and v{two.number}, "
                "whose tasks and rewards can differ. Evaluate both policies on one version.",
                href="/evaluations/new?" + urlencode({name: value for name, value in again.items() if value}),
                action=f"Evaluate {older.label} on v{newer.run.version.number}",
            )
    return None


def _weights(run: Run) -> dict[str, float]:
    return dict(zip(run.columns, run.weights, strict=False))


def notes_on(all_scores: Sequence[TaskScores], shared: TaskKeys) -> list[ComparisonNote]:
    """Differences between the runs that affect how far a comparison can be trusted."""
    import numpy as np

    sides = [each.side for each in all_scores]
    notes = [
        ComparisonNote(f"{side.label} is still {side.run.status}, so its figures will change.")
        for side in sides
        if not side.run.status.is_over
    ]
    weights = _weights(sides[0].run)
    if other := next((side for side in sides[1:] if _weights(side.run) != weights), None):
        theirs = _weights(other.run)
        names = sorted(name for name in weights.keys() | theirs.keys() if weights.get(name) != theirs.get(name))
        text = (
            f"The reward is a different sum in {sides[0].label} and {other.label} (weights of {', '.join(names)} "
            "differ). Compare the columns, not the reward."
        )
        notes.append(ComparisonNote(text))
    numbers = sorted({side.run.version.number for side in sides})
    if len(numbers) > 1:
        versions = " and ".join(f"v{number}" for number in numbers)
        notes.append(
            ComparisonNote(
                f"Rollouts of one version were scored with rewards of another: {versions}. Tasks are paired by seed."
            )
        )
    everything = TaskKeys(np.unique(np.concatenate([each.keys.packed for each in all_scores])))
    if len(everything) > len(shared):
        who = "both sides" if len(all_scores) == 2 else "all runs"
        text = f"Only tasks that {who} completed are compared: {len(shared):,} of {len(everything):,}."
        notes.append(ComparisonNote(text))
        first, last = (int(end) for end in (everything.fields["number"].min(), everything.fields["number"].max()))
        for each in all_scores:
            run, missing = each.side.run, len(everything) - each.completed
            text = f"{each.side.label} is missing {missing:,} tasks"
            if missing and run.can_resume:
                notes.append(ComparisonNote(f"{text} because rollouts failed.", f"/runs/{run.id}", "Resume it"))
            elif missing and run.kind is RunKind.EVALUATION and not run.is_imported:
                plan = {"again": run.id, "first_task": first, "tasks": last - first + 1}
                href = f"/evaluations/new?{urlencode(plan)}"
                notes.append(ComparisonNote(f"{text}.", href, f"Evaluate {missing:,} more tasks"))
            elif missing:
                notes.append(ComparisonNote(f"{text}."))
    plans = [
        (side, EvaluationPlan.model_validate(side.run.configuration))
        for side in sides
        if side.run.kind is RunKind.EVALUATION
    ]
    sizes = {side.label: f"{plan.group_size} per task" for side, plan in plans}
    sampling = {
        side.label: f"temperature {plan.sampling.temperature:g}, top p {plan.sampling.top_p:g}, "
        f"{plan.sampling.max_tokens_per_turn:,} tokens per turn"
        for side, plan in plans
        if not (side.run.policy and side.run.policy.configuration.get("script"))
    }
    for what, values in (("Different numbers of rollouts", sizes), ("Different sampling", sampling)):
        if len(set(values.values())) > 1:
            notes.append(ComparisonNote(f"{what}: " + "; ".join(f"{who} {how}" for who, how in values.items()) + "."))
    return notes
