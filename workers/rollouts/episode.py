"""One episode: reset → observation → text → policy → reply → action → step → … until it ends, into a `Rollout`."""

import asyncio
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, PolicyError, boundary
from backend.domain.manifest import PLATFORM_COLUMNS, Manifest
from backend.domain.prompts import Parsed, parse_reply, render_observation, render_system, render_unparsable
from backend.domain.rollouts import Rollout, Step, columns_over_episode, weighted_reward
from backend.domain.tools import ToolsUnusable, read_tools, render_tools
from backend.domain.vocabulary import RolloutStatus, StopReason
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn
from workers.rollouts.bounds import Shelf

if TYPE_CHECKING:
    from workers.environments.client import EnvSession, Observation

MAX_METRICS = 64
"""Names beyond the declared columns that one rollout may carry."""


class RewardsMissing(EnvError):
    """The environment sent none of the reward columns that its manifest declares."""

    is_retryable = False


@dataclass(frozen=True)
class Rules:
    """What holds for every episode of one environment version."""

    manifest: Manifest
    action_schema: dict[str, Any]

    @cached_property
    def environment_columns(self) -> frozenset[str]:
        return frozenset(self.manifest.column_names) - set(PLATFORM_COLUMNS)

    @cached_property
    def raw_field(self) -> str | None:
        """The action's field that takes an unparsable reply when the manifest says `pass`."""
        if field := self.manifest.proctor.agent.action.field:
            return field
        properties = self.action_schema.get("properties", {})
        return next((name for name, schema in properties.items() if schema.get("type") == "string"), None)


class Episode:
    """Plays once and fills its rollout. Raises RolloutError when the infrastructure fails; `rollout` holds what was."""

    def __init__(self, rules: Rules, session: "EnvSession", rollout: Rollout) -> None:
        self.rules = rules
        self.session = session
        self.rollout = rollout
        self._agent = rules.manifest.proctor.agent
        self._action = self._agent.action
        self._limits = rules.manifest.proctor.episode
        self._shelf = Shelf()
        self._observation: dict[str, Any] = {}
        self._tools = tuple(self._action.tools) if isinstance(self._action.tools, list) else ()
        self._text = ""
        self._parsed_turns = 0
        self._is_done = False
        self._awaited = ""
        """What the episode waits for, should its time be over meanwhile."""

    async def play(self, policy: Policy, start: EpisodeStart) -> None:
        seconds = self._limits.episode_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._play(policy, start)
        except TimeoutError as cause:
            self.rollout.stop_reason = StopReason.EPISODE_TIMEOUT
            raise LimitExceeded(f"the episode took longer than {seconds:g} s (waiting for {self._awaited})") from cause
        self._score()

    async def _play(self, policy: Policy, start: EpisodeStart) -> None:
        await self._open()
        self._awaited = "the policy"
        async with boundary(PolicyError, "policy"):
            player = await policy.begin(start)
        try:
            self.rollout.stop_reason = await self._turns(player)
            self._keep_tokens(player)
        finally:
            player.close()

    async def _open(self) -> None:
        began = perf_counter()
        arguments = self.rollout.task.reset_arguments()
        self._awaited = "the environment to reset"
        opening = await self.session.reset(arguments, timeout=self._limits.step_timeout_seconds)
        self.rollout.environment_seconds += perf_counter() - began
        if opening.done:
            raise EnvError("the environment was over as soon as it was reset")
        self.rollout.opening = self._shelf.observation(opening.fields)
        self._see(opening, is_first=True)
        if self._action.discover:
            self._awaited = "the environment to list its tools"
            listing = await self.session.step(self._action.discover, timeout=self._limits.step_timeout_seconds)
            self._look_for_tools(listing)
            name = str(self._action.tools)
            self.rollout.opening = self._shelf.observation({**opening.fields, name: listing.fields.get(name)})
        if isinstance(self._action.tools, str) and not self._tools:
            raise EnvError(f"the environment lists no tools under `{self._action.tools}`")
        if system := render_system(self._agent, self._tools):
            self.rollout.messages.append({"role": "system", "content": system})

    async def _turns(self, player: Player) -> StopReason:
        for index in range(self._limits.max_turns):
            began = perf_counter()
            reply = await self._ask(player, index)
            stop = await self._answer(reply, perf_counter() - began)
            if stop is not None:
                return stop
        return StopReason.MAX_TURNS

    async def _ask(self, player: Player, index: int) -> Reply:
        rollout = self.rollout
        rollout.messages.append({"role": "user", "content": self._text})
        turn = Turn(
            index=index,
            messages=rollout.messages,
            text=self._text,
            observation=self._observation,
            scripts=await self._scripts() if player.wants_scripts else {},
            action_schema=self.rules.action_schema,
            max_tokens=self._limits.max_tokens_per_turn,
            tools=self._tools,
        )
        self._awaited = "the policy"
        async with boundary(PolicyError, "policy"):
            reply = await player.act(turn)
        rollout.messages.append({"role": "assistant", "content": reply.text})
        if reply.not_made:
            calls = [{"name": call.name, "arguments": call.arguments} for call in reply.not_made]
            rollout.messages[-1]["not_made"] = calls
        rollout.tokens_in += reply.tokens_in
        rollout.tokens_out += reply.tokens_out
        rollout.is_truncated |= reply.is_truncated
        return reply

    async def _scripts(self) -> dict[str, str]:
        self._awaited = "the environment's state"
        state = await self.session.state(timeout=self._limits.step_timeout_seconds)
        scripts = state.get("scripts")
        return scripts if isinstance(scripts, dict) else {}

    async def _answer(self, reply: Reply, policy_seconds: float) -> StopReason | None:
        """Take the reply to the environment, or say why it could not be read. The reason when the episode ends."""
        self.rollout.policy_seconds += policy_seconds
        parsed = parse_reply(self._action, reply.text, self._tools)
        action = parsed.action
        if action is None and self._agent.on_unparsable == "pass" and self.rules.raw_field:
            action = {self.rules.raw_field: reply.text}
        if action is not None:
            try:
                await self._take(reply, action, policy_seconds)
            except ActionRefused as refusal:
                parsed = Parsed(None, str(refusal))
            else:
                self._parsed_turns += parsed.action is not None
                return StopReason.DONE if self._is_done else None
        return self._turn_down(reply, parsed.problem, policy_seconds)

    async def _take(self, reply: Reply, action: dict[str, Any], policy_seconds: float) -> None:
        began = perf_counter()
        self._awaited = "the environment to step"
        answer = await self.session.step(action, timeout=self._limits.step_timeout_seconds)
        seconds = perf_counter() - began
        self.rollout.environment_seconds += seconds
        self._see(answer)
        step = Step(
            reply=reply.text,
            action=action,
            observation=self._shelf.observation(answer.fields),
            text=self._shelf.text(self._text),
            rewards=answer.rewards,
            done=answer.done,
            policy_seconds=policy_seconds,
            environment_seconds=seconds,
        )
        self.rollout.steps.append(step)

    def _turn_down(self, reply: Reply, problem: str, policy_seconds: float) -> StopReason | None:
        self._text = render_unparsable(self._agent.unparsable_message, problem)
        self.rollout.steps.append(
            Step(reply.text, None, {}, self._text, {}, False, note=problem, policy_seconds=policy_seconds)
        )
        if reply.is_truncated:  # asking again would only be cut again
            return StopReason.TOKEN_LIMIT
        return StopReason.UNPARSABLE if self._agent.on_unparsable == "end" else None

    def _see(self, answer: "Observation", *, is_first: bool = False) -> None:
        """Put the newest observation into words; after the last step nobody reads it."""
        self._observation = answer.fields
        self._is_done = answer.done
        try:
            self._text = "" if answer.done else render_observation(self._agent.observation, answer.fields)
        except ValueError as error:
            raise EnvError(str(error)) from error
        if self._look_for_tools(answer) and not is_first and self._text:
            self._text = f"{self._text}\n\n{render_tools(self._tools)}"

    def _look_for_tools(self, answer: "Observation") -> bool:
        """Take over the tools that an observation lists. True when they are others than before."""
        known, name = self._tools, self._action.tools
        if isinstance(name, str) and answer.fields.get(name):
            try:
                self._tools = read_tools(answer.fields[name])
            except ToolsUnusable as error:
                raise EnvError(str(error)) from error
        return self._tools != known

    def _keep_tokens(self, player: Player) -> None:
        trace = player.trace()
        if trace is None:
            return
        self.rollout.prompt_token_ids = trace.prompt
        self.rollout.completion_token_ids = trace.completion
        self.rollout.completion_mask = trace.mask
        self.rollout.logprobs = trace.logprobs

    def _score(self) -> None:
        """The reward columns of a whole episode, the platform's own included."""
        rollout = self.rollout
        declared = self.rules.manifest.columns
        rows = [step.rewards for step in rollout.steps]
        sent = {name for row in rows for name in row}
        if self._is_done and self.rules.environment_columns and not sent & self.rules.environment_columns:
            wanted, found = ", ".join(sorted(self.rules.environment_columns)), ", ".join(sorted(sent)) or "nothing"
            raise RewardsMissing(f"the manifest declares {wanted}; the environment sent {found}")
        turns = max(len(rollout.steps), 1)
        platform = {"format": self._parsed_turns / turns, "length": rollout.tokens_out / turns}
        names = set(self.rules.manifest.column_names)
        rollout.columns = columns_over_episode(declared, rows) | {k: v for k, v in platform.items() if k in names}
        extra = sorted(sent - names)[:MAX_METRICS]
        rollout.metrics = {name: sum(row.get(name, 0.0) for row in rows) for name in extra}
        rollout.metrics |= {name: value for name, value in platform.items() if name not in names}
        rollout.reward = weighted_reward(declared, rollout.columns)
        rollout.status = RolloutStatus.COMPLETED
