"""Which tasks are played when: the same for the same choices, so that a resumed run plays the same ones."""

from collections.abc import Iterator, Sequence
from itertools import islice

from backend.domain.manifest import Manifest
from backend.domain.rollouts import TaskSpec, task_of
from backend.domain.training import TrainingConfiguration
from backend.domain.vocabulary import Split


def warm_up_tasks(manifest: Manifest, count: int) -> list[TaskSpec]:
    """The first training tasks, levels in turn; they begin anew when there are fewer."""
    return [task_of(manifest, Split.TRAIN, index % manifest.proctor.tasks.train) for index in range(count)]


def heldout_tasks(manifest: Manifest, count: int) -> list[TaskSpec]:
    """The first held-out tasks."""
    return [task_of(manifest, Split.HELDOUT, index) for index in range(min(count, manifest.proctor.tasks.heldout))]


def grpo_tasks(manifest: Manifest, configuration: TrainingConfiguration) -> list[TaskSpec]:
    """Tasks of all GRPO steps in order, every step with the wanted mix of levels; none was in the warm-up while there
    are enough."""
    grpo, tasks = configuration.grpo, manifest.proctor.tasks
    start = configuration.sft.episodes if configuration.recipe.has_sft else 0
    start += -start % tasks.levels
    used = [0] * tasks.levels
    chosen = []
    for level in islice(_mixed(grpo.levels or [1.0] * tasks.levels), grpo.steps * grpo.tasks_per_step):
        index = (start + level + used[level] * tasks.levels) % tasks.train
        used[level] += 1
        chosen.append(task_of(manifest, Split.TRAIN, index))
    return chosen


def _mixed(shares: Sequence[float]) -> Iterator[int]:
    """Levels without end, each as often as its share, spread evenly (smooth weighted round robin)."""
    credit = [0.0] * len(shares)
    total = sum(shares)
    while True:
        credit = [have + share for have, share in zip(credit, shares, strict=True)]
        level = max(range(len(credit)), key=credit.__getitem__)
        credit[level] -= total
        yield level
