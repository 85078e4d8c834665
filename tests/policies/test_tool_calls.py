"""Tool calls over the chat completions API: whole episodes against an endpoint on loopback."""

from typing import Any

import orjson
import pytest

from backend.domain.rollouts.rollout import Rollout
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import ErrorKind, StopReason
from tests.policies.endpoint import KEY, Answer, FakeEndpoint, completion, serving
from tests.rollouts.tools_world import ADD, FINISH, ToolWorld, tool_manifest
from tests.rollouts.world import plans, play
from workers.policies.chat_format import native_messages
from workers.policies.openai_api import Endpoint, OpenAiPolicy


def function(name: str, arguments: Any) -> dict[str, Any]:
    sent = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": sent}}


def calls(*asked: dict[str, Any], content: str | None = None, finish: str = "tool_calls") -> Answer:
    return completion(content, finish=finish, tool_calls=list(asked))


FINISHED = calls(function("finish", "{}"))


async def episode(
    *answers: Answer, world: ToolWorld | None = None, attempts: int = 2, **options: Any
) -> tuple[Rollout, FakeEndpoint]:
    manifest = tool_manifest(**options.pop("action", {}))
    async with serving(*answers) as endpoint:
        where = Endpoint(
            endpoint.url, "small", KEY, attempts=attempts, first_wait_seconds=0.001, timeout_seconds=2, **options
        )
        policy = OpenAiPolicy(where, Sampling())
        [rollout] = await play(world or ToolWorld(), policy, plans(1), manifest, max_attempts=1)  # type: ignore[arg-type]
        await policy.aclose()
    return rollout, endpoint


async def test_it_offers_the_tools_and_takes_the_answers_calls() -> None:
    rollout, endpoint = await episode(
        calls(function("add", {"number": 3}), content="Three first."), calls(function("add", {"number": 2})), FINISHED
    )
    assert endpoint.bodies[0]["tools"] == [
        {"type": "function", "function": {"description": "", **tool}} for tool in (ADD, FINISH)
    ]
    assert rollout.columns == {"win": 1.0, "format": 1.0}
    assert rollout.steps[0].reply == 'Three first.\n<tool_call>{"name": "add", "arguments": {"number":3}}</tool_call>'


async def test_the_history_goes_back_as_calls_and_their_results() -> None:
    _, endpoint = await episode(
        calls(function("add", {"number": 3}), content="Three first."), completion("And now?"), FINISHED
    )
    system, opening, asked, result, said, told = endpoint.bodies[2]["messages"]
    assert system == {"role": "system", "content": "Reach five."}
    assert opening == {"role": "user", "content": "0 on the shelf"}
    [made] = asked.pop("tool_calls")
    assert asked == {"role": "assistant", "content": "Three first."}
    assert made["function"] == {"name": "add", "arguments": '{"number": 3}'}
    assert result == {"role": "tool", "tool_call_id": made["id"], "content": "3 on the shelf"}
    assert said == {"role": "assistant", "content": "And now?"}
    assert (told["role"], "No tool was called" in told["content"]) == ("user", True)
    assert len(made["id"]) == 9


async def test_several_calls_are_each_made_and_each_answered_by_its_own_message() -> None:
    world = ToolWorld()
    both = calls(function("add", {"number": 3}), function("add", {"number": 7}), function("add", {"number": 2}))
    _, endpoint = await episode(both, FINISHED, world=world)
    assert [action["tool"] for action in world.actions] == ["add", "add", "finish"]
    asked, *results = endpoint.bodies[1]["messages"][2:]
    assert [result["tool_call_id"] for result in results] == [call["id"] for call in asked["tool_calls"]]
    assert [result["content"] for result in results] == [
        "3 on the shelf",
        "`add` was not called: `number`: 7 is greater than the maximum of 3.",
        "5 on the shelf",
    ]
    assert len({call["id"] for call in asked["tool_calls"]}) == 3


async def test_a_call_among_several_that_is_no_json_lets_none_be_made() -> None:
    world = ToolWorld()
    rollout, endpoint = await episode(
        calls(function("add", {"number": 3}), function("add", "{broken")), FINISHED, world=world
    )
    assert [action["tool"] for action in world.actions] == ["finish"]
    assert "is not JSON" in endpoint.bodies[1]["messages"][-1]["content"]
    assert rollout.columns["format"] == 0.5


async def test_wrong_arguments_come_back_as_the_calls_result() -> None:
    rollout, endpoint = await episode(
        calls(function("add", {"number": "three"})), calls(function("add", '{"number": 3')), FINISHED
    )
    last = endpoint.bodies[2]["messages"]
    assert (last[3]["role"], last[3]["content"]) == (
        "tool",
        "Your reply could not be read. `add` was not called: `number`: 'three' is not of type 'integer'.",
    )
    assert last[4] == {
        "role": "assistant",
        "content": '<tool_call>{"name": "add", "arguments": {"number": 3}</tool_call>',
    }
    assert (last[5]["role"], "is not JSON" in last[5]["content"]) == ("user", True)
    assert [step.action is None for step in rollout.steps] == [True, True, False]


@pytest.mark.parametrize("arguments", [{}, "", None])
async def test_a_call_without_arguments_may_be_spelled_in_many_ways(arguments: Any) -> None:
    call = {"function": {"name": "finish", "arguments": arguments}}
    rollout, _ = await episode(completion(None, tool_calls=[call]))
    assert rollout.stop_reason is StopReason.DONE


async def test_a_model_that_writes_its_call_as_text_is_understood() -> None:
    rollout, endpoint = await episode(
        completion('<tool_call>\n{"name": "add", "arguments": {"number": 3}}\n</tool_call>'), FINISHED
    )
    assert rollout.columns["format"] == 1.0
    assert endpoint.bodies[1]["messages"][2]["tool_calls"][0]["function"]["name"] == "add"


async def test_a_call_that_was_cut_ends_the_episode_as_cut() -> None:
    rollout, _ = await episode(calls(function("add", '{"numb'), finish="length"))
    assert (rollout.stop_reason, rollout.is_truncated, len(rollout.steps)) == (StopReason.TOKEN_LIMIT, True, 1)


@pytest.mark.parametrize(
    "broken",
    [["add"], [{"id": "x"}], [{"function": {"arguments": "{}"}}], [{"function": {"name": 7}}], "add", {"a": 1}],
)
async def test_calls_without_the_apis_form_are_the_endpoints_failure(broken: Any) -> None:
    rollout, endpoint = await episode(completion(None, tool_calls=broken))
    assert (rollout.error_kind, rollout.reward) == (ErrorKind.POLICY, None)
    assert "no chat completion" in str(rollout.error_message)
    assert len(endpoint.bodies) == 2


async def test_an_endpoint_without_tool_calls_reads_them_in_the_prompt() -> None:
    answer = completion('<tool_call>{"name": "finish"}</tool_call>')
    rollout, endpoint = await episode(answer, sends_tools=False)
    assert "tools" not in endpoint.bodies[0]
    assert '{"name": "finish"' in endpoint.bodies[0]["messages"][0]["content"]
    assert rollout.stop_reason is StopReason.DONE


async def test_tools_that_appear_later_are_offered_then() -> None:
    _, endpoint = await episode(
        calls(function("add", {"number": 3})), FINISHED, world=ToolWorld(lists=True), action={"tools": "tools"}
    )
    offered = [[tool["function"]["name"] for tool in body["tools"]] for body in endpoint.bodies]
    assert offered == [["add"], ["add", "finish"]]


async def test_half_characters_in_a_calls_history_are_asked_all_the_same() -> None:
    rollout, _ = await episode(calls(function("add", '{"number": 3, "note": "\\ud800"}')), FINISHED)
    assert rollout.stop_reason is StopReason.DONE


def test_a_conversation_without_calls_stays_as_it_is() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert native_messages(said, "") == said
