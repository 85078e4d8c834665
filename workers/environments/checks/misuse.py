"""What happens when the environment is used wrongly: after the end, with malformed actions, out of time?"""

import time
from contextlib import AsyncExitStack
from typing import Any

from backend.domain.errors import EnvError, LimitExceeded, RolloutError
from backend.domain.rollouts.rollout import Rollout, TaskSpec, columns_over_episode, weighted_reward
from workers.environments.checks.base import TOLERANCE, Finding, check, failed, floor_limit, passed, skipped, warned
from workers.environments.checks.determinism import difference_of
from workers.environments.checks.subject import Subject, actions_of
from workers.environments.client import EnvSession, Observation

GIVEN_UP = 1e-6
"""Seconds in which no server answers."""


@check(
    "step_after_done",
    theme="misuse",
    label="Step after the end",
    sentence="After the end of an episode nothing more is rewarded.",
    advice="Raise an error in `step` when the episode is over.",
    needs=("steps_and_ends",),
)
async def step_after_done(subject: Subject) -> Finding:
    """Proctor refuses such a step; the package is tested directly, because others may run it without Proctor."""
    ended = [rollout for rollout in await subject.completed("random") if rollout.steps and rollout.steps[-1].done]
    if not ended:
        return skipped("No episode of random legal play was ended by the environment.")
    actions = actions_of(ended[0])
    async with subject.server.session() as session:
        await subject.replay(session, ended[0].task, actions)
        try:
            await session.step(actions[-1], timeout=subject.timeout)
        except EnvError as refusal:
            told = str(refusal)
        else:
            return failed(f"A step after the end of {ended[0].task.key} was taken.", ended)
        try:
            late = await session.wire.step(actions[-1], subject.timeout)
        except EnvError:
            return passed(f"Refused by Proctor ({told}) and by the environment itself.")
    if any(late.rewards.values()):
        evidence = f"The environment itself would go on and pay {late.rewards}; Proctor refuses such a step for it."
        return warned(evidence, ended)
    return passed("Proctor refuses such a step; the environment itself would take it, but pays nothing.")


@check(
    "malformed_action",
    theme="misuse",
    label="Malformed actions",
    sentence="A malformed action is answered or refused and earns little. It ends neither the server nor the "
    "next episode.",
    advice="Validate the action before you use it, and return a zero reward or an error.",
    needs=(
        "starts_and_resets",
        "agent_fits",
    ),
)
async def malformed_action(subject: Subject) -> Finding:
    """Every odd action gets an answer or a refusal, earns little, and the next episode is not disturbed."""
    task = subject.tasks(2)[0]
    limit = floor_limit(subject.manifest)
    odd = _odd_actions(subject)
    outcomes: dict[str, str] = {}
    [(before, _)] = await subject.openings([task])
    for name, action in odd.items():
        async with subject.server.session() as session:
            answer = await _try(subject, session, task, action)
        outcomes[name] = answer if isinstance(answer, str) else f"taken, paid {answer.rewards or answer.reward or 0}"
        if not isinstance(answer, str) and limit is not None and _worth(subject, answer) > limit + TOLERANCE:
            return failed(f"A malformed action ({name}) was paid {answer.rewards}.", outcomes=outcomes)
    [(after, _)] = await subject.openings([task])
    if before.fields != after.fields:
        return failed("After malformed actions the same task begins differently.", outcomes=outcomes)
    taken = sum(outcome.startswith("taken") for outcome in outcomes.values())
    return passed(
        f"{len(odd)} malformed actions: {len(odd) - taken} refused, {taken} taken as a move that earns little;"
        " the server lives.",
        outcomes=outcomes,
    )


def _worth(subject: Subject, answer: Observation) -> float:
    """Return the reward of this step alone."""
    return weighted_reward(subject.manifest.columns, columns_over_episode(subject.manifest.columns, [answer.rewards]))


async def _try(subject: Subject, session: EnvSession, task: TaskSpec, action: dict[str, Any]) -> Observation | str:
    """The answer or the refusal. Raises SandboxError when the server dies of it, LimitExceeded when it hangs."""
    await subject.open(session, task)
    try:
        return await session.step(action, timeout=subject.timeout)
    except EnvError as refusal:
        return str(refusal)[:200]


def _odd_actions(subject: Subject) -> dict[str, dict[str, Any]]:
    field = subject.manifest.proctor.agent.action.field
    field = field or next(iter(subject.server.action_schema.get("properties", {})), "value")
    return {
        "no fields": {},
        "an unknown field": {"no_such_field": 1},
        "null": {field: None},
        "a list": {field: [[[]]]},
        "a huge number": {field: 10**18},
        "a negative number": {field: -1},
        "a long text": {field: "x" * 100_000},
        "odd characters": {field: "\u0000\u202e\U0001f600{{ 7 * 7 }}"},
    }


@check(
    "timeouts_enforced",
    theme="misuse",
    label="Timeouts",
    sentence="A step that takes too long is cut off. Its late answer reaches nobody, and no other session is affected.",
    advice="Do not block the event loop, and do not hold a lock during a step.",
    needs=(
        "steps_and_ends",
        "step_deterministic",
    ),
)
async def timeouts_enforced(subject: Subject) -> Finding:
    """Give up on an answer: its session takes no other step, and neither a neighbour nor the next session feels it."""
    late = [rollout for rollout in subject.all_rollouts() if rollout.environment_seconds > _allowed(subject)]
    if late:
        return failed(f"{len(late)} episodes took longer than the manifest allows and were not cut.", late)
    samples = [rollout for rollout in await subject.completed("random") if actions_of(rollout)]
    if not samples:
        return skipped("No episode of random legal play came as far as one step.")
    sample = max(samples, key=lambda rollout: len(rollout.steps))
    expected = await subject.alone(sample)
    async with AsyncExitStack() as stack:
        beside = None
        if subject.server.sessions > 1:
            beside = await stack.enter_async_context(subject.server.session())
            opening = await subject.open(beside, sample.task)
        problem, seconds = await _give_up(subject, sample)
        if problem:
            return failed(problem, [sample])
        if beside is not None:
            answers = [opening, *await subject.go_on(beside, opening, actions_of(sample))]
            if difference := difference_of(expected, answers, subject.manifest.proctor.checks.noise):
                return failed(f"A session beside a step that timed out went differently: {difference}.", [sample])
    async with subject.server.session() as session:
        answers = await subject.replay(session, sample.task, actions_of(sample))
    if difference := difference_of(expected, answers, subject.manifest.proctor.checks.noise):
        return failed(f"After a step that timed out the next session went differently: {difference}.", [sample])
    return passed(
        f"A step that was given too little time was cut within {seconds * 1000:.0f} ms and its session refused; the one"
        f" beside it and the next one went as they should; no episode took longer than {_allowed(subject):g} s."
    )


async def _give_up(subject: Subject, sample: Rollout) -> tuple[str, float]:
    """(what is wrong, seconds until the step was cut)"""
    began, action = time.perf_counter(), actions_of(sample)[0]
    async with subject.server.session() as session:
        await subject.open(session, sample.task)
        try:
            await session.step(action, timeout=GIVEN_UP)
        except LimitExceeded:
            seconds = time.perf_counter() - began
        else:
            return f"A step that was given {GIVEN_UP * 1000:g} ms was waited for.", 0.0
        if not await _is_refused(session, action, subject.timeout):
            return "A session whose step timed out took another step.", seconds
    return "", seconds


def _allowed(subject: Subject) -> float:
    return subject.manifest.proctor.episode.episode_timeout_seconds


async def _is_refused(session: EnvSession, action: dict[str, Any], timeout: float) -> bool:
    try:
        await session.step(action, timeout=timeout)
    except RolloutError:
        return True
    return False
