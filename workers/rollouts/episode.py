"""One episode: reset → observation → text → policy → reply → action → step → … until it ends, into a `Rollout`."""

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import (
    Parsed,
    parse_reply,
    render_observation,
    render_system,
    render_unparsable,
    split_reasoning,
    visible_messages,
)
from backend.domain.environments.tools import ToolsUnusable, read_tools, render_tools
from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, PolicyError, boundary
from backend.domain.rollouts.rollout import Rollout, Step
from backend.domain.vocabulary import StopReason
from workers.policies.base import EpisodeStart, Player, Policy, Reply, TextTrace, Turn
from workers.rollouts.bounds import ObservationBudget
from workers.rollouts.deadline import Deadline
from workers.rollouts.scoring import score
from workers.rollouts.several_calls import Made, answers_in_words, step_of_calls

if TYPE_CHECKING:
    from workers.environments.client import EnvSession, Observation


@dataclass(frozen=True)
class Rules:
    """What holds for every episode of one environment version."""

    manifest: Manifest
    action_schema: dict[str, Any]

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
        self._budget = ObservationBudget()
        self._observation: dict[str, Any] = {}
        self._tools = tuple(self._action.tools) if isinstance(self._action.tools, list) else ()
        self._text = ""
        self._results: list[str] = []
        """Of several calls that were made of one reply, in their order."""
        self._turns_left = self._limits.max_turns
        self._parsed_turns = 0
        self._is_done = False
        self._policy_seconds = self._queue_seconds = 0.0
        """Of the newest reply."""
        self._awaited = ""
        """What the episode waits for, should its time be over meanwhile."""
        self._deadline = Deadline(self._limits.episode_timeout_seconds)

    async def play(self, policy: Policy, start: EpisodeStart) -> None:
        try:
            async with self._deadline.timeout:
                await self._play(policy, start)
        except TimeoutError as cause:
            self.rollout.stop_reason = StopReason.EPISODE_TIMEOUT
            seconds = self._limits.episode_timeout_seconds
            raise LimitExceeded(f"the episode took longer than {seconds:g} s (waiting for {self._awaited})") from cause
        async with boundary(EnvError, "scoring"):
            score(self.rollout, self.rules.manifest, parsed_turns=self._parsed_turns, is_done=self._is_done)

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
        async with boundary(EnvError, "reset"):
            opening = await self.session.reset(arguments, timeout=self._limits.step_timeout_seconds)
            self.rollout.environment_seconds += perf_counter() - began
            if opening.done:
                raise EnvError("the environment was over as soon as it was reset")
            self.rollout.opening = self._budget.observation(opening.fields)
            self._see(opening, is_first=True)
        if self._action.discover:
            self._awaited = "the environment to list its tools"
            async with boundary(EnvError, "listing the tools"):
                listing = await self.session.step(self._action.discover, timeout=self._limits.step_timeout_seconds)
                self._look_for_tools(listing)
            name = str(self._action.tools)
            self.rollout.opening = self._budget.observation({**opening.fields, name: listing.fields.get(name)})
        if isinstance(self._action.tools, str) and not self._tools:
            raise EnvError(f"the environment lists no tools under `{self._action.tools}`")
        if system := render_system(self._agent, self._tools):
            self.rollout.messages.append({"role": "system", "content": system})

    async def _turns(self, player: Player) -> StopReason:
        """Until a reply ends the episode. Each call that is made counts as a turn, however many a reply makes."""
        index = 0
        while self._turns_left > 0:
            reply = await self._ask(player, index)
            self._turns_left -= 1
            stop = await self._answer(reply)
            if stop is not None:
                return stop
            index += 1
        return StopReason.MAX_TURNS

    async def _ask(self, player: Player, index: int) -> Reply:
        rollout = self.rollout
        rollout.messages.append({"role": "user", "content": self._text})
        if self._results:
            rollout.messages[-1]["results"] = self._results
        turn = Turn(
            index=index,
            messages=visible_messages(self._agent.context, rollout.messages),
            text=self._text,
            observation=self._observation,
            scripts=await self._scripts() if player.wants_scripts else {},
            action_schema=self.rules.action_schema,
            max_tokens=self._limits.max_tokens_per_turn,
            tools=self._tools,
            waiting=self._deadline.standing_still,
        )
        self._awaited = "the policy"
        began = perf_counter()
        async with boundary(PolicyError, "policy"):
            reply = await player.act(turn)
        self._queue_seconds = reply.queue_seconds
        self._policy_seconds = max(0.0, perf_counter() - began - self._queue_seconds)
        self._keep(reply)
        return reply

    def _keep(self, reply: Reply) -> None:
        """The reply in the conversation, what it thought apart from what it answers."""
        rollout = self.rollout
        if self._agent.reasoning == "think" and not reply.reasoning:
            reply.reasoning, reply.text = split_reasoning(reply.text)
        rollout.messages.append({"role": "assistant", "content": reply.text})
        if reply.reasoning:
            rollout.messages[-1]["reasoning"] = reply.reasoning
        rollout.tokens_in += reply.tokens_in
        rollout.tokens_out += reply.tokens_out
        rollout.tokens_cached += reply.cached_in
        rollout.is_truncated |= reply.is_truncated
        rollout.policy_seconds += self._policy_seconds
        rollout.queue_seconds += reply.queue_seconds

    async def _scripts(self) -> dict[str, str]:
        self._awaited = "the environment's state"
        state = await self.session.state(timeout=self._limits.step_timeout_seconds)
        scripts = state.get("scripts")
        return {k: v for k, v in scripts.items() if isinstance(v, str)} if isinstance(scripts, dict) else {}

    async def _answer(self, reply: Reply) -> StopReason | None:
        """Take the reply to the environment, or say why it could not be read. The reason when the episode ends."""
        self._results = []
        parsed = parse_reply(self._action, reply.text, self._tools)
        action = parsed.action
        if len(parsed.calls) > 1 and action is not None:
            return await self._make_calls(reply, parsed.calls)
        if action is None and self._agent.on_unparsable == "pass" and self.rules.raw_field:
            action = {self.rules.raw_field: reply.text}
        if action is None:
            return self._turn_down(reply, parsed.problem)
        try:
            made = await self._make(action)
        except ActionRefused as refusal:
            return self._turn_down(reply, str(refusal))
        step = Step(reply.text, action, made.observation, made.text, made.rewards, made.done)
        step.environment_seconds = made.seconds
        self.rollout.steps.append(self._timed(step))
        self._parsed_turns += parsed.action is not None
        return StopReason.DONE if self._is_done else None

    async def _make_calls(self, reply: Reply, calls: tuple[Parsed, ...]) -> StopReason | None:
        """One after the other, as far as the episode goes: each that is made costs a turn, the first has had its."""
        made: list[Made] = []
        self._turns_left += 1
        for call in calls:
            made.append(await self._make_one(call))
        self._parsed_turns += all(each.note is None for each in made)
        self._results = [each.told for each in made]
        self._text = "" if self._is_done else answers_in_words(made, self._action.field or "")
        self.rollout.steps.append(self._timed(step_of_calls(reply.text, made, self.rules.manifest.columns)))
        return StopReason.DONE if self._is_done else None

    async def _make_one(self, call: Parsed) -> Made:
        if call.action is None:
            return Made(None, is_made=False, note=call.problem)
        if self._is_done or self._turns_left <= 0:
            over = "the episode is over" if self._is_done else "the episode has no turn left"
            return Made(call.action, is_made=False, note=f"Not made: {over}.")
        self._turns_left -= 1
        try:
            return await self._make(call.action)
        except ActionRefused as refusal:
            return Made(call.action, note=str(refusal))

    async def _make(self, action: dict[str, Any]) -> Made:
        began = perf_counter()
        self._awaited = "the environment to step"
        async with boundary(EnvError, "step"):
            answer = await self.session.step(action, timeout=self._limits.step_timeout_seconds)
            seconds = perf_counter() - began
            self.rollout.environment_seconds += seconds
            self._see(answer)
            observation, text = self._budget.observation(answer.fields), self._budget.text(self._text)
        return Made(action, True, None, observation, text, answer.rewards, answer.done, seconds)

    def _turn_down(self, reply: Reply, problem: str) -> StopReason | None:
        try:
            self._text = render_unparsable(self._agent.unparsable_message, problem)
        except ValueError as error:
            raise EnvError(str(error)) from error
        self.rollout.steps.append(self._timed(Step(reply.text, None, {}, self._text, {}, False, note=problem)))
        if reply.is_truncated:  # asking again would only be cut again
            return StopReason.TOKEN_LIMIT
        return StopReason.UNPARSABLE if self._agent.on_unparsable == "end" else None

    def _timed(self, step: Step) -> Step:
        step.policy_seconds, step.queue_seconds = self._policy_seconds, self._queue_seconds
        return step

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
        trace, rollout = player.trace(), self.rollout
        if trace is None:
            return
        rollout.logprobs = trace.logprobs
        if isinstance(trace, TextTrace):
            rollout.token_texts, rollout.token_turns = trace.texts, trace.turns
            return
        rollout.prompt_token_ids = trace.prompt
        rollout.completion_token_ids = trace.completion
        rollout.completion_mask = trace.mask
