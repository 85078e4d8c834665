"""A game of two turns without a server: the more often a reply holds the digit 4, the better."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from backend.domain.environments.manifest import RewardColumn
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec, columns_over_episode, task_of
from backend.domain.training.configuration import ModelChoice
from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.warm_up import SftChoice
from backend.domain.vocabulary import Phase, RolloutStatus, Split, StopReason
from tests.factories import make_manifest
from workers.models.build import build_model, build_tokenizer
from workers.models.load import load_folder
from workers.models.policy import LocalPolicy
from workers.models.vllm_adapters import AdapterServer
from workers.policies.base import EpisodeStart, Turn
from workers.rollouts.engine import GroupPlan, policy_seed
from workers.training.ahead import SampleAhead, SampleOrder, load_trained
from workers.training.examples import TrainingExample
from workers.training.grpo_batch import GrpoControls, GrpoRun, GrpoStep, Masked, Screened
from workers.training.hardware import FLOAT32, Hardware
from workers.training.ranks import ALONE, Ranks, play_together
from workers.training.sft import SftRun, train_sft
from workers.training.trl_grpo import train_grpo

COLUMNS = [RewardColumn(name="fours", weight=1.0), RewardColumn(name="brevity", weight=0.1)]
MANIFEST = make_manifest("game", {"fours": 1.0, "brevity": 0.1})
CHOICE = GrpoChoice(steps=4, tasks_per_step=3, group_size=4, learning_rate=1e-3, max_grad_norm=1.0, beta=0.0)

OPENING = "Say <move>4</move>."

Spoil = Callable[[list[Rollout]], None]


def make_tiny() -> tuple[Any, Any]:
    """Two layers, the same weights every time."""
    texts = ["Say <move>4</move>.", *(f"<move>{digit}</move>" for digit in range(10))] * 5
    tokenizer = build_tokenizer(texts, context=96)
    return build_model(tokenizer, ModelChoice(context=96), seed=5), tokenizer


class Game:
    """`play` is what a GRPO stage asks for its rollouts."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        seed: int = 1,
        spoil: Spoil | None = None,
        turns: int = 2,
        openings: Sequence[str] = (OPENING,),
    ) -> None:
        self.policy = LocalPolicy(model, tokenizer, lockstep=True)
        self.openings = openings
        self.seed, self.spoil, self.turns = seed, spoil, turns
        self.played: dict[int, list[Rollout]] = {}

    def play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        rollouts = asyncio.run(self._play(step, ordinals))
        self.played[step] = rollouts
        if self.spoil:
            self.spoil(rollouts)
        return rollouts

    async def _play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        places = [(ordinal, member) for ordinal in ordinals for member in range(CHOICE.group_size)]
        self.policy.expected = len(places)
        return list(await asyncio.gather(*(self._episode(step, *place) for place in places)))

    async def _episode(self, step: int, ordinal: int, member: int) -> Rollout:
        task = task_of(MANIFEST, Split.TRAIN, step * 100 + ordinal)
        player = await self.policy.begin(
            EpisodeStart(task, MANIFEST, member, policy_seed(self.seed, task, member, step))
        )
        messages = [{"role": "user", "content": self.openings[ordinal % len(self.openings)]}]
        steps = []
        for index in range(self.turns):
            reply = await player.act(Turn(index, messages, "", {}, {}, {}, 4 + member % 3))
            steps.append(Step(reply.text, {}, {}, "", worth(reply.text), index == self.turns - 1))
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "Say it."}]
        player.close()
        trace = player.trace()
        assert trace is not None
        rewards = columns_over_episode(COLUMNS, (step.rewards for step in steps))
        rollout = completed(task, ordinal, member, rewards)
        rollout.steps = steps
        rollout.prompt_token_ids, rollout.completion_token_ids = trace.prompt, trace.completion
        rollout.completion_mask, rollout.logprobs = trace.mask, trace.logprobs
        rollout.messages, rollout.training_step, rollout.tokens_out = messages[:-1], step, sum(trace.mask)
        return rollout


def worth(reply: str) -> dict[str, float]:
    return {"fours": reply.count("4") + reply.count("m") / 4, "brevity": -len(reply) / 50}


class Outcome:
    """A GRPO stage on the game, trained."""

    def __init__(
        self,
        folder: Path,
        *,
        choice: GrpoChoice = CHOICE,
        stop_after: int = 0,
        spoil: Spoil | None = None,
        start: Path | None = None,
        turns: int = 2,
        openings: Sequence[str] = (OPENING,),
        after_step: Callable[["Outcome", GrpoStep], None] = lambda *_: None,
        controls: GrpoControls | None = None,
        masked: Masked = lambda _: set(),
        screened: Screened = lambda *_: set(),
        is_told: bool = True,
        hardware: Hardware = FLOAT32,
        before_play: Callable[[SampleOrder], None] = lambda _: None,
        ranks: Ranks = ALONE,
        server: AdapterServer | None = None,
    ) -> None:
        """`before_play`: called in the thread that samples ahead, if `choice.staleness` is above 0."""
        self.model, tokenizer = load_folder(start) if start else make_tiny()
        self.untrained = self.weights
        self.game = Game(self.model, tokenizer, spoil=spoil, turns=turns, openings=openings)
        self.game.policy.sampler.is_bf16 = hardware.is_bf16
        self.server = server
        if server is not None:
            self.game.policy.sample_with(server)
        self.steps: list[GrpoStep] = []
        self.stop_after, self.after_step = stop_after, after_step
        self.controls = controls or GrpoControls()
        self.orders: list[SampleOrder] = []
        self.ahead = None
        if choice.staleness:
            model, _ = load_folder(start) if start else make_tiny()
            self.game = Game(model, tokenizer, spoil=spoil, turns=turns, openings=openings)

            def play(order: SampleOrder, weights: Path) -> list[Rollout]:
                self.orders.append(order)
                before_play(order)
                load_trained(model, weights)
                self.game.policy.sampler.temperature = order.temperature
                return self.game.play(order.step, range(choice.tasks_per_step))

            self.ahead = SampleAhead(choice=choice, folder=folder, plan=lambda _: [], play=play)
        with self.ahead or nullcontext():
            self._train(tokenizer, folder, choice, masked, screened, hardware, ranks, is_told=is_told)

    def _train(
        self,
        tokenizer: Any,
        folder: Path,
        choice: GrpoChoice,
        masked: Masked,
        screened: Screened,
        hardware: Hardware,
        ranks: Ranks,
        *,
        is_told: bool,
    ) -> None:
        ahead = self.ahead

        def play(step: int, ordinals: Sequence[int]) -> list[Rollout]:
            return play_together(ranks, step, plans_of(ordinals), self.play_plans)

        train_grpo(
            GrpoRun(
                model=self.model,
                tokenizer=tokenizer,
                choice=choice,
                columns=COLUMNS,
                seed=3,
                folder=folder,
                save_every=2,
                play=(lambda step, _: ahead.take(step)) if ahead else play,
                play_plans=self.play_plans,
                sync_sampler=partial(self.server.swap, self.model) if self.server else lambda: None,
                ahead=ahead,
                ranks=ranks,
                on_step=self.take,
                masked=masked,
                screened=screened,
                controls=self.controls,
                policy=self.game.policy if is_told else None,
                hardware=hardware,
            )
        )

    def play_plans(self, step: int, plans: Sequence[GroupPlan]) -> list[Rollout]:
        return self.game.play(step, [plan.ordinal for plan in plans])

    def take(self, step: GrpoStep) -> bool:
        self.steps.append(step)
        self.after_step(self, step)
        return step.step != self.stop_after

    @property
    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def plans_of(ordinals: Sequence[int]) -> list[GroupPlan]:
    return [GroupPlan(task_of(MANIFEST, Split.TRAIN, ordinal), ordinal, (0,)) for ordinal in ordinals]


def batch_run(play: Callable[[int, Sequence[int]], list[Rollout]], choice: GrpoChoice, **fields: Any) -> GrpoRun:
    """A stage of which only the playing is of interest."""
    return GrpoRun(
        model=None,
        tokenizer=None,
        choice=choice,
        columns=COLUMNS,
        seed=0,
        folder=Path(),
        save_every=1,
        play=play,
        on_step=lambda _: True,
        **fields,
    )


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


def some_examples(tokenizer: Any, count: int = 40) -> list[TrainingExample]:
    """Replies of which only the last is to be learned."""
    end = tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say <move>4</move>."}], return_dict=False, add_generation_prompt=True
    )
    lessons = []
    for number in range(count):
        spoiled = [*tokenizer.encode("<move>" * (number % 3)), end]
        good = [*tokenizer.encode("<move>4</move>"), end]
        lessons.append(
            TrainingExample(prompt, spoiled + prompt + good, [0] * (len(spoiled) + len(prompt)) + [1] * len(good))
        )
    return lessons


def warmed_up(folder: Path, steps: int) -> Any:
    """A model that learned for this many steps to answer <move>4</move>."""
    model, tokenizer = make_tiny()
    train_sft(
        SftRun(
            model=model,
            tokenizer=tokenizer,
            choice=SftChoice(steps=steps, batch=8, learning_rate=3e-3, warmup_steps=2),
            examples=some_examples(tokenizer),
            seed=3,
            folder=folder,
            save_every=1000,
            on_step=lambda *_: True,
        )
    )
    return model, tokenizer
