"""Turn imported records into rollouts: assign each one its task, its group and its index in the group."""

from collections import Counter
from dataclasses import dataclass, field, replace

from backend.domain.environments.manifest import Manifest
from backend.domain.ids import stable_id
from backend.domain.rollouts.conversation import steps_of
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.record import RolloutRecord, TaskRecord
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec, task_of
from backend.domain.vocabulary import Phase, RolloutStatus, Split, StopReason


class DuplicateRollout(ValueError):
    """Two rollouts have the same index in a group."""


@dataclass
class RolloutPlacer:
    manifest: Manifest
    split: Split
    """Split of tasks that do not name theirs."""
    are_tasks_shared: bool
    """The file's task numbers are those of the environment. Otherwise tasks get seeds that no task of ours has, so that
    rollouts of different questions are never compared."""
    _groups: dict[tuple[object, ...], int] = field(default_factory=dict)
    _members: Counter[int] = field(default_factory=Counter)
    _taken: set[tuple[int, int]] = field(default_factory=set)

    def place(self, record: RolloutRecord, number: int) -> Rollout:
        """Convert record `number` (from 0) of the file. Raises DuplicateRollout."""
        given = record.task or TaskRecord(index=number)
        split = given.split or self.split
        seed = given.seed
        if not self.are_tasks_shared:  # negative, which no task of ours has; the same for the same task of another file
            seed = -1 - (stable_id("foreign task", split, given.index, given.seed).int >> 66)
        task = replace(task_of(self.manifest, split, given.index, seed, given.level), arguments=given.arguments)
        key = (record.phase, record.training_step, task.split, task.index, task.seed, record.group)
        group = self._groups.setdefault(key, len(self._groups))
        member = self._members[group] if record.member is None else record.member
        if (group, member) in self._taken:
            raise DuplicateRollout(f"member {member} of the group on task {task.key} occurs twice")
        self._taken.add((group, member))
        self._members[group] = max(self._members[group], member + 1)
        return rollout_of(record, task, group, member)


def rollout_of(record: RolloutRecord, task: TaskSpec, group: int, member: int) -> Rollout:
    same = ("status", "attempts", "reward", "opening", "messages", "is_truncated", "advantage", "cost")
    times = ("started_at", "ended_at")
    default_stop = StopReason.DONE if record.status is RolloutStatus.COMPLETED else None
    rollout = Rollout(
        task=task,
        phase=Phase.EVALUATION,
        group=group,
        member=member,
        stop_reason=record.stop_reason or default_stop,
        error_kind=record.error.kind if record.error else None,
        error_message=record.error.message if record.error else None,
        columns={name: reward.score for name, reward in record.rewards.items()},
        metrics={name: value for name, value in record.metrics.items() if value is not None},
        steps=record.steps or [Step(**step) for step in steps_of(record.messages)],
        **{name: getattr(record, name) for name in (*same, *times, *MEASURED)},
    )
    if (tokens := record.tokens) is not None:
        rollout.prompt_token_ids, rollout.completion_token_ids = tokens.prompt, tokens.completion
        rollout.completion_mask = list(tokens.mask) if tokens.mask is not None else None
        rollout.logprobs = [value or 0.0 for value in tokens.logprobs] if tokens.logprobs is not None else None
        rollout.token_texts, rollout.token_turns = tokens.texts, tokens.turns
        rollout.turn_advantages = tokens.turn_advantages
    return rollout
