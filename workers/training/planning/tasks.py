"""Tasks that are the same whenever they are asked for: those of the warm-up, and those of the examination."""

from collections.abc import Sequence

from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.training.mix import portions
from backend.domain.vocabulary import Split
from workers.training.planning.training_env import TrainingEnv
from workers.training.planning.turns import Turns


def warm_up_tasks(envs: Sequence[TrainingEnv], count: int) -> list[TaskSpec]:
    """The first training tasks of each environment by weight, levels in turn; they begin anew when there are fewer."""
    weights = [env.weight for env in envs]
    return _interleaved(envs, portions(weights, count), Split.TRAIN)


def heldout_tasks(envs: Sequence[TrainingEnv], count: int) -> list[TaskSpec]:
    """The first held-out tasks of each environment by weight, each once."""
    wanted = portions([env.weight for env in envs], count)
    there = [min(each, env.manifest.proctor.tasks.heldout) for each, env in zip(wanted, envs, strict=True)]
    return _interleaved(envs, there, Split.HELDOUT)


def _interleaved(envs: Sequence[TrainingEnv], counts: Sequence[int], split: Split) -> list[TaskSpec]:
    """So many tasks of each, evenly mixed: what is cut off at any place has all of them."""
    turns = Turns(counts)
    taken = [0] * len(envs)
    tasks = []
    for _ in range(sum(counts)):
        place = turns.next()
        tasks.append(envs[place].task(split, taken[place]))
        taken[place] += 1
    return tasks
