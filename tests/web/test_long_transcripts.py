"""Conversations that are too long for a page: their middle is omitted, except for marked parts."""

from typing import Any

from backend.web.transcripts import MOST_ENTRIES, MOST_MARKED, bounded, transcript_of


def long_conversation(turns: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    said = [(f"Question {turn}.", f"Answer {turn}.") for turn in range(turns)]
    pairs = [({"role": "user", "content": q}, {"role": "assistant", "content": a}) for q, a in said]
    steps = [{"reply": a, "action": None, "rewards": {}, "done": False} for _, a in said]
    return [message for pair in pairs for message in pair], steps


def test_a_short_conversation_is_shown_whole():
    entries = transcript_of(*long_conversation(5), [])
    assert bounded(entries) == (entries, 0)


def test_what_is_marked_or_cited_in_the_middle_stays():
    entries = transcript_of(*long_conversation(200), [], quotes=["Answer 99."], cited_turns=[120])
    shown, left_out = bounded(entries)
    assert len(shown) == MOST_ENTRIES + 2
    assert left_out == 400 - len(shown)
    assert [entry.turn for entry in shown if entry.has_marks or entry.is_cited] == [99, 120]


def test_no_flag_makes_a_page_endless():
    entries = transcript_of(*long_conversation(400), [], cited_turns=range(400))
    shown, left_out = bounded(entries)
    assert (len(shown), left_out) == (MOST_ENTRIES + MOST_MARKED, 800 - MOST_ENTRIES - MOST_MARKED)
