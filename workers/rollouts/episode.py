"""One episode: reset → observation → text → policy → reply → action → step → … until it ends, into a `Rollout`."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from backend.domain.environments import prompts
from backend.domain.environments.manifest import PLATFORM_COLUMNS, Manifest, RewardColumn
from backend.domain.environments.tools import ToolsUnusable, read_tools, render_tools
from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, PolicyError, boundary
from backend.domain.rollouts.rollout import CANARY, Rollout, Step, columns_over_episode, weighted_reward
from backend.domain.vocabulary import RolloutStatus, StopReason
from workers.policies.base import EpisodeStart, Player, Policy, Reply, TextTrace, Turn
from workers.rollouts.limits import ObservationBudget

if TYPE_CHECKING:
    from workers.environments.client import Observation

MAX_METRICS = 64
"""Names beyond the declared columns that one rollout may carry."""


class RewardsMissing(EnvError):
    """The environment sent none of the reward columns that its manifest declares."""

    is_retryable = False


@dataclass(slots=True)
class CallResult:
    """The result of an action, or the reason (`note`) why it was not taken."""

    action: dict[str, Any] | None
    is_made: bool = True
    """It reached the environment, which costs a turn."""
    note: str | None = None
    text: str = ""
    """The observation as the policy reads it."""
    rewards: dict[str, float] = field(default_factory=dict)
    done: bool = False
    observation: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def shown(self) -> str:
        return self.text or self.note or ""


class Session(Protocol):
    """One episode at a time on an environment's server."""

    async def reset(self, arguments: Mapping[str, object], *, timeout: float) -> "Observation": ...

    async def step(self, action: Mapping[str, object], *, timeout: float) -> "Observation": ...

    async def state(self, *, timeout: float) -> dict[str, Any]: ...


class Episode:
    """Plays once and fills its rollout. If the infrastructure fails, it raises RolloutError and keeps what it has."""

    def __init__(self, manifest: Manifest, action_schema: dict[str, Any], session: Session, rollout: Rollout) -> None:
        self.manifest, self.action_schema = manifest, action_schema
        self.session, self.rollout = session, rollout
        self._agent, self._limits = manifest.proctor.agent, manifest.proctor.episode
        self._action = self._agent.action
        self._budget = ObservationBudget()
        self._observation: dict[str, Any] = {}
        self._tools = tuple(self._action.tools) if isinstance(self._action.tools, list) else ()
        self._text = ""
        self._results: list[str] = []
        """If the last reply made several calls: their results, in order."""
        self._turns_left = self._limits.max_turns
        self._parsed_turns = 0
        self._is_done = False
        self._policy_seconds = self._queue_seconds = 0.0
        self._used = 0, 0, 0
        """Times of the last reply."""
        self.waiting_for = ""
        """For the error message of a timeout."""
        self._timeout = asyncio.timeout(self._limits.episode_timeout_seconds)

    async def play(self, policy: Policy, start: EpisodeStart) -> None:
        rollout = self.rollout
        try:
            async with self._timeout:
                player = await self._enter(policy, start)
                try:
                    index, stop = 0, None
                    while stop is None and self._turns_left > 0:  # each call of a reply takes a turn
                        reply = await self._request_reply(player, index)
                        if reply.is_missing:
                            stop = StopReason.CONTEXT_FULL
                            break
                        self._turns_left -= 1
                        stop = await self._take_reply(reply)
                        index += 1
                    rollout.stop_reason = stop or StopReason.MAX_TURNS
                    trace = player.trace()
                finally:
                    player.close()
        except TimeoutError as cause:
            rollout.stop_reason = StopReason.EPISODE_TIMEOUT
            seconds = self._limits.episode_timeout_seconds
            raise LimitExceeded(
                f"the episode took longer than {seconds:g} s (waiting for {self.waiting_for})"
            ) from cause
        if trace is not None:
            rollout.logprobs = trace.logprobs
        if isinstance(trace, TextTrace):
            rollout.token_texts, rollout.token_turns = trace.texts, trace.turns
        elif trace is not None:
            rollout.prompt_token_ids, rollout.completion_token_ids = trace.prompt, trace.completion
            rollout.completion_mask = trace.mask
        if not self._is_done:
            await self._give_up()
        async with boundary(EnvError, "scoring"):
            score(rollout, self.manifest, parsed_turns=self._parsed_turns, is_done=self._is_done)

    async def _enter(self, policy: Policy, start: EpisodeStart) -> Player:
        """Reset the environment and begin the policy's player."""
        await self._open()
        return await self._begin(policy, start)

    async def _begin(self, policy: Policy, start: EpisodeStart) -> Player:
        self.waiting_for = "the policy"
        async with boundary(PolicyError, "policy"):
            return await policy.begin(start)

    async def _give_up(self) -> None:
        """Called if the episode ended before the environment did: its policy will not act again."""

    async def _open(self) -> None:
        start = perf_counter()
        arguments = self.rollout.task.reset_arguments()
        self.waiting_for = "the environment to reset"
        async with boundary(EnvError, "reset"):
            opening = await self.session.reset(arguments, timeout=self._limits.step_timeout_seconds)
            self.rollout.environment_seconds += perf_counter() - start
            if opening.done:
                raise EnvError("the episode ended at its reset")
            self.rollout.opening = self._budget.observation(opening.fields)
            self._read_observation(opening, is_first=True)
        if self._action.discover:
            self.waiting_for = "the environment to list its tools"
            async with boundary(EnvError, "listing the tools"):
                listing = await self.session.step(self._action.discover, timeout=self._limits.step_timeout_seconds)
                self._read_tools(listing)
            name = str(self._action.tools)
            self.rollout.opening = self._budget.observation({**opening.fields, name: listing.fields.get(name)})
        if isinstance(self._action.tools, str) and not self._tools:
            raise EnvError(f"the environment lists no tools under `{self._action.tools}`")
        if system := prompts.render_system(self._agent, self._tools):
            self.rollout.messages.append({"role": "system", "content": system})

    async def _request_reply(self, player: Player, index: int) -> Reply:
        rollout = self.rollout
        rollout.messages.append({"role": "user", "content": self._text})
        if self._results:
            rollout.messages[-1]["results"] = self._results
        scripts: object = {}
        if player.wants_scripts:
            self.waiting_for = "the environment's state"
            scripts = (await self.session.state(timeout=self._limits.step_timeout_seconds)).get("scripts")
        turn = Turn(
            index=index,
            messages=prompts.visible_messages(self._agent.context, rollout.messages),
            text=self._text,
            observation=self._observation,
            scripts={k: v for k, v in scripts.items() if isinstance(v, str)} if isinstance(scripts, dict) else {},
            action_schema=self.action_schema,
            max_tokens=self._limits.max_tokens_per_turn,
            tools=self._tools,
            waiting=self._paused_deadline,
        )
        self.waiting_for = "the policy"
        start = perf_counter()
        async with boundary(PolicyError, "policy"):
            reply = await player.act(turn)
        self._queue_seconds = reply.queue_seconds
        self._used = reply.tokens_in, reply.tokens_out, reply.cached_in
        self._policy_seconds = max(0.0, perf_counter() - start - self._queue_seconds)
        if reply.is_missing:  # not a turn: nothing reaches the environment, and no column counts it
            rollout.is_truncated = True
            return reply
        if self._agent.reasoning == "think" and not reply.reasoning:
            reply.reasoning, reply.text = prompts.split_reasoning(reply.text)
        rollout.messages.append({"role": "assistant", "content": reply.text})
        if reply.reasoning:
            rollout.messages[-1]["reasoning"] = reply.reasoning
        rollout.tokens_in += reply.tokens_in
        rollout.tokens_out += reply.tokens_out
        rollout.tokens_cached += reply.cached_in
        rollout.is_truncated |= reply.is_truncated
        rollout.policy_seconds += self._policy_seconds
        rollout.queue_seconds += reply.queue_seconds
        return reply

    @contextmanager
    def _paused_deadline(self) -> Iterator[None]:
        """Pause the episode's time limit while a request is queued."""
        ends_at, loop = self._timeout.when(), asyncio.get_running_loop()
        if ends_at is None:  # paused already
            yield
            return
        left = ends_at - loop.time()
        self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._timeout.reschedule(loop.time() + left)

    async def _take_reply(self, reply: Reply) -> StopReason | None:
        """Step the environment, or explain why the reply could not be read. Returns the reason if the episode ends."""
        self._results = []
        parsed = prompts.parse_reply(self._action, reply.text, self._tools)
        action = parsed.action
        if len(parsed.calls) > 1 and action is not None:
            return await self._make_calls(reply, parsed.calls)
        if action is None and self._agent.on_unparsable == "pass":
            fields = self.action_schema.get("properties", {}).items()
            name = self._action.field or next((name for name, each in fields if each.get("type") == "string"), None)
            action = {name: reply.text} if name else None
        if action is None:
            return self._reject(reply, parsed.problem)
        try:
            result = await self._step(action)
        except ActionRefused as refusal:
            return self._reject(reply, str(refusal))
        step = Step(reply.text, action, result.observation, result.text, result.rewards, result.done)
        step.environment_seconds = result.seconds
        self._add_step(step)
        self._parsed_turns += parsed.action is not None
        return StopReason.DONE if self._is_done else None

    async def _make_calls(self, reply: Reply, calls: tuple[prompts.Parsed, ...]) -> StopReason | None:
        """Make one call after the other until the episode ends. Each one costs a turn; the first is already counted."""
        results: list[CallResult] = []
        self._turns_left += 1
        for call in calls:
            if call.action is None:
                results.append(CallResult(None, is_made=False, note=call.problem))
            elif self._is_done or self._turns_left <= 0:
                reason = "the episode is over" if self._is_done else "the episode has no turn left"
                results.append(CallResult(call.action, is_made=False, note=f"Not made: {reason}."))
            else:
                self._turns_left -= 1
                try:
                    results.append(await self._step(call.action))
                except ActionRefused as refusal:
                    results.append(CallResult(call.action, note=str(refusal)))
        self._parsed_turns += all(each.note is None for each in results)
        self._results = [each.shown for each in results]
        self._text = "" if self._is_done else render_results(results, self._action.field or "")
        self._add_step(step_of_calls(reply.text, results, self.manifest.columns))
        return StopReason.DONE if self._is_done else None

    async def _step(self, action: dict[str, Any]) -> CallResult:
        start = perf_counter()
        self.waiting_for = "the environment to step"
        async with boundary(EnvError, "step"):
            answer = await self.session.step(action, timeout=self._limits.step_timeout_seconds)
            seconds = perf_counter() - start
            self.rollout.environment_seconds += seconds
            self._read_observation(answer)
            observation, text = self._budget.observation(answer.fields), self._budget.text(self._text)
        return CallResult(
            action, text=text, rewards=answer.rewards, done=answer.done, observation=observation, seconds=seconds
        )

    def _reject(self, reply: Reply, problem: str) -> StopReason | None:
        try:
            self._text = prompts.render_unparsable(self._agent.unparsable_message, problem)
        except ValueError as error:
            raise EnvError(str(error)) from error
        self._add_step(Step(reply.text, None, {}, self._text, {}, False, note=problem))
        if reply.is_truncated:  # the next reply would be cut, too
            return StopReason.CONTEXT_FULL if reply.is_context_full else StopReason.TOKEN_LIMIT
        return StopReason.UNPARSABLE if self._agent.on_unparsable == "end" else None

    def _add_step(self, step: Step) -> None:
        step.policy_seconds, step.queue_seconds = self._policy_seconds, self._queue_seconds
        step.tokens_in, step.tokens_out, step.tokens_cached = self._used
        self.rollout.steps.append(step)

    def _read_observation(self, answer: "Observation", *, is_first: bool = False) -> None:
        """Render the observation as text. The policy does not read the last one, so it has no text."""
        self._observation = answer.fields
        self._is_done = answer.done
        try:
            self._text = "" if answer.done else prompts.render_observation(self._agent.observation, answer.fields)
        except ValueError as error:
            raise EnvError(str(error)) from error
        if self._read_tools(answer) and not is_first and self._text:
            self._text = f"{self._text}\n\n{render_tools(self._tools)}"

    def _read_tools(self, answer: "Observation") -> bool:
        """Use the tools that an observation lists. True if they changed."""
        known, name = self._tools, self._action.tools
        if isinstance(name, str) and answer.fields.get(name):
            try:
                self._tools = read_tools(answer.fields[name])
            except ToolsUnusable as error:
                raise EnvError(str(error)) from error
        return self._tools != known


def render_results(results: Sequence[CallResult], name_field: str) -> str:
    """Render the results of several calls as one text, for a policy that reads plain text."""
    texts = []
    for number, each in enumerate(results, start=1):
        name = f" (`{each.action.get(name_field)}`)" if each.action else ""
        texts.append(f"Call {number}{name}: {each.shown}".rstrip())
    return "\n\n".join(texts)


def step_of_calls(reply: str, results: Sequence[CallResult], columns: Iterable[RewardColumn]) -> Step:
    """Make one step of several calls. Its rewards are aggregated like an episode's, so that their sum stays right."""
    taken = [each for each in results if each.note is None]
    last = taken[-1] if taken else results[-1]
    stored = ("action", "is_made", "note", "text", "rewards", "done")
    return Step(
        reply=reply,
        action=next((each.action for each in results if each.action is not None), None),
        observation=last.observation,
        text="\n\n".join(each.shown for each in results),
        rewards=merge_rewards(columns, [each.rewards for each in taken]),
        done=last.done,
        note=" ".join(each.note for each in results if each.note) or None,
        environment_seconds=sum(each.seconds for each in results),
        calls=[{name: getattr(each, name) for name in stored} for each in results],
    )


def merge_rewards(columns: Iterable[RewardColumn], rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Aggregate the rewards of several actions of one step like an episode's, so that their sum stays right."""
    sent = {name for row in rows for name in row}
    declared = columns_over_episode((column for column in columns if column.name in sent), rows)
    return declared | {name: sum(row.get(name, 0.0) for row in rows) for name in sorted(sent - declared.keys())}


def score(rollout: Rollout, manifest: Manifest, *, parsed_turns: int, is_done: bool) -> None:
    """Compute the reward columns of a whole episode, including the platform's own, and complete the rollout.

    Raises RewardsMissing if the environment reached the end of the episode and sent none of its columns.
    """
    declared, names = manifest.columns, set(manifest.column_names)
    rows = [step.rewards for step in rollout.steps]
    sent = {name for row in rows for name in row}
    needed = names - set(PLATFORM_COLUMNS)
    if is_done and needed and not sent & needed:
        expected, found = ", ".join(sorted(needed)), ", ".join(sorted(sent)) or "nothing"
        raise RewardsMissing(f"the manifest declares {expected}; the environment sent {found}")
    turns = max(len(rollout.steps), 1)
    platform = {"format": parsed_turns / turns, "length": rollout.tokens_out / turns}
    rollout.columns = columns_over_episode(declared, rows) | {k: v for k, v in platform.items() if k in names}
    extra = sorted(sent - names)[:MAX_METRICS]
    rollout.metrics = {name: sum(row.get(name, 0.0) for row in rows) for name in extra}
    rollout.metrics |= {name: value for name, value in platform.items() if name not in names}
    if rollout.task.is_canary:
        rollout.metrics[CANARY] = 1.0
    rollout.reward = weighted_reward(declared, rollout.columns)
    if not math.isfinite(rollout.reward):
        rollout.reward = None
        raise EnvError("the weighted sum of the reward columns is not a finite number")
    rollout.status = RolloutStatus.COMPLETED
