"""A game of two turns without a server: the more often a reply holds the digit 4, the better."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from backend.domain.manifest import RewardColumn
from backend.domain.reinforcement import GrpoChoice
from backend.domain.rollouts import Rollout, Step, TaskSpec, task_of
from backend.domain.training import ModelChoice
from backend.domain.vocabulary import Phase, RolloutStatus, Split, StopReason
from tests.factories import make_manifest
from workers.models.build import build_model, build_tokenizer
from workers.models.policy import LocalPolicy
from workers.policies.base import EpisodeStart, Turn
from workers.rollouts.engine import policy_seed
from workers.training.lessons import Lesson

COLUMNS = [RewardColumn(name="fours", weight=1.0), RewardColumn(name="brevity", weight=0.1)]
MANIFEST = make_manifest("game", {"fours": 1.0, "brevity": 0.1})
CHOICE = GrpoChoice(steps=4, tasks_per_step=3, group_size=4, learning_rate=1e-3, max_grad_norm=1.0, beta=0.0)

Spoil = Callable[[list[Rollout]], None]


def make_tiny() -> tuple[Any, Any]:
    """Two layers, the same weights every time."""
    texts = ["Say <move>4</move>.", *(f"<move>{digit}</move>" for digit in range(10))] * 5
    tokenizer = build_tokenizer(texts, context=96)
    return build_model(tokenizer, ModelChoice(context=96), seed=5), tokenizer


class Game:
    """`play` is what a GRPO stage asks for its rollouts."""

    def __init__(self, model: Any, tokenizer: Any, *, seed: int = 1, spoil: Spoil | None = None) -> None:
        self.policy = LocalPolicy(model, tokenizer, lockstep=True)
        self.seed, self.spoil = seed, spoil
        self.played: dict[int, list[Rollout]] = {}

    def play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        rollouts = asyncio.run(self._play(step, ordinals))
        self.played[step] = rollouts
        if self.spoil:
            self.spoil(rollouts)
        return rollouts

    async def _play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        places = [(ordinal, member) for ordinal in ordinals for member in range(CHOICE.group_size)]
        self.policy.expect(len(places))
        return list(await asyncio.gather(*(self._episode(step, *place) for place in places)))

    async def _episode(self, step: int, ordinal: int, member: int) -> Rollout:
        task = task_of(MANIFEST, Split.TRAIN, step * 100 + ordinal)
        player = await self.policy.begin(
            EpisodeStart(task, MANIFEST, member, policy_seed(self.seed, task, member, step))
        )
        messages = [{"role": "user", "content": "Say <move>4</move>."}]
        written = ""
        for index in range(2):
            reply = await player.act(Turn(index, messages, "", {}, {}, {}, 5))
            written += reply.text
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "Say it."}]
        player.close()
        trace = player.trace()
        assert trace is not None
        rollout = completed(
            task, ordinal, member, {"fours": written.count("4") + written.count("m") / 4, "brevity": -len(written) / 50}
        )
        rollout.prompt_token_ids, rollout.completion_token_ids = trace.prompt, trace.completion
        rollout.completion_mask, rollout.logprobs = trace.mask, trace.logprobs
        rollout.messages, rollout.training_step, rollout.tokens_out = messages[:-1], step, sum(trace.mask)
        return rollout


def completed(task: TaskSpec, group: int, member: int, columns: dict[str, float]) -> Rollout:
    return Rollout(
        task,
        Phase.TRAIN,
        group,
        member,
        RolloutStatus.COMPLETED,
        stop_reason=StopReason.DONE,
        reward=sum(column.weight * columns[column.name] for column in COLUMNS),
        columns=columns,
        steps=[Step("", {}, {}, "", {}, True)],
    )


def some_lessons(tokenizer: Any, count: int = 40) -> list[Lesson]:
    """Replies of which only the last is to be learned."""
    end = tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say <move>4</move>."}], return_dict=False, add_generation_prompt=True
    )
    lessons = []
    for number in range(count):
        spoiled = [*tokenizer.encode("<move>" * (number % 3)), end]
        good = [*tokenizer.encode("<move>4</move>"), end]
        lessons.append(Lesson(prompt, spoiled + prompt + good, [0] * (len(spoiled) + len(prompt)) + [1] * len(good)))
    return lessons
