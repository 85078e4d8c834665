"""Replies that there are already."""

import pytest

from backend.domain.rollouts.rollout import turns_of
from backend.domain.vocabulary import ErrorKind
from tests.rollouts.tools_world import ToolWorld, tool_manifest
from tests.rollouts.world import Replies, World, plans, play
from workers.policies.base import Reply
from workers.policies.scripted import ReplayPolicy
from workers.rollouts.episode import CallResult, step_of_calls


async def test_stored_replies_lead_to_the_same_episode() -> None:
    [first] = await play(World(), Replies("<move>1</move>", "hm", "<move>2</move>"), plans(1))
    again = ReplayPolicy([[Reply(step.reply, 10, 4) for step in first.steps]])
    [second] = await play(World(), again, plans(1))
    assert (second.columns, second.messages) == (first.columns, first.messages)


async def test_an_episode_that_goes_on_beyond_its_replies_fails_and_says_so() -> None:
    [rollout] = await play(World(), ReplayPolicy([[Reply("<move>1</move>")]]), plans(1))
    assert (rollout.error_kind, rollout.reward, rollout.attempts) == (ErrorKind.POLICY, None, 1)
    assert "All stored replies were used" in str(rollout.error_message)
    assert len(rollout.steps) == 1


async def test_several_calls_of_a_reply_are_made_again_and_cost_their_turns() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"number": 1}}</tool_call>'
    [first] = await play(ToolWorld(), Replies(call * 3), plans(1), tool_manifest())  # type: ignore[arg-type]
    again = ReplayPolicy([[Reply(step.reply) for step in first.steps]])
    [second] = await play(ToolWorld(), again, plans(1), tool_manifest())  # type: ignore[arg-type]
    assert [step.calls for step in second.steps] == [step.calls for step in first.steps]
    limit = tool_manifest().proctor.episode.max_turns
    assert sum(turns_of({"calls": step.calls}) for step in first.steps) == limit


@pytest.mark.parametrize(("is_made", "turns"), [((True, True), 2), ((True, False), 1), ((False, False), 1)])
def test_a_step_takes_a_turn_for_each_call_that_reached_the_environment(is_made: tuple[bool, ...], turns: int) -> None:
    step = step_of_calls("", [CallResult({}, is_made=each) for each in is_made], [])
    assert turns_of({"calls": step.calls}) == turns
    assert turns_of({"calls": None}) == turns_of({}) == 1
