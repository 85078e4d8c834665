"""The resolved settings of an evaluation: its `Run.configuration` contains an `EvaluationPlan` as JSON."""

from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from backend.domain.described import Described
from backend.domain.environments.manifest import ContextSpec
from backend.domain.vocabulary import Split


class Sampling(BaseModel):
    """Sampling of tokens. Scripted policies ignore it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=1.0, ge=0, le=5, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens_per_turn: int = Field(default=256, ge=1, le=131072)


class Opponent(BaseModel):
    """The policy that takes the other seats of an environment that has seats."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    policy_id: str
    checkpoint_id: str | None = None
    name: str
    price: dict[str, object] | None = None

    @property
    def key(self) -> str:
        """How a request names it."""
        return f"{self.policy_id}:{self.checkpoint_id}" if self.checkpoint_id else self.policy_id


class EvaluationScope(Described):
    """Settings that a person requests and a run keeps as they are."""

    model_config = ConfigDict(extra="ignore")

    split: Split = Split.HELDOUT
    """Split to take the tasks from."""
    tasks: int = Field(default=100, ge=1, le=100_000)
    """Number of tasks."""
    first_task: int = Field(default=0, ge=0)
    """Index of the first task."""
    group_size: int = Field(default=1, ge=1, le=256)
    """Rollouts per task."""
    workers: int = Field(default=1, ge=1, le=16)
    """Number of jobs that share the groups."""
    retries: int = Field(default=2, ge=0, le=10)
    """Further attempts at a failed rollout."""
    context: ContextSpec | None = None
    """The part of the conversation that the policy reads: full, or last:N for its start and the last N turns.

    Default: the environment's setting.
    """


class EvaluationPlan(EvaluationScope, frozen=True):
    """One policy on tasks `first_task` … `first_task + tasks - 1` of a split, `group_size` rollouts each.

    At the end of the run, each failed rollout is tried once more.
    """

    task_indexes_given: tuple[int, ...] = ()
    """These tasks instead, in this order; `tasks` is then their number."""
    sampling: Sampling = Sampling()
    concurrency: int = Field(default=64, ge=1, le=1024)
    """Maximum number of concurrent episodes per worker; fewer during an overload."""
    judge_ids: list[str] = Field(default=[], max_length=16)
    """Judges that grade the rollouts at the end of the run."""
    opponent: Opponent | None = None
    """Environments with seats only. Default: the manifest's script takes the other seats."""

    @property
    def rollouts(self) -> int:
        return self.tasks * self.group_size

    @property
    def task_indexes(self) -> Sequence[int]:
        return self.task_indexes_given or range(self.first_task, self.first_task + self.tasks)

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.task_indexes_given and len(self.task_indexes_given) != self.tasks:
            raise ValueError(f"{len(self.task_indexes_given)} tasks are given, `tasks` says {self.tasks}")
        return self
