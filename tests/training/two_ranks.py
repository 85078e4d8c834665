"""One of two processes that play together: `python -m tests.training.two_ranks MEETING RANK`."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from torch import distributed

from backend.domain.rollouts.rollout import Rollout, Step, task_of
from backend.domain.vocabulary import Phase, RolloutStatus, Split, StopReason
from tests.factories import make_manifest
from workers.rollouts.engine import GroupPlan, TooManyFailures
from workers.training.ranks import Ranks, play_for_leader, play_together

MANIFEST = make_manifest("game", {"fours": 1.0})
PLANS = [GroupPlan(task_of(MANIFEST, Split.TRAIN, number), number, (0, 1)) for number in range(3)]
BROKEN = 9
"""A step in which the second rank fails."""


def play(step: int, plans: Sequence[GroupPlan]) -> list[Rollout]:
    if step == BROKEN and distributed.get_rank():
        raise TooManyFailures("the environment broke")
    return [episode(plan, member, step) for plan in plans for member in plan.members]


def episode(plan: GroupPlan, member: int, step: int) -> Rollout:
    """Everything in it that JSON could bend."""
    return Rollout(
        plan.task,
        Phase.TRAIN,
        plan.ordinal,
        member,
        RolloutStatus.COMPLETED,
        stop_reason=StopReason.DONE,
        reward=0.1 + 0.2,
        columns={"fours": 1 / 3},
        steps=[Step("4 ✓ \x00", {"n": [1, None]}, {}, "", {"fours": 5e-324}, True)],
        completion_token_ids=[3, 1],
        completion_mask=[1, 0],
        logprobs=[-1e-17, 0.0],
        training_step=step,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def lead(ranks: Ranks) -> None:
    assert play_together(ranks, 1, PLANS, play) == play(1, PLANS)
    assert play_together(ranks, 2, PLANS[:1], play) == play(2, PLANS[:1])
    with pytest.raises(TooManyFailures, match="the environment broke"):
        play_together(ranks, BROKEN, PLANS, play)
    assert ranks.scatter([{"rows": [1]}, {"rows": [2]}]) == {"rows": [1]}
    assert ranks.gather("mine") == ["mine", "theirs"]
    assert ranks.decide(lambda: [1, "go on"]) == [1, "go on"]


def follow(ranks: Ranks) -> None:
    assert play_for_leader(ranks, play) == {"rows": [2]}
    assert ranks.gather("theirs") == []
    assert ranks.decide(lambda: 1 / 0) == [1, "go on"]


def main(meeting: Path, number: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # noqa: TID251 - as the launcher says it
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=2)
    ranks = Ranks(number, 2)
    lead(ranks) if ranks.leads else follow(ranks)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
