"""Lines of an uploaded file: what is a conversation, and what is refused in which words."""

import json
from typing import Any

import pytest

from backend.domain.training.example_lines import BadLine, read_line, write_line
from backend.domain.training.examples import Conversation, ExampleStatistics, is_understood, thinned

ASKED = {"role": "user", "content": "Board?"}
REPLIED = {"role": "assistant", "content": "<move>4</move>"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def read(**row: Any) -> Conversation:
    return read_line(json.dumps(row).encode())


def called(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_messages_and_prompt_with_completion_are_the_same_conversation() -> None:
    assert read(messages=[ASKED, REPLIED]) == read(prompt="Board?", completion="<move>4</move>")
    assert read(prompt=[ASKED], completion=[REPLIED]) == read(messages=[ASKED, REPLIED])


def test_a_conversation_is_written_as_it_is_read() -> None:
    spoiled = {"role": "assistant", "content": "nonsense", "weight": 0}
    found = read(messages=[ASKED, spoiled, ASKED, REPLIED], reward=0.5, level=2, task="train/7")
    assert found.learned == (False, True)
    assert read_line(write_line(found)) == found


def test_tool_calls_read_as_the_policy_will_see_them() -> None:
    messages = [ASKED, called("look", '{"at": 4}'), {"role": "tool", "content": "free"}, REPLIED]
    found = read(messages=messages, tools=[TOOL])
    assert [message["role"] for message in found.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert found.messages[2]["content"] == '<tool_call>{"name": "look", "arguments": {"at": 4}}</tool_call>'
    assert found.messages[3]["content"] == "free"
    assert '"name": "look"' in found.system


def test_several_results_are_reported_as_the_engine_shows_them() -> None:
    results = [{"role": "tool", "name": "look", "content": "free"}, {"role": "tool", "content": "taken"}]
    found = read(messages=[ASKED, called("look", "{}"), *results, REPLIED])
    assert found.messages[2]["content"] == "Call 1 (`look`): free\n\nCall 2: taken"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"messages": [ASKED, REPLIED], "mesages": []}, "unknown field 'mesages'"),
        ({"messages": [{**ASKED, "rol": "x"}, REPLIED]}, "message 1 has the unknown field 'rol'"),
        ({"prompt": [ASKED], "completion": [{**REPLIED, "wight": 1}]}, "message 2 has the unknown field 'wight'"),
        ({"messages": [{"role": "judge", "content": ""}]}, "the role 'judge'"),
        ({"messages": [ASKED, ASKED]}, "message 2 has the role user instead of assistant"),
        ({"messages": [ASKED, REPLIED, {"role": "system", "content": "x"}]}, "message 3 has the role system"),
        ({"messages": [ASKED, REPLIED, ASKED]}, "does not end with a reply of the assistant"),
        ({"messages": [ASKED, {"role": "assistant", "content": " \n"}]}, "message 2 is an empty reply"),
        ({"messages": [ASKED, {"role": "assistant", "content": "a\x00"}]}, "contains a NUL character"),
        ({"messages": [ASKED, {**REPLIED, "weight": 0}]}, "no reply to learn"),
        ({"messages": [ASKED, {**REPLIED, "weight": 0.5}]}, "a weight is 0 or 1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, REPLIED]}, "content that is not text"),
        ({"messages": []}, "an empty one"),
        ({"messages": [ASKED, REPLIED], "prompt": "x"}, "both messages and a prompt"),
        ({"prompt": "x"}, "neither messages nor a prompt with its completion"),
        ({"messages": [ASKED, REPLIED], "reward": "much"}, "has a reward that is not a number"),
        ({"messages": [ASKED, REPLIED], "task": "heldout/3"}, "held-out task"),
        ({"messages": [ASKED, REPLIED], "tools": [3]}, "has tools that cannot be used"),
    ],
)
def test_what_is_wrong_is_reported(row: dict[str, Any], told: str) -> None:
    with pytest.raises(BadLine, match=told):
        read(**row)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"prompt": "\\ud800", "completion": "x"}', b'{"prompt": "\xff"}'])
def test_what_is_no_json_is_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        read_line(line)


def test_statistics_count_what_is_learned_and_what_repeats() -> None:
    found = ExampleStatistics()
    for task in ("train/0", "train/0", "train/4"):
        said = [ASKED, {**REPLIED, "content": "no"}, ASKED, REPLIED]
        conversation = Conversation(said, (False, True), reward=1.0, level=0, task=task, version=2)
        found.is_repeated(conversation)
        found.add(conversation)
    told = found.as_json()
    assert (told["conversations"], told["repeats"], told["understood"]) == (3, 2, 0.5)
    assert told["tasks_by_level"] == {"0": 2}
    assert told["versions"] == {"2": 3}
    assert told["reward"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert told["systems"] == [{"text": "", "conversations": 3}]


def test_another_system_prompt_takes_the_place_of_the_first() -> None:
    found = Conversation([{"role": "system", "content": "old"}, ASKED, REPLIED], (True,), reward=1.0)
    assert found.under("new").messages == [{"role": "system", "content": "new"}, ASKED, REPLIED]
    assert found.under("").messages == [ASKED, REPLIED]
    assert found.under("new").reward == 1.0


def test_a_reply_is_understood_when_each_of_its_calls_was() -> None:
    assert is_understood({"action": {"cell": 4}})
    assert not is_understood({"action": None})
    assert not is_understood({"action": {"tool": "a"}, "calls": [{"note": None}, {"note": "There is no such tool."}]})


def test_thinning_keeps_the_ends() -> None:
    assert thinned(range(10_000))[:: len(thinned(range(10_000))) - 1] == [0, 9999]
    assert thinned([3, 1]) == [1, 3]
