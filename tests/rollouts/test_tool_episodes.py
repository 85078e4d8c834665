"""Episodes whose replies are tool calls."""

from backend.domain.environments.tools import write_call
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from tests.rollouts.tools_world import ADD, FINISH, ToolWorld, tool_manifest
from tests.rollouts.world import Replies, plans, play
from workers.policies.scripted import ScriptedPolicy


def add(number: object) -> str:
    return write_call("add", {"number": number})


FIVE = (add(3), add(2), write_call("finish", {}))


async def test_calls_reach_the_environment_and_win() -> None:
    world, manifest = ToolWorld(), tool_manifest()
    [rollout] = await play(world, Replies(*FIVE), plans(1), manifest)  # type: ignore[arg-type]
    assert rollout.columns == {"win": 1.0, "format": 1.0}
    assert world.actions[0] == {"tool": "add", "arguments": {"number": 3}}
    assert [message["role"] for message in rollout.messages[:3]] == ["system", "user", "assistant"]
    assert "Put a number on the shelf" in rollout.messages[0]["content"]


async def test_a_call_that_cannot_be_made_is_reported_costs_a_turn_and_reaches_no_one() -> None:
    world = ToolWorld()
    wrong = (add(9), write_call("steal", {}), "I add three.")
    policy = Replies(*wrong, *FIVE)
    [rollout] = await play(world, policy, plans(1), tool_manifest())  # type: ignore[arg-type]
    assert [step.note for step in rollout.steps[:3]] == [
        "`add` was not called: `number`: 9 is greater than the maximum of 3.",
        "There is no tool 'steal'; there are: add, finish.",
        "Found no complete <tool_call>…</tool_call>; write exactly one.",
    ]
    assert "no tool 'steal'" in policy.seen[2][-1]["content"]
    assert (len(world.actions), rollout.columns) == (3, {"win": 1.0, "format": 0.5})


async def test_tools_that_an_observation_lists_may_change_and_are_reported() -> None:
    policy = Replies(write_call("finish", {}), *FIVE)
    [rollout] = await play(ToolWorld(lists=True), policy, plans(1), tool_manifest(tools="tools"))  # type: ignore[arg-type]
    assert rollout.steps[0].note == "There is no tool 'finish'; there are: add."
    assert '"finish"' not in policy.seen[0][0]["content"]
    assert policy.seen[2][-1]["content"].startswith("3 on the shelf\n\nYou act by calling tools")
    assert policy.seen[3][-1]["content"] == "5 on the shelf"
    assert rollout.columns["win"] == 1.0


async def test_tools_are_discovered_once_by_an_action() -> None:
    world = ToolWorld(listing=[ADD, {"type": "function", "function": FINISH}])
    manifest = tool_manifest(tools="tools", discover={"type": "list_tools"}, extra={"type": "call_tool"})
    [rollout] = await play(world, Replies(*FIVE), plans(1), manifest)  # type: ignore[arg-type]
    assert world.actions[0] == {"type": "list_tools"}
    assert world.actions[1] == {"tool": "add", "arguments": {"number": 3}, "type": "call_tool"}
    assert (len(rollout.steps), rollout.columns["win"]) == (3, 1.0)


async def test_an_environment_whose_tools_cannot_be_used_gives_no_reward() -> None:
    manifest = tool_manifest(tools="tools", discover={"type": "list_tools"})
    for listing in ([], None, [{"name": "no name"}], "add"):
        [rollout] = await play(ToolWorld(listing=listing), Replies(*FIVE), plans(1), manifest, max_attempts=1)  # type: ignore[arg-type]
        assert (rollout.status, rollout.error_kind) == (RolloutStatus.FAILED, ErrorKind.ENVIRONMENT)
        assert "tool" in str(rollout.error_message)


async def test_a_reply_with_a_message_is_an_action_where_the_manifest_has_a_place_for_it() -> None:
    world = ToolWorld()
    [rollout] = await play(world, Replies(add(3), add(2), "Done."), plans(1), tool_manifest(text="message"))  # type: ignore[arg-type]
    assert world.actions[-1] == {"message": "Done."}
    assert rollout.columns == {"win": 1.0, "format": 1.0}


async def test_several_calls_of_a_reply_are_made_in_their_order_and_answered_together() -> None:
    world, policy = ToolWorld(), Replies(f"{add(3)}\n{add(2)}", write_call("finish", {}))
    [rollout] = await play(world, policy, plans(1), tool_manifest())  # type: ignore[arg-type]
    assert [action["arguments"] for action in world.actions] == [{"number": 3}, {"number": 2}, {}]
    assert policy.seen[1][-1]["content"] == "Call 1 (`add`): 3 on the shelf\n\nCall 2 (`add`): 5 on the shelf"
    first, last = rollout.steps
    assert first.action == {"tool": "add", "arguments": {"number": 3}}
    assert [(call["text"], call["done"]) for call in first.calls or []] == [
        ("3 on the shelf", False),
        ("5 on the shelf", False),
    ]
    assert (last.calls, last.done) == (None, True)
    assert rollout.columns == {"win": 1.0, "format": 1.0}


async def test_a_call_among_several_that_cannot_be_made_is_answered_and_the_others_are_made() -> None:
    world, policy = ToolWorld(), Replies(f"{add(3)}{add(9)}{add(2)}", write_call("finish", {}))
    [rollout] = await play(world, policy, plans(1), tool_manifest())  # type: ignore[arg-type]
    assert len(world.actions) == 3
    assert "Call 2: `add` was not called: `number`: 9 is greater" in policy.seen[1][-1]["content"]
    assert rollout.columns == {"win": 1.0, "format": 0.5}


async def test_after_the_end_no_further_call_is_made() -> None:
    world = ToolWorld()
    [rollout] = await play(world, Replies(add(3) + write_call("finish", {}) + add(2)), plans(1), tool_manifest())  # type: ignore[arg-type]
    assert len(world.actions) == 2
    assert rollout.steps[0].done
    assert (rollout.steps[0].calls or [])[2]["note"] == "Not made: the episode is over."


async def test_each_call_costs_a_turn_so_that_no_reply_buys_more_than_the_limit() -> None:
    world, manifest = ToolWorld(), tool_manifest()
    limit = manifest.proctor.episode.max_turns
    [rollout] = await play(world, Replies(add(1) * 5), plans(1), manifest)  # type: ignore[arg-type]
    assert (len(world.actions), rollout.stop_reason) == (limit, "max_turns")
    assert (rollout.steps[-1].calls or [])[-1]["note"] == "Not made: the episode has no turn left."


async def test_random_play_calls_what_may_be_called() -> None:
    rollouts = await play(ToolWorld(), ScriptedPolicy("random"), plans(20), tool_manifest())  # type: ignore[arg-type]
    assert {rollout.columns["format"] for rollout in rollouts} == {1.0}
    assert {step.action["tool"] for rollout in rollouts for step in rollout.steps if step.action} == {"add", "finish"}
    notes = ["note" in step.action["arguments"] for rollout in rollouts for step in rollout.steps if step.action]
    assert any(notes)
    assert not all(notes)


async def test_constant_play_repeats_the_first_tool_with_the_least_values() -> None:
    [rollout] = await play(ToolWorld(), ScriptedPolicy("constant"), plans(1), tool_manifest())  # type: ignore[arg-type]
    assert {step.reply for step in rollout.steps} == {add(1)}
