"""What an evaluation was asked to do, resolved: `Run.configuration` of an evaluation is one of these as JSON."""

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.vocabulary import Split


class Sampling(BaseModel):
    """How a policy that samples chooses its tokens. Scripted policies ignore it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=1.0, ge=0, le=5, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens_per_turn: int = Field(default=256, ge=1, le=131072)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


class EvaluationPlan(BaseModel):
    """One policy on tasks `first_task` … `first_task + tasks - 1` of a split, `group_size` rollouts each."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    split: Split = Split.HELDOUT
    tasks: int = Field(default=100, ge=1, le=100_000)
    first_task: int = Field(default=0, ge=0)
    group_size: int = Field(default=1, ge=1, le=256)
    sampling: Sampling = Sampling()
    concurrency: int = Field(default=64, ge=1, le=1024)
    """Episodes in flight."""

    @property
    def rollouts(self) -> int:
        return self.tasks * self.group_size

    @property
    def task_indexes(self) -> range:
        return range(self.first_task, self.first_task + self.tasks)
