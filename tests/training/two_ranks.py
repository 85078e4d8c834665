"""One of two processes that play and learn together: `python -m tests.training.two_ranks FOLDER PORT RANK`."""

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import distributed

from backend.domain.rollouts.rollout import Rollout, Step, task_of
from backend.domain.training.warm_up import SftChoice
from backend.domain.vocabulary import Phase, RolloutStatus, Split, StopReason
from tests.factories import make_manifest
from tests.training.game import CHOICE, Outcome, some_examples
from workers.models.load import load_folder
from workers.rollouts.engine import GroupPlan, TooManyFailures
from workers.training.checkpoints import save_model
from workers.training.hardware import FLOAT32, Hardware
from workers.training.ranks import ALONE, Ranks, join, play_for_leader, play_together
from workers.training.sft import SftRun, train_sft

MANIFEST = make_manifest("game", {"fours": 1.0})
PLANS = [GroupPlan(task_of(MANIFEST, Split.TRAIN, number), number, (0, 1)) for number in range(3)]
SHORT = CHOICE.model_copy(update={"steps": 2, "tasks_per_step": 2, "beta": 0.05})
STARTS = ("whole", "adapter")
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


class Learned(NamedTuple):
    """Figures of a short GRPO stage and of an SFT stage, by step."""

    grpo: list[dict[str, float]]
    sft: list[dict[str, float]]


def learn(folder: Path, start: Path, ranks: Ranks = ALONE, hardware: Hardware = FLOAT32) -> Learned:
    """Learn from the weights in `start`. The leader saves the results in the folder as checkpoints.

    All weights learn by GRPO and SFT. An adapter learns by GRPO, which is interrupted and resumed on several ranks.
    """
    grpo: list[dict[str, float]] = []
    is_whole = start.name.startswith(STARTS[0])
    for stop_after in (0,) if is_whole or ranks.count == 1 else (1, 0):
        outcome = Outcome(
            folder / "states", start=start, choice=SHORT, stop_after=stop_after, ranks=ranks, hardware=hardware
        )
        grpo += [step.figures for step in outcome.steps]
    model, tokenizer = load_folder(start)
    if ranks.leads:
        save_model(outcome.model, tokenizer, folder / "grpo")
    sft: list[dict[str, float]] = []
    if not is_whole:
        return Learned(grpo, sft)

    def on_step(step: int, figures: dict[str, float]) -> bool:
        if figures:
            sft.append(figures)
        elif step == 1:
            save_model(model, tokenizer, folder / "sft-1")
        return True

    run = SftRun(
        model=model,
        tokenizer=tokenizer,
        choice=SftChoice(steps=2, batch=8, learning_rate=3e-3, warmup_steps=0, examine_every=1),
        examples=some_examples(tokenizer),
        seed=3,
        folder=folder / "sft-states",
        save_every=1000,
        on_step=on_step,
        ranks=ranks,
        hardware=hardware,
    )
    train_sft(run)
    if ranks.leads:
        save_model(model, tokenizer, folder / "sft-2")
    return Learned(grpo, sft)


def main(folder: Path, port: str, number: int) -> None:
    told = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ |= told | {name: str(value) for name, value in places.items()}  # noqa: TID251 - as the launcher does
    torch.set_num_threads(1)
    ranks = join()
    lead(ranks) if ranks.leads else follow(ranks)
    for name in STARTS:
        learned = learn(folder / name, folder / f"{name}-start", ranks, Hardware(is_sharded=name == "adapter"))
        if ranks.leads:
            (folder / f"{name}.json").write_text(json.dumps(learned))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
