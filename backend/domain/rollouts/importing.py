"""Records that arrive become rollouts of a run here: each finds its task, its group and its place in it."""

from collections import Counter
from dataclasses import dataclass, field

from backend.domain.environments.manifest import Manifest
from backend.domain.ids import stable_id
from backend.domain.rollouts.conversation import steps_of
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.record import RolloutRecord, StepRecord, TaskRecord
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec, task_of
from backend.domain.vocabulary import Phase, RolloutStatus, Split, StopReason


class PlacedTwice(ValueError):
    """Two rollouts claim the same place in a group."""


@dataclass
class Arrivals:
    """Puts one file's records in their places."""

    manifest: Manifest
    split: Split
    """Of tasks that do not say theirs."""
    are_tasks_shared: bool
    """The file's tasks are those of the environment, number by number. Otherwise they get seeds that no task of ours
    has, so that rollouts of different questions are never compared as if they were of the same."""
    _groups: dict[tuple[object, ...], int] = field(default_factory=dict)
    _members: Counter[int] = field(default_factory=Counter)
    _taken: set[tuple[int, int]] = field(default_factory=set)

    def place(self, record: RolloutRecord, number: int) -> Rollout:
        """Record `number` (from 0) of the file as a rollout. Raises PlacedTwice."""
        task = self._task(record.task or TaskRecord(index=number))
        key = (record.phase, record.training_step, task.split, task.index, task.seed, record.group)
        group = self._groups.setdefault(key, len(self._groups))
        member = self._members[group] if record.member is None else record.member
        if (group, member) in self._taken:
            raise PlacedTwice(f"member {member} of the group on task {task.key} occurs twice")
        self._taken.add((group, member))
        self._members[group] = max(self._members[group], member + 1)
        return rollout_of(record, task, group, member)

    def _task(self, given: TaskRecord) -> TaskSpec:
        split = given.split or self.split
        usual = task_of(self.manifest, split, given.index)
        seed = usual.seed if given.seed is None else given.seed
        if not self.are_tasks_shared:
            seed = _foreign_seed(split, given)
        level = usual.level if given.level is None else given.level
        return TaskSpec(split, given.index, level, seed, given.arguments)


def _foreign_seed(split: Split, given: TaskRecord) -> int:
    """Below zero, where no task of ours has its seed; the same for the same task of another file."""
    return -1 - (stable_id("foreign task", split, given.index, given.seed).int >> 66)


def rollout_of(record: RolloutRecord, task: TaskSpec, group: int, member: int) -> Rollout:
    tokens = record.tokens
    steps = record.steps or [StepRecord.model_validate(step) for step in steps_of(record.messages)]
    is_done = record.status is RolloutStatus.COMPLETED
    rollout = Rollout(
        task=task,
        phase=Phase.EVALUATION,
        group=group,
        member=member,
        status=record.status,
        stop_reason=(record.stop_reason or StopReason.DONE) if is_done else record.stop_reason,
        error_kind=record.error.kind if record.error else None,
        error_message=record.error.message if record.error else None,
        attempts=record.attempts,
        reward=record.reward,
        columns={name: earned.score for name, earned in record.rewards.items()},
        metrics={name: value for name, value in record.metrics.items() if value is not None},
        opening=record.opening,
        steps=[Step(**step.model_dump()) for step in steps],
        messages=record.messages,
        is_truncated=record.is_truncated,
        advantage=record.advantage,
        started_at=record.started_at,
        ended_at=record.ended_at,
        cost=record.cost,
        **{name: getattr(record, name) for name in MEASURED},
    )
    if tokens is not None:
        rollout.prompt_token_ids, rollout.completion_token_ids = tokens.prompt, tokens.completion
        rollout.completion_mask = list(tokens.mask) if tokens.mask is not None else None
        rollout.logprobs = [value or 0.0 for value in tokens.logprobs] if tokens.logprobs is not None else None
        rollout.token_texts, rollout.token_turns = tokens.texts, tokens.turns
        rollout.turn_advantages = tokens.turn_advantages
    return rollout
