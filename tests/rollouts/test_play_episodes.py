"""The record of an episode: conversation, steps, columns, stop reason."""

from backend.domain.vocabulary import RolloutStatus, StopReason
from tests.rollouts.world import Replies, Trouble, World, make_manifest, plans, play
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.limits import CUT, MAX_STORED_BYTES


async def test_it_keeps_the_conversation_the_steps_and_the_columns() -> None:
    [rollout] = await play(World(), Replies("<move>2</move>", "<move>1</move>"), plans(1))
    assert rollout.status is RolloutStatus.COMPLETED
    assert rollout.stop_reason is StopReason.DONE
    assert [(message["role"], message["content"]) for message in rollout.messages] == [
        ("system", "Count."),
        ("user", "0 of 3"),
        ("assistant", "<move>2</move>"),
        ("user", "2 of 3"),
        ("assistant", "<move>1</move>"),
    ]
    assert [(step.action, step.text, step.done) for step in rollout.steps] == [
        ({"add": 2}, "2 of 3", False),
        ({"add": 1}, "", True),
    ]
    assert rollout.opening["target"] == 3
    assert rollout.columns == {"win": 1.0, "format": 1.0, "length": 4.0}
    assert rollout.reward == 1.0 + 0.2
    assert rollout.metrics == {"steps_taken": 2.0}
    assert (rollout.tokens_in, rollout.tokens_out) == (20, 8)
    assert rollout.completion_mask == [1, 0]
    assert rollout.started_at is not None
    assert rollout.ended_at is not None
    assert rollout.ended_at >= rollout.started_at


async def test_the_policy_sees_the_conversation_and_nothing_of_the_state() -> None:
    policy = Replies("<move>2</move>", "<move>1</move>")
    await play(World(), policy, plans(1))
    assert [len(seen) for seen in policy.seen] == [2, 4]
    assert "secret" not in str(policy.seen)
    assert policy.closed == 1


async def test_gold_wins_every_task() -> None:
    rollouts = await play(World(), ScriptedPolicy("gold"), plans(12))
    assert [rollout.columns["win"] for rollout in rollouts] == [1.0] * 12


async def test_a_reply_that_cannot_be_read_costs_a_turn_and_is_reported() -> None:
    policy = Replies("two?", "<move>2</move>", "<move>1</move>")
    [rollout] = await play(World(), policy, plans(1))
    assert rollout.columns["format"] == 2 / 3
    assert rollout.columns["win"] == 1.0
    assert rollout.steps[0].action is None
    assert rollout.steps[0].note == "Found no <move>…</move>; write exactly one."
    assert "write exactly one" in policy.seen[1][-1]["content"]


async def test_an_action_that_the_environment_refuses_is_the_policys_mistake() -> None:
    policy = Replies("<move>9</move>", "<move>2</move>", "<move>1</move>")
    [rollout] = await play(World(), policy, plans(1))
    assert rollout.status is RolloutStatus.COMPLETED
    assert rollout.columns["format"] == 2 / 3
    assert "Input should be 1 or 2" in policy.seen[1][-1]["content"]


async def test_a_reply_that_cannot_be_read_may_end_the_episode() -> None:
    manifest = make_manifest(agent={"on_unparsable": "end"})
    [rollout] = await play(World(), Replies("two?"), plans(1), manifest)
    assert rollout.stop_reason is StopReason.UNPARSABLE
    assert rollout.status is RolloutStatus.COMPLETED
    assert rollout.reward == 0.0


async def test_a_reply_that_cannot_be_read_may_be_passed_on_as_it_is() -> None:
    manifest = make_manifest(agent={"on_unparsable": "pass"})
    [rollout] = await play(World(), Replies("two?"), plans(1), manifest)
    assert rollout.stop_reason is StopReason.MAX_TURNS
    assert "Input should be 1 or 2" in str(rollout.steps[0].note)


async def test_it_ends_after_the_last_turn() -> None:
    [rollout] = await play(World(), Replies("no"), plans(1))
    assert rollout.stop_reason is StopReason.MAX_TURNS
    assert len(rollout.steps) == 8
    assert rollout.messages[-1]["role"] == "assistant"
    assert rollout.columns == {"win": 0.0, "format": 0.0, "length": 4.0}


async def test_a_cut_reply_that_cannot_be_read_ends_by_the_token_limit() -> None:
    [rollout] = await play(World(), Replies("<move>2", truncated=True), plans(1))
    assert rollout.stop_reason is StopReason.TOKEN_LIMIT
    assert rollout.is_truncated
    assert len(rollout.steps) == 1


async def test_a_huge_observation_is_cut_where_it_is_stored() -> None:
    [rollout] = await play(World(Trouble(huge={0})), Replies("<move>2</move>", "<move>1</move>"), plans(1))
    assert CUT in rollout.opening
    assert len(str(rollout.opening)) <= MAX_STORED_BYTES
    assert rollout.opening["target"] == 3
    assert len(str(rollout.steps[0].observation)) <= MAX_STORED_BYTES
