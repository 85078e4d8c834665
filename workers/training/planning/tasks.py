"""Tasks that are the same whenever they are asked for: those of the warm-up, and those of the examination."""

from collections.abc import Sequence

from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.training.mix import portions
from backend.domain.vocabulary import Split
from workers.training.planning.training_env import Venue
from workers.training.planning.turns import Turns


def warm_up_tasks(venues: Sequence[Venue], count: int) -> list[TaskSpec]:
    """The first training tasks of each environment by weight, levels in turn; they begin anew when there are fewer."""
    weights = [venue.weight for venue in venues]
    return _interleaved(venues, portions(weights, count), Split.TRAIN)


def heldout_tasks(venues: Sequence[Venue], count: int) -> list[TaskSpec]:
    """The first held-out tasks of each environment by weight, each once."""
    wanted = portions([venue.weight for venue in venues], count)
    there = [min(each, venue.manifest.proctor.tasks.heldout) for each, venue in zip(wanted, venues, strict=True)]
    return _interleaved(venues, there, Split.HELDOUT)


def _interleaved(venues: Sequence[Venue], counts: Sequence[int], split: Split) -> list[TaskSpec]:
    """So many tasks of each, evenly mixed: what is cut off at any place has all of them."""
    turns = Turns(counts)
    taken = [0] * len(venues)
    tasks = []
    for _ in range(sum(counts)):
        place = turns.next()
        tasks.append(venues[place].task(split, taken[place]))
        taken[place] += 1
    return tasks
