"""What happens if the environment is used wrongly: after the end, with malformed actions, or out of time?"""

import time
from contextlib import AsyncExitStack

from backend.domain.errors import EnvError, LimitExceeded, RolloutError
from backend.domain.rollouts.rollout import columns_over_episode, weighted_reward
from workers.environments.checks.base import (
    TOLERANCE,
    Check,
    CheckFinding,
    Cost,
    failed,
    floor_limit,
    passed,
    skipped,
    warned,
)
from workers.environments.checks.determinism import difference_of
from workers.environments.checks.subject import CheckSubject, actions_of

IMMEDIATE = 1e-6
"""Timeout in seconds that no server can meet."""


@Check(
    label="Step after the end",
    sentence="After the end of an episode nothing more is rewarded.",
    advice="Raise an error in `step` when the episode is over.",
    example="""
    def step(self, action, timeout_s=None, **kwargs):
        if self._is_over:
            raise RuntimeError("the episode has ended: call reset first")
    """,
    cost=Cost.REPLAYS,
)
async def step_after_done(subject: CheckSubject) -> CheckFinding:
    """Send one more step, through Proctor and directly to the package, because others may run it without Proctor.

    Proctor must refuse it; a package that would reward it warns.
    """
    ended = [rollout for rollout in await subject.completed("random") if rollout.steps and rollout.steps[-1].done]
    if not ended:
        return skipped("The environment ended no episode of random legal play.")
    actions = actions_of(ended[0])
    async with subject.server.session() as session:
        opening, _ = await subject.open(session, ended[0].task)
        await subject.act(session, opening, actions)
        try:
            await session.step(actions[-1], timeout=subject.timeout)
        except EnvError as error:
            refusal = str(error)
        else:
            return failed(f"A step after the end of {ended[0].task.key} was accepted.", ended)
        try:
            late = await session.wire.observe("step", actions[-1], subject.timeout)
        except EnvError:
            return passed(f"Refused by Proctor ({refusal}) and by the environment.")
    if any(late.rewards.values()):
        return warned(f"The environment would continue and reward {late.rewards}; Proctor refuses the step.", ended)
    return passed("Proctor refuses the step; the environment would accept it, but rewards nothing.")


@Check(
    label="Malformed actions",
    sentence="A malformed action is answered or refused and earns little. It ends neither the server nor the "
    "next episode.",
    advice="Validate the action before you use it, and return a zero reward or an error.",
    example="""
    class MoveAction(Action):
        cell: int = Field(ge=1, le=9)

    # in step:
    if action.cell not in self._free:
        return self.rewarded(self._observe("Invalid."))  # no reward, no exception
    """,
    cost=Cost.RESETS,
    needs=("starts_and_resets", "agent_fits"),
)
async def malformed_action(subject: CheckSubject) -> CheckFinding:
    """Send eight malformed actions: empty, unknown field, null, nested list, huge, negative, 100,000 letters, odd text.

    The server must survive, the next episode must start as before, and no answer may earn more than the floor and its
    margin.
    """
    task, limit, columns = subject.tasks(2)[0], floor_limit(subject.manifest), subject.manifest.columns
    field = subject.manifest.proctor.agent.action.field
    field = field or next(iter(subject.server.action_schema.get("properties", {})), "value")
    actions: dict[str, dict[str, object]] = {
        "no fields": {},
        "an unknown field": {"no_such_field": 1},
        "null": {field: None},
        "a list": {field: [[[]]]},
        "a huge number": {field: 10**18},
        "a negative number": {field: -1},
        "a long text": {field: "x" * 100_000},
        "odd characters": {field: "\u0000\u202e\U0001f600{{ 7 * 7 }}"},
    }
    outcomes: dict[str, str] = {}
    refused = 0
    [(before, _)] = await subject.openings([task])
    for name, action in actions.items():
        async with subject.server.session() as session:
            await subject.open(session, task)
            try:  # a server that dies or hangs raises SandboxError or LimitExceeded, which fails the check
                response = await session.step(action, timeout=subject.timeout)
            except EnvError as refusal:
                outcomes[name] = str(refusal)[:200]
                refused += 1
                continue
        outcomes[name] = f"accepted, rewarded {response.rewards or response.reward or 0}"
        reward = weighted_reward(columns, columns_over_episode(columns, [response.rewards]))
        if limit is not None and reward > limit + TOLERANCE:
            return failed(f"A malformed action ({name}) was rewarded {response.rewards}.", outcomes=outcomes)
    [(after, _)] = await subject.openings([task])
    if before.fields != after.fields:
        return failed("After malformed actions the same task begins differently.", outcomes=outcomes)
    return passed(
        f"{len(actions)} malformed actions: {refused} refused, {len(actions) - refused} accepted as a move that earns"
        " little; the server survived.",
        outcomes=outcomes,
    )


@Check(
    label="Timeouts",
    sentence="A step that takes too long is cut off. Its late answer is dropped, and no other session is affected.",
    advice="Do not block the event loop, and do not hold a lock during a step.",
    example="""
    async def step_async(self, action, timeout_s=None, **kwargs):
        result = await asyncio.to_thread(self._slow_work, action)  # not in the event loop
        return self._observe(result)
    """,
    cost=Cost.REPLAYS,
    needs=("steps_and_ends", "step_deterministic"),
)
async def timeouts_enforced(subject: CheckSubject) -> CheckFinding:
    """Let a step time out next to another session on the same server; then use its session, then a new one.

    The session that timed out must refuse another step; the other session and the new one must play as before.
    """
    allowed = subject.manifest.proctor.episode.episode_timeout_seconds
    late = [rollout for rollout in subject.all_completed() if rollout.environment_seconds > allowed]
    if late:
        return failed(f"{len(late)} episodes took longer than the manifest allows and were not cut off.", late)
    samples = [rollout for rollout in await subject.completed("random") if actions_of(rollout)]
    if not samples:
        return skipped("No episode of random legal play completed a step.")
    sample = max(samples, key=lambda rollout: len(rollout.steps))
    actions, expected = actions_of(sample), await subject.stored_replay(sample)
    async with AsyncExitStack() as stack:
        neighbor = None
        if subject.server.sessions > 1:
            neighbor = await stack.enter_async_context(subject.server.session())
            opening, _ = await subject.open(neighbor, sample.task)
        began = time.perf_counter()
        async with subject.server.session() as session:
            await subject.open(session, sample.task)
            try:
                await session.step(actions[0], timeout=IMMEDIATE)
            except LimitExceeded:
                seconds = time.perf_counter() - began
            else:
                return failed(f"A step with a timeout of {IMMEDIATE * 1000:g} ms was not cut off.", [sample])
            try:
                await session.step(actions[0], timeout=subject.timeout)
            except RolloutError:
                pass
            else:
                return failed("A session whose step timed out accepted another step.", [sample])
        if neighbor is not None:
            responses = await subject.act(neighbor, opening, actions)
            if difference := difference_of(expected, responses, subject.noise):
                return failed(f"A session next to a step that timed out went differently: {difference}.", [sample])
    if difference := difference_of(expected, await subject.replay(sample.task, actions), subject.noise):
        return failed(f"After a step that timed out the next session went differently: {difference}.", [sample])
    return passed(
        f"A step with too little time was cut off within {seconds * 1000:.0f} ms and its session refused; the one next"
        f" to it and the next one were not affected; no episode took longer than {allowed:g} s."
    )
