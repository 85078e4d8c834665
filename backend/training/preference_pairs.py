"""Pairs of stored rollouts for preference training: selection and the check before a run starts."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preferences import PreferencePair, RankedEpisode, build_pairs, sampled_pairs
from backend.domain.vocabulary import Split
from backend.errors import InvalidInput
from backend.training.example_sources import LearningScope, RolloutSelection, passing_rollouts


@dataclass
class PairSelection:
    """The pairs of a run, in random order, and the rollouts that they come from."""

    pairs: list[PreferencePair] = field(default_factory=list)
    found: int = 0
    """Number of pairs before a sample was drawn."""
    tasks: int = 0
    """Tasks with a pair."""
    rollouts: RolloutSelection = field(default_factory=RolloutSelection)
    """`passing` counts rollouts on training tasks; the rest is counted as for SFT."""


def select_pairs(session: Session, configuration: TrainingConfiguration, scope: LearningScope) -> PairSelection:
    """Return the pairs to learn from. Raises InvalidInput with the wrong setting."""
    choice, selection = configuration.preferences, PairSelection()
    episodes, tasks = [], {}
    passing = passing_rollouts(session, "preferences", choice, scope, selection.rollouts)
    for row in session.execute(passing) if passing is not None else ():
        if row.split is Split.HELDOUT:
            selection.rollouts.heldout += 1
            continue
        selection.rollouts.foreign += row.version_id not in scope.version_ids
        episodes.append(RankedEpisode(row.id, row.task_id, row.reward, row.verdict))
        tasks[row.id] = row.task_id
    selection.rollouts.passing = len(episodes)
    pairs = build_pairs(episodes, choice)
    selection.found, selection.tasks = len(pairs), len({tasks[pair.chosen] for pair in pairs})
    selection.pairs = sampled_pairs(pairs, choice, configuration.seed)
    return selection


def check_pairs(session: Session, configuration: TrainingConfiguration, version_ids: Sequence[uuid.UUID]) -> None:
    """Raise InvalidInput if there are too few pairs to start a run."""
    selection = select_pairs(session, configuration, LearningScope(tuple(version_ids), configuration.seed))
    fewest, count = configuration.preferences.fewest, selection.found
    if count < fewest:
        raise InvalidInput(fields={"preferences.source": too_few(selection, fewest)})


def too_few(selection: PairSelection, fewest: int) -> str:
    count, rollouts = selection.found, selection.rollouts.passing
    pairs = "There are no pairs" if not count else "There is 1 pair" if count == 1 else f"There are {count:,} pairs"
    return (
        f"{pairs} among {rollouts:,} rollouts on training tasks; at least {fewest:,} are needed (preferences.fewest). "
        "A pair needs two rollouts of the same task that differ in verdict or reward: evaluate training tasks with "
        "several rollouts each, review more rollouts, or lower preferences.margin."
    )
