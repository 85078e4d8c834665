"""Tool calls in transcripts: taken apart where they were understood, as written where not."""

from typing import Any

from backend.domain.environments.tools import write_call
from backend.web.templating import templates
from backend.web.transcripts import transcript_of

CALL = write_call("search", {"query": "<b>leave</b>", "limit": 3})


def conversation(reply: str, action: Any, **message: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    messages = [
        {"role": "user", "content": "Ask."},
        {"role": "assistant", "content": reply, **message},
        {"role": "user", "content": "Two pages."},
    ]
    return messages, [{"reply": reply, "action": action, "rewards": {"goal": 1.0}, "done": False}]


def test_a_call_that_was_understood_is_taken_apart_and_its_result_is_named():
    action = {"tool": "search", "arguments": {"query": "<b>leave</b>", "limit": 3}}
    opening, reply, result = transcript_of(*conversation(f"I look. {CALL}", action), ["goal"])
    (call,) = reply.calls
    assert (call.said, call.name, call.arguments["limit"]) == ("I look.", "search", 3)
    assert (opening.tool, result.tool) == ("", "search")


def test_text_that_only_looks_like_a_call_stays_text():
    for action in (None, {"text": CALL}, {"tool": "search", "arguments": {}}):
        _, reply, result = transcript_of(*conversation(CALL, action), ["goal"])
        assert (reply.calls, result.tool) == ([], "")
        assert reply.pieces[0].text == CALL


def test_a_marked_call_is_shown_as_it_was_written():
    action = {"tool": "search", "arguments": {"query": "<b>leave</b>", "limit": 3}}
    _, reply, _ = transcript_of(*conversation(CALL, action), ["goal"], quotes=["leave"])
    assert (reply.calls, reply.has_marks) == ((), True)


def test_the_page_escapes_calls_and_states_which_were_not_made():
    action = {"tool": "search", "arguments": {"query": "<b>leave</b>", "limit": 3}}
    not_made = [{"name": "read", "arguments": {"page": "<i>"}}]
    entries = transcript_of(*conversation(CALL, action, not_made=not_made), ["goal"])
    page = templates().from_string("{{ ui.transcript(entries) }}").render(entries=entries)
    assert "&lt;b&gt;leave&lt;/b&gt;" in page
    assert "<i>" not in page
    assert "requested, not executed" in page
