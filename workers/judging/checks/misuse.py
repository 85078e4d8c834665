"""What happens when the environment is used wrongly: after the end, or with an action that is none."""

from typing import Any

from backend.domain.errors import EnvError
from backend.domain.rollouts import TaskSpec
from workers.environments.client import EnvSession
from workers.judging.checks.base import Check, Finding, failed, passed, skipped, warned
from workers.judging.checks.subject import Subject, actions_of


async def _after_done(subject: Subject) -> Finding:
    """Proctor refuses such a step itself; the package is asked directly, because others may run it without Proctor."""
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
            return failed(f"A step after the end of {ended[0].task.key} was taken.")
        try:
            late = await session.wire.step(actions[-1], subject.timeout)
        except EnvError:
            return passed(f"Refused by Proctor ({told}) and by the environment itself.")
    if any(late.rewards.values()):
        return warned(f"The environment itself would go on and pay {late.rewards}; Proctor refuses such a step for it.")
    return passed("Proctor refuses such a step; the environment itself would take it, but pays nothing.")


async def _malformed(subject: Subject) -> Finding:
    """Every odd action gets an answer or a refusal, and the next episode is not disturbed."""
    task = subject.tasks(2)[0]
    odd = _odd_actions(subject)
    outcomes: dict[str, str] = {}
    async with subject.server.session() as session:
        before = await session.reset(task.reset_arguments(), timeout=subject.timeout)
    for name, action in odd.items():
        async with subject.server.session() as session:
            outcomes[name] = await _try(subject, session, task, action)
    async with subject.server.session() as session:
        after = await session.reset(task.reset_arguments(), timeout=subject.timeout)
    if before.fields != after.fields:
        return failed("After malformed actions the same task begins differently.", outcomes=outcomes)
    taken = sum(outcome == "taken" for outcome in outcomes.values())
    return passed(
        f"{len(odd)} malformed actions: {len(odd) - taken} refused, {taken} taken as a move; the server lives.",
        outcomes=outcomes,
    )


async def _try(subject: Subject, session: EnvSession, task: TaskSpec, action: dict[str, Any]) -> str:
    """Raises SandboxError when the server dies of it, LimitExceeded when it hangs."""
    await session.reset(task.reset_arguments(), timeout=subject.timeout)
    try:
        await session.step(action, timeout=subject.timeout)
    except EnvError as refusal:
        return str(refusal)[:200]
    return "taken"


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


AFTER_DONE = Check(
    "step_after_done", "After the end of an episode nothing more is paid.", _after_done, needs=("steps_and_ends",)
)
MALFORMED = Check(
    "malformed_action",
    "A malformed action is answered or refused; it ends neither the server nor the next episode.",
    _malformed,
    needs=("starts_and_resets", "agent_fits"),
)
